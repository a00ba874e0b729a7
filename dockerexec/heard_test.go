package dockerexec

import (
	"fmt"
	"path"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/daycare-run/sandbox/internal/agent/agenttest"
	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/wire"
	"github.com/daycare-run/sandbox/internal/engine/enginetest"
	"github.com/daycare-run/sandbox/internal/quota"
)

// told returns what an agent is told, and forgets it.
func told(n *News) (paths, modified []string) {
	l := n.lookUp(false)
	*n = News{}
	return l.Paths, l.Modified
}

// A container is told of each path once, of many changes the directories, and never of what it has renamed itself.
func TestWhatAContainerIsToHear(t *testing.T) {
	var h hearing
	h.hasRenamed("/home/a/own")
	h.add("/home/a/own", Replaced)
	for _, place := range []string{"/home/a/x", "/home/a/own", "/home/a/x", "/home/a/own"} {
		h.add(place, Made)
	}
	h.add("/home/log", Modified)
	h.add("/home/log", Modified)
	if paths, modified := told(&h.own); !slices.Equal(paths, []string{"/home/a/x", "/home/a/own", "/home/log"}) || !slices.Equal(modified, []string{"/home/log"}) {
		t.Errorf("%q, %q", paths, modified)
	}
	if !h.isEmpty() {
		t.Error("it is told twice")
	}
	h.add("/home/a/own", Replaced)
	if paths, modified := told(&h.own); !slices.Equal(paths, []string{"/home/a/own"}) || !slices.Equal(modified, paths) {
		t.Errorf("of one that is replaced: %q, %q", paths, modified)
	}
	for i := range 10_000 {
		h.add(fmt.Sprintf("/home/many/%d/%d", i%(2*maxChanged), i), Modified)
	}
	paths, modified := told(&h.own)
	if len(paths) != 2*maxChanged || len(modified) != maxChanged || slices.Contains(paths, "/home/many") || !slices.Contains(paths, "/home/many/511") {
		t.Errorf("%d paths, %d modified: %q", len(paths), len(modified), paths[len(paths)-3:])
	}
}

// What a container may write to is told where it sees it; what it reads alone, or does not see, is not.
func TestPlacesThatMayBeWrittenTo(t *testing.T) {
	s := Spec{
		Mounts: []Mount{
			{Source: "/data/u/home", Target: "/home", ReadOnly: true}, {Source: "/data/u/home/out", Target: "/home/out"},
			{Source: "/data/u/home/out/kept", Target: "/home/out/kept", ReadOnly: true}, {Source: "/srv/shared", Target: "/mnt/shared"},
		},
		Masks: []Mask{{Target: "/home/out/private"}},
	}
	for host, want := range map[string]string{
		"/data/u/home/x": "", "/data/u/home/out/x": "/home/out/x", "/data/u/home/out": "/home/out", "/data/u/home/out/kept/x": "",
		"/data/u/home/out/private/x": "", "/data/u/home/outside": "", "/srv/shared/y": "/mnt/shared/y", "/data/other/home/out/x": "",
	} {
		got := slices.Compact(s.WritablePlaces(host, "/none"))
		if want == "" && len(got) > 0 || want != "" && !slices.Equal(got, []string{want}) {
			t.Errorf("%s: %q, want %q", host, got, want)
		}
	}
	if got := s.WritablePlaces("/var/tmp-of-u/x", "/tmp/x"); !slices.Equal(got, []string{"/tmp/x"}) {
		t.Errorf("%q", got)
	}
}

// What a container has renamed is forgotten after a while.
func TestWhatAContainerHasRenamedIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h hearing
		h.hasRenamed("/home/a")
		h.hasRenamed("/home/b")
		time.Sleep(knownFor + time.Second)
		h.add("/home/a", Replaced)
		h.add("/home/b", Made)
		if paths, _ := told(&h.own); !slices.Equal(paths, []string{"/home/a", "/home/b"}) {
			t.Errorf("%q", paths)
		}
	})
}

// Of two containers in which somebody watches, one renames a file and the other one announces it first. One that does not answer
// has the file wait for a second, and the caller look again.
func TestAFileIsRenamedInOneContainerAndAnnouncedInOthers(t *testing.T) {
	for _, silent := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			engine := newScriptedEngine(t)
			engine.gVisor = true
			var mu sync.Mutex
			var asked []string
			engine.Serve(func(p enginetest.Program) {
				agenttest.Requests(p, func(r control.Request) *control.Answer {
					if r.Do != control.Rename {
						return &control.Answer{}
					}
					mu.Lock()
					asked = append(asked, fmt.Sprintf("%s to %s", r.Rename.From, path.Join(r.Rename.Dir, r.Rename.To)))
					mu.Unlock()
					if silent && r.Rename.From == "" {
						time.Sleep(time.Minute)
					}
					return &control.Answer{Renamed: &wire.Renamed{Watched: true, Done: r.Rename.From != ""}}
				})
			})
			e := engine.executor()
			defer time.Sleep(2 * time.Minute) // until all agents have ended
			defer e.Shutdown()
			for _, id := range []string{"s1", "s2"} {
				spec := engine.homeSpec("alice")
				spec.Persistent = id
				if _, err := e.StartPersistent(t.Context(), spec, quota.Token{}); err != nil {
					t.Fatal(err)
				}
			}
			begun := time.Now()
			if !e.RenameInside(t.Context(), "alice", "/users/alice/a", "/home/a", ".temp") {
				t.Error("nobody was asked")
			}
			took := time.Since(begun)
			mu.Lock()
			defer mu.Unlock()
			if want := []string{" to /home/a", ".temp to /home/a"}; !slices.Equal(asked, want) {
				t.Errorf("asked %q", asked)
			}
			if want := map[bool]time.Duration{true: furtherLimit}[silent]; took != want {
				t.Errorf("it took %v, not %v", took, want)
			}
		})
	}
}
