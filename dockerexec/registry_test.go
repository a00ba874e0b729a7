package dockerexec

import (
	"testing"

	"github.com/daycare-run/sandbox/dockerexec/life"
)

// inPlace returns a container that is Ready, without having been made, in the registry. calls have it.
func (e *Executor) inPlace(t *testing.T, spec Spec, id string, calls int) *Container {
	t.Helper()
	c := e.newContainer(spec, spec.Fingerprint(), "", false)
	c.Do(life.Begin, nil)
	c.Name(id)
	for range calls {
		if _, _, err := c.Join(calls); err != nil {
			t.Fatal(err)
		}
	}
	c.Do(life.Succeed, nil)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.enlist(c)
	e.ids[id] = c
	if !spec.isDetached() {
		e.calls[c.fingerprint] = c
	}
	return c
}

// A detached container is expelled while it is made, or is stopped once it has been made, and then
// its exit code is somebody's to read: never is one removed whose maker has succeeded.
func TestExpellingAsTheMakerSucceeds(t *testing.T) {
	engine := newScriptedEngine(t)
	e := engine.executor()
	spec := engine.persistentSpec("alice")
	for i := range 9000 {
		c := e.newContainer(spec, spec.Fingerprint(), "", false)
		c.Do(life.Begin, nil)
		begun, done := make(chan struct{}), make(chan struct{})
		go func() {
			close(begun)
			for range i / 30 % 30 {
				c.Now()
			}
			e.expel(c)
			close(done)
		}()
		<-begun
		for range i % 30 { // so that either may come first
			c.Now()
		}
		succeeded := c.Do(life.Succeed, nil) != life.Refused
		<-done
		if removed := c.is(life.Leaving); removed == succeeded {
			t.Fatalf("its maker succeeded: %v, and it is removed: %v", succeeded, removed)
		}
	}
	e.Shutdown()
}
