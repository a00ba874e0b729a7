package dockerexec

import (
	"context"
	"fmt"
	"os"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec/mounts"
	engines "github.com/daycare-run/sandbox/internal/engine"
)

// Another service may give the same directory an access time of its own at any moment.
func TestVerifyBesideAnotherService(t *testing.T) {
	meant, other := t.TempDir(), t.TempDir()
	stat := func(name string) (st unix.Stat_t) {
		if err := unix.Stat(name, &st); err != nil {
			t.Fatal(err)
		}
		return st
	}
	id := stat(meant)
	list := []mounts.Mount{{Source: meant, Target: "/mnt/tools", File: mounts.File{Dev: uint64(id.Dev), Ino: id.Ino}}}
	e := newScriptedEngine(t).executor()
	at := func(name string) string { st := stat(name); return fmt.Sprintf("%d.%09d", st.Atim.Sec, st.Atim.Nsec) }
	looks := 0
	for _, tt := range []struct {
		disturbed int    // how often another service is between
		mounted   string // what the container has
		want      string
	}{
		{0, meant, ""},
		{4 - 1, meant, ""},
		{0, other, "/mnt/tools is not what was meant"},
	} {
		looks = 0
		err := e.guard.Verify(t.Context(), nil, list, func([]string) ([]string, error) {
			if looks++; looks <= tt.disturbed {
				if err := os.Chtimes(meant, time.Now().Add(3*time.Hour), time.Time{}); err != nil {
					t.Fatal(err)
				}
			}
			return []string{at(tt.mounted)}, nil
		})
		if got := fmt.Sprint(err); (tt.want == "") != (err == nil) || !strings.Contains(got, tt.want) {
			t.Errorf("%+v: %v", tt, err)
		}
		if after := stat(meant).Atim.Sec; after > time.Now().Unix() {
			t.Errorf("%+v: an access time of %d is left", tt, after)
		}
	}
	if looks != 4 {
		t.Errorf("what was exchanged was looked at %d times", looks)
	}
}

// Services that mount one directory at the same moment, again and again, wait for each other's marks: none takes them for
// an exchange.
func TestVerifyInSeveralServicesAtOnce(t *testing.T) {
	shared := t.TempDir()
	stat := func() (st unix.Stat_t) {
		if err := unix.Stat(shared, &st); err != nil {
			t.Error(err)
		}
		return st
	}
	id := stat()
	var services sync.WaitGroup
	for range 4 {
		services.Go(func() {
			e := newScriptedEngine(t).executor()
			list := []mounts.Mount{{Source: shared, Target: "/mnt/tools", File: mounts.File{Dev: uint64(id.Dev), Ino: id.Ino}}}
			for range 5 {
				err := e.guard.Verify(t.Context(), nil, list, func([]string) ([]string, error) {
					time.Sleep(5 * time.Millisecond) // what an agent takes
					st := stat()
					return []string{fmt.Sprintf("%d.%09d", st.Atim.Sec, st.Atim.Nsec)}, nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	services.Wait()
	if after := stat().Atim.Sec; after > time.Now().Unix() {
		t.Errorf("an access time of %d is left", after)
	}
}

// A mount that somebody else never stops changing is not verified, and is not said to have been exchanged.
func TestVerifyWhatIsDisturbedForGood(t *testing.T) {
	shared := t.TempDir()
	var id unix.Stat_t
	if err := unix.Stat(shared, &id); err != nil {
		t.Fatal(err)
	}
	list := []mounts.Mount{{Source: shared, Target: "/mnt/tools", File: mounts.File{Dev: uint64(id.Dev), Ino: id.Ino}}}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	e := newScriptedEngine(t).executor()
	err := e.guard.Verify(ctx, nil, list, func([]string) ([]string, error) {
		return []string{"1.000000000"}, os.Chtimes(shared, time.Unix(1, 0), time.Time{})
	})
	if err == nil || !strings.Contains(err.Error(), "the access time of what is mounted at /mnt/tools keeps changing") {
		t.Error(err)
	}
}

// A container whose command touches a directory again and again is paused while another one that mounts it is
// verified. One that cannot write to it is not paused, nor is one that is used, which is not waited for.
func TestVerifyPausesWhoDisturbsIt(t *testing.T) {
	engine := newScriptedEngine(t)
	shared := t.TempDir()
	mounted := func(user, source string, writable bool) (id string) {
		id = engine.has(user)
		engine.Change(id, func(c *engines.Container) {
			c.Mounts = append(c.Mounts, engines.BindMount(source, "/mnt", !writable))
		})
		return id
	}
	writer, used := mounted("writer", path.Dir(shared), true), mounted("used", shared, true)
	mounted("reader", shared, false)
	mounted("neighbor", t.TempDir(), true)
	e := engine.executor()
	if err := e.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	done, err := e.known(used).Use(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	var st unix.Stat_t
	if err := unix.Stat(shared, &st); err != nil {
		t.Fatal(err)
	}
	list := []mounts.Mount{{Source: shared, Target: "/mnt/tools", File: mounts.File{Dev: uint64(st.Dev), Ino: st.Ino}}}
	err = e.guard.Verify(t.Context(), nil, list, func([]string) ([]string, error) {
		if now, _ := engine.Find(writer); now.State != engines.Paused {
			if err := os.Chtimes(shared, time.Now(), time.Time{}); err != nil {
				t.Error(err)
			}
		}
		err := unix.Stat(shared, &st)
		return []string{fmt.Sprintf("%d.%09d", st.Atim.Sec, st.Atim.Nsec)}, err
	})
	if err != nil {
		t.Error(err)
	}
	if got, want := strings.Join(engine.pauses(), ", "), "Pause writer, Resume writer"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
