//go:build linux

package agent

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// Of what programs have changed, the agent has heard what was made here, and has the rest heard.
func TestOwnChangesAreNotTold(t *testing.T) {
	dir := t.TempDir()
	mine, theirs, told := filepath.Join(dir, "mine"), filepath.Join(dir, "theirs"), filepath.Join(dir, "told")
	var o ownChanges
	defer o.forget()
	others := func(want ...string) {
		t.Helper()
		if got := o.others([]string{mine, theirs, told}, []string{mine, theirs}); !slices.Equal(got, want) {
			t.Errorf("%q are others', want %q", got, want)
		}
	}
	write := func(path string) {
		t.Helper()
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(theirs)
	others(mine, theirs, told) // nothing was heard here before
	heard := func(path string) (is bool) {
		o.mu.Lock()
		defer o.mu.Unlock()
		_, is = o.at[path]
		return is
	}
	for deadline := time.Now().Add(10 * time.Second); !heard(mine); {
		if write(mine); time.Now().After(deadline) {
			t.Fatal("nothing is heard")
		}
	}
	o.told([]string{told}) // what the service has changed is heard, too
	others(theirs)
	// What others change later is theirs again.
	o.mu.Lock()
	o.at[mine] = time.Now().Add(-time.Hour)
	o.mu.Unlock()
	others(mine, theirs)
	// What the agent does itself, to have theirs heard, is no change that was made here.
	touch(theirs, true)
	write(filepath.Join(dir, "last"))
	for !heard(filepath.Join(dir, "last")) {
		time.Sleep(time.Millisecond)
	}
	if heard(theirs) {
		t.Error("the agent takes what it does for a change that was made here")
	}
	write(theirs) // and the next is
	for !heard(theirs) {
		time.Sleep(time.Millisecond)
	}
}

// With too many directories or paths all are forgotten, and so they are when nobody watches.
func TestOwnChangesAreBounded(t *testing.T) {
	var o ownChanges
	defer o.forget()
	for i := range 3 {
		o.others([]string{filepath.Join(t.TempDir(), "x")}, nil)
		if o.events == nil || len(o.dirs) != i%2+1 {
			t.Errorf("%d directories", len(o.dirs))
		}
		if i == 1 {
			for len(o.nudged) < maxOwn {
				o.nudged[time.Now().String()] = time.Now()
			}
		}
	}
	o.forget()
	if o.events != nil || o.others(nil, nil) != nil {
		t.Error("it is not forgotten")
	}
}
