package process

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

// What processes have open is looked up while calls ask, is told while it is fresh, and said once for each run.
func TestFilesThatProcessesHaveOpen(t *testing.T) {
	m := newHost(t).serve()
	var looks []string
	open, fault := []string{"app.db"}, error(nil)
	m.run.onOpenFiles = func(i Instance) ([]string, error) {
		looks = append(looks, i.User)
		return open, fault
	}
	if got := m.OpenFiles("alice", "box", m.now()); got != nil {
		t.Errorf("%+v", got)
	}
	p := m.start(Intent{UserID: "alice", Name: "web", SandboxID: "box", Command: "x", KeepAlive: true})
	m.start(Intent{UserID: "alice", Name: "inside", Command: "x", InSandbox: true})
	m.start(Intent{UserID: "bob", Name: "web", Command: "x"})
	ask := func(want string, wantLooks int) (list []OpenFile) {
		t.Helper()
		list = m.OpenFiles("alice", "box", m.now().Add(-10*time.Second))
		m.settle()
		got := ""
		for _, f := range list {
			got += fmt.Sprintln(f.Name, f.Process, f.Sandbox)
		}
		if got != want || len(looks) != wantLooks || slices.Contains(looks, "bob") {
			t.Errorf("%q after %q", got, looks)
		}
		return list
	}
	ask("", 1) // nobody waits for it
	list := ask("app.db web box\n", 1)
	if !list[0].Say("box") || list[0].Say("box") || !list[0].Say("other") {
		t.Error("it is not said once to each sandbox")
	}
	ask("", 1)
	m.pass(lookInterval)
	open = slices.Repeat([]string{"x"}, 100)
	ask("", 2)
	m.pass(time.Minute)
	if list := ask("", 3); list != nil {
		t.Error("what is old is told")
	}
	if list := m.OpenFiles("alice", "box", m.now()); len(list) != maxOpenFiles {
		t.Errorf("%d files of a process", len(list))
	}
	m.pass(lookInterval)
	fault, open = errors.New("it is stopped"), nil
	m.OpenFiles("alice", "box", m.now())
	m.settle()
	ask("", 4)
	m.pass(2 * lookInterval)
	ask("", 4)
	fault, open = nil, []string{"app.db"}
	m.pass(lookAgain)
	ask("", 5)
	for i := range 2 * maxSaid { // a process that opens ever more has its user told of some
		if said := (OpenFile{Name: fmt.Sprint(i), of: list[0].of}).Say("box"); said != (i < maxSaid-2) {
			t.Errorf("%d: %t", i, said)
		}
	}

	m.exits(p.ID, Exit{Code: 1})
	m.pass(time.Minute) // and it was started again
	ask("", 6)
	if list := ask("app.db web box\n", 6); !list[0].Say("box") {
		t.Error("another run is not said")
	}
}

// Of many processes each is looked at in its turn.
func TestEachProcessIsLookedAt(t *testing.T) {
	m := newHost(t).serve()
	var mu sync.Mutex // several are looked at together
	looks := map[string]int{}
	m.run.onOpenFiles = func(i Instance) ([]string, error) {
		mu.Lock()
		defer mu.Unlock()
		looks[i.Process]++
		return nil, nil
	}
	for i := range 8 {
		m.start(Intent{UserID: "alice", Name: fmt.Sprint("p", i), Command: "x"})
	}
	for range 40 {
		m.OpenFiles("alice", "box", m.now())
		m.settle()
		m.pass(lookInterval + time.Second)
	}
	for id, n := range looks {
		if n != 10 {
			t.Errorf("%s: %d looks", id, n)
		}
	}
	if len(looks) != 8 {
		t.Errorf("%v", looks)
	}
}

// A name that means something else in a shell is not passed on.
func TestNamesOfProcessesInAdvice(t *testing.T) {
	for name, want := range map[string]bool{"web": true, "web-1.dev_x": true, "": false, "-f": false, "a b": false, "x;ls": false, "wéb": false, "a\nb": false} {
		if plainName.MatchString(name) != want {
			t.Errorf("%q", name)
		}
	}
}
