package dockerexec

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/daycare-run/sandbox/internal/agent/agenttest"
	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/engine/enginetest"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// homeSpec is a Spec with a home.
func (s *scriptedEngine) homeSpec(user string) Spec {
	spec := s.spec(user)
	spec.Mounts = []Mount{{Source: "/users/" + user, Target: "/home"}}
	return spec
}

func TestPlacesOfWhatIsRemoved(t *testing.T) {
	spec := newScriptedEngine(t).homeSpec("alice")
	spec.Mounts = append(spec.Mounts, Mount{Source: "/users/alice/work/own", Target: "/home/work/own"})
	spec.Masks = []Mask{{Target: "/home/work"}}
	for _, tt := range []struct{ host, inside, want string }{
		{"/users/alice/a/b", "/home/a/b", "/home/a/b"},
		{"/users/alicia/a", "/home/a", ""},
		{"/users/alice/work/secret", "/home/work/secret", ""},
		{"/users/alice/work/own/x", "/home/work/own/x", "/home/work/own/x"},
		{"/volumes/tmp/x", "/tmp/x", "/tmp/x"},
		{"/elsewhere/x", "/mnt/x", ""},
	} {
		if got := strings.Join(spec.placesOf(tt.host, tt.inside), " "); got != tt.want {
			t.Errorf("%s: %q", tt.host, got)
		}
	}
}

// removing are mounts that have a file of a user's removed as a container is bound.
type removing struct {
	*poolModel
	removed func(Spec)
}

func (r removing) Rebind(_, to Spec) error { r.removed(to); return nil }

// What is removed while a container is bound to a user is looked up there once it is.
func TestWhatIsRemovedAsAContainerIsBound(t *testing.T) {
	for user, persists := range map[string]bool{"alice": false, "bob": true} {
		synctest.Test(t, func(t *testing.T) { // so it is not looked up yet
			m := newPoolModel(t)
			m.stock(persists)
			for c := range m.e.all {
				c.spec.Platform.GVisor = true
			}
			m.e.cfg.Mounts = removing{m, func(to Spec) {
				m.e.Removed(to.User, to.Mounts[0].Source+"/a", "/home/a")
			}}
			if err := m.take(user, persists, Egress{Profile: "isolated"}); err != nil {
				t.Fatal(err)
			}
			m.e.mu.Lock()
			for c := range m.e.all {
				if !c.lookingUp || strings.Join(c.removed, " ") != "/home/a" {
					t.Errorf("%s: %v, of %q", user, c.lookingUp, c.removed)
				}
			}
			m.e.mu.Unlock()
			m.e.Shutdown()
		})
	}
}

// What is removed while a detached container is made is looked up there once it is.
func TestWhatIsRemovedAsAPersistentContainerIsMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newScriptedEngine(t)
		engine.gVisor = true
		looked := make(chan string, 1)
		engine.Serve(func(p enginetest.Program) {
			agenttest.Requests(p, func(r control.Request) *control.Answer {
				if r.Do == control.LookUp {
					looked <- strings.Join(r.Paths, " ")
				}
				return &control.Answer{}
			})
		})
		e := engine.executor()
		defer e.Shutdown()
		spec := engine.homeSpec("alice")
		spec.Persistent = "s1"
		engine.script(func(do func() error) error {
			defer e.Removed("alice", "/users/alice/a", "/home/a")
			return do()
		}, "Start")
		if _, err := e.StartPersistent(t.Context(), spec, quota.Token{}); err != nil {
			t.Fatal(err)
		}
		waittest.Pass(lookUpAfter + time.Second)
		select {
		case got := <-looked:
			if got != "/home/a" {
				t.Errorf("%q", got)
			}
		default:
			t.Error("it is not looked up")
		}
	})
}
