package warm

import (
	"testing"
	"time"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/events"
)

// Who is told of what Shutdown cuts off may look at the Executor.
func TestIncidentsAtShutdownAreToldWithoutLocks(t *testing.T) {
	engine := newLab(t)
	var e service
	cut := 0
	engine.events = events.New(func(of *events.Event) {
		if i, is := of.Detail.(dockerexec.Incident); is && i.Commands > 0 {
			cut += i.Commands + len(e.Containers())
		}
	})
	e = engine.serve()
	c, _, err := e.acquire(t.Context(), engine.spec("alice"), aCommand.Token)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Command(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { e.stop(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Fatal("it waits for itself")
	}
	if cut != 1 {
		t.Error(cut)
	}
}
