package e2b

import (
	"syscall"
	"testing"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/e2b/processpb"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/workload/persistent"
)

// A command that was killed for memory has the exit code that a shell gives it, and the reason.
func TestTheEndOfACommand(t *testing.T) {
	memory := &dockerexec.Exhausted{Limit: dockerexec.LimitMemory, Value: 512 << 20}
	const words = "; out of memory: this container may use 512Mi (limits.memory), its tmpfs included"
	for name, tt := range map[string]struct {
		end  persistent.End
		code int32
		text string // of the error; empty for none
	}{
		"success":            {persistent.End{}, 0, ""},
		"failure":            {persistent.End{Code: 3}, 3, "exit status 3"},
		"a signal":           {persistent.End{Signal: syscall.SIGKILL}, -1, "signal: killed"},
		"memory":             {persistent.End{Signal: syscall.SIGKILL, Exhausted: memory}, 137, "signal: killed" + words},
		"memory, by a shell": {persistent.End{Code: 137, Exhausted: memory}, 137, "exit status 137" + words},
	} {
		err := sendEnd(tt.end, hintsOf(tt.end, nil, false), func() ([]decisions.Summary, int) { return nil, 0 }, func(e *processpb.ProcessEvent) error {
			if end := e.GetEnd(); end.GetExitCode() != tt.code || end.GetError() != tt.text {
				t.Errorf("%s: %v", name, end)
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
