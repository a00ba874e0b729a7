package warm

import (
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/agent/agenttest"
	"github.com/daycare-run/sandbox/internal/agent/wire"
	"github.com/daycare-run/sandbox/internal/engine/enginetest"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// lookedUp are the paths that agents were asked to look up, by the user.
type lookedUp struct {
	mu    sync.Mutex
	paths []string
	times int
}

func (l *lookedUp) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	paths := strings.Join(l.paths, " ")
	l.paths = nil
	return paths
}

// lookingUp has a scripted engine's agents in gVisor say what they look up.
func (s *lab) lookingUp() *lookedUp {
	l := &lookedUp{}
	s.gVisor = true
	s.Serve(func(p enginetest.Program) {
		agenttest.Commands(p, func(stream net.Conn, start wire.Start) bool {
			l.mu.Lock()
			l.paths = append(l.paths, start.LookUp...)
			if start.LookUp != nil {
				l.times++
			}
			l.mu.Unlock()
			return agenttest.Exit(s.exit)(stream, start)
		})
	})
	return l
}

// homeSpec is a Spec with a home.
func homeSpec(l *lab, user string) dockerexec.Spec {
	spec := l.spec(user)
	spec.Mounts = []dockerexec.Mount{{Source: "/users/" + user, Target: "/home"}}
	return spec
}

func TestRemovedNamesAreLookedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newLab(t)
		looked := engine.lookingUp()
		e := engine.freezing()
		defer e.stop()
		for _, user := range []string{"alice", "bob"} {
			if _, err := e.Run(t.Context(), homeSpec(engine, user), aCommand, discard); err != nil {
				t.Fatal(err)
			}
		}
		remove := func(name string) { e.Removed("alice", "/users/alice/"+name, "/home/"+name) }
		remove("a")
		remove("b")
		remove("a")
		if got := looked.take(); got != "" {
			t.Errorf("at once: %q", got)
		}
		waittest.Pass(2 * time.Second)
		if got := looked.take(); got != "/home/a /home/b" || looked.times != 1 {
			t.Errorf("%q, in %d messages", got, looked.times)
		}
		// One that is frozen is thawed for it after a while, and frozen again; nothing has used it.
		waittest.Pass(time.Minute)
		before := e.Containers()
		remove("c")
		waittest.Pass(15 * time.Second)
		if got := looked.take(); got != "" {
			t.Errorf("too early: %q", got)
		}
		waittest.Pass(30 * time.Second)
		if got := looked.take(); got != "/home/c" || !slices.Equal(e.Containers(), before) || e.states() != "alice frozen, bob frozen" {
			t.Errorf("%q, %+v after %+v", got, e.Containers(), before)
		}
		if want := "Resume alice, Pause alice"; !strings.HasSuffix(strings.Join(engine.pauses(), ", "), want) {
			t.Errorf("%v", engine.pauses())
		}
		// A call that comes while it is thawed goes on.
		engine.takes(time.Second, "Pause", "Resume")
		remove("d")
		waittest.Pass(31500 * time.Millisecond)
		if _, err := e.Run(t.Context(), homeSpec(engine, "alice"), aCommand, discard); err != nil {
			t.Error(err)
		}
		if waittest.Pass(10 * time.Second); looked.take() != "/home/d" || e.states() != "alice idle, bob frozen" || engine.Made() != 2 {
			t.Errorf("%s, %d containers", e.states(), engine.Made())
		}
	})
}

// A container with more removed paths than it keeps is removed when nothing runs in it.
func TestTooManyRemovedPaths(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newLab(t)
		engine.lookingUp()
		e := engine.freezing()
		defer e.stop()
		if _, err := e.Run(t.Context(), homeSpec(engine, "alice"), aCommand, discard); err != nil {
			t.Fatal(err)
		}
		waittest.Pass(time.Minute)
		remove := func(i int) { e.Removed("alice", "/users/alice/"+strings.Repeat("x", i), "") }
		for i := range 4096 {
			remove(i)
		}
		if waittest.Pass(time.Second); e.states() != "alice frozen" {
			t.Error(e.states())
		}
		remove(4096)
		if waittest.Pass(time.Second); e.states() != "" {
			t.Error(e.states())
		}
	})
}
