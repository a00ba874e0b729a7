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
	e.all[c], e.ids[id] = true, c
	if !spec.isDetached() {
		e.calls[c.fingerprint] = c
	}
	return c
}
