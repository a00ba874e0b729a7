package warm

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
)

// A command whose container ran out of memory was killed, and keeps what it has printed; one whose container was lost otherwise
// has an unknown end. Neither is told what became of the connection.
func TestACommandWhoseContainerIsLost(t *testing.T) {
	for _, outOfMemory := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			engine := newLab(t)
			engine.Serve(breaks(func(id string) {
				if outOfMemory {
					engine.End(id, 137, true)
				}
			}))
			e := engine.serve()
			defer e.stop()
			spec := engine.spec("alice")
			spec.Platform.Limits.Memory = 128 << 20
			var printed strings.Builder
			r, err := e.Run(t.Context(), spec, aCommand, func(_ session.Stream, data []byte) error {
				printed.Write(data)
				return nil
			})
			if printed.String() != "so far" {
				t.Errorf("printed %q", printed.String())
			}
			if outOfMemory && (err != nil || r.Signal != syscall.SIGKILL || r.Exhausted == nil || *r.Exhausted != dockerexec.Exhausted{Limit: dockerexec.LimitMemory, Value: 128 << 20}) {
				t.Errorf("out of memory: %+v, %v", r, err)
			}
			if !outOfMemory && (!errors.Is(err, session.ErrBroken) || err.Error() != session.ErrBroken.Error()) {
				t.Errorf("lost: %+v, %v", r, err)
			}
		})
	}
}

// What was killed in a container before this service found it is not why a later command has failed.
func TestEarlierKillsAreNoExhaustion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newLab(t)
		engine.exit.Code = 1
		engine.has("alice")
		group := "/docker/" + firstID + "/"
		oom, pids := "memory"+group+"memory.oom_control", "pids"+group+"pids.events"
		engine.cgroups = hostMemory(t, "", map[string]string{oom: "oom_kill 2\n", pids: "max 3\n", "memory" + group + "memory.usage_in_bytes": "4096\n"})
		e := engine.serve()
		defer e.stop()
		if r, err := e.Run(t.Context(), engine.spec("alice"), aCommand, discard); err != nil || engine.Made() != 1 || r.Exhausted != nil {
			t.Errorf("in %d containers: %+v, %v", engine.Made(), r.Exhausted, err)
		}
		if err := os.WriteFile(filepath.Join(engine.cgroups.ControlGroups, oom), []byte("oom_kill 3\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if r, err := e.Run(t.Context(), engine.spec("alice"), aCommand, discard); err != nil || r.Exhausted == nil || r.Exhausted.Limit != dockerexec.LimitMemory {
			t.Errorf("after a kill: %+v, %v", r.Exhausted, err)
		}
	})
}
