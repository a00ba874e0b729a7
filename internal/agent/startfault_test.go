package agent

import (
	"errors"
	"syscall"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/agent/spawn"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

func TestStartFaults(t *testing.T) {
	start := launch.Command{Process: specs.Process{Args: []string{"tool"}, Cwd: "/home"}}
	for _, tt := range []struct {
		err  error
		want wire.Exit
	}{
		{&spawn.Error{Stage: spawn.StageDir, Errno: syscall.ENOENT}, wire.Exit{Code: 126, Fault: wire.FaultCwd, Message: "/home: no such file or directory"}},
		{&spawn.Error{Stage: spawn.StageSearch, Errno: syscall.ENOENT}, wire.Exit{Code: 127, Fault: wire.FaultCommand, Message: "tool: command not found"}},
		{&spawn.Error{Stage: spawn.StageExec, Errno: syscall.EACCES}, wire.Exit{Code: 126, Fault: wire.FaultCommand, Message: "tool: permission denied"}},
		// Wherever another process has stopped it.
		{&spawn.Error{Stage: spawn.StageDir, Errno: syscall.ETIME}, wire.Exit{Code: 126, Fault: wire.FaultCommand, Message: "tool: it did not start within 30s: another process stopped it, or the machine is too busy"}},
		{&spawn.Error{Stage: spawn.StageExec, Errno: syscall.ETIME}, wire.Exit{Code: 126, Fault: wire.FaultCommand, Message: "tool: it did not start within 30s: another process stopped it, or the machine is too busy"}},
		{errors.New("no pipe"), wire.Exit{Code: 126, Fault: wire.FaultAgent, Message: "no pipe"}},
	} {
		if got := startFault(start, tt.err); got.Code != tt.want.Code || got.Fault != tt.want.Fault || got.Message != tt.want.Message {
			t.Errorf("%v: %+v", tt.err, got)
		}
	}
}
