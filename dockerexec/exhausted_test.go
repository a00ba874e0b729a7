package dockerexec

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/cgroup"
)

func TestWordsOfLimits(t *testing.T) {
	for want, x := range map[string]Exhausted{
		"out of memory: this container may use 512Mi (limits.memory), its tmpfs included":    {LimitMemory, 512 << 20},
		"out of memory: this container may use 16Gi (limits.memory), its tmpfs included":     {LimitMemory, 16 << 30},
		"out of memory: this container may use 1000 (limits.memory), its tmpfs included":     {LimitMemory, 1000},
		"out of processes: this container may have 1024 processes and threads (limits.pids)": {LimitPids, 1024},
	} {
		if got := x.Error(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestWhichLimitWasUsedUp(t *testing.T) {
	limits := Limits{Memory: 1 << 30, Pids: 64}
	for name, tt := range map[string]struct {
		before, now cgroup.Refusals
		want        *Exhausted
	}{
		"nothing":           {},
		"nothing new":       {cgroup.Refusals{Killed: 2, Pids: 3}, cgroup.Refusals{Killed: 2, Pids: 3}, nil},
		"memory":            {cgroup.Refusals{Killed: 2}, cgroup.Refusals{Killed: 3}, &Exhausted{LimitMemory, 1 << 30}},
		"processes":         {cgroup.Refusals{Pids: 2}, cgroup.Refusals{Pids: 3}, &Exhausted{LimitPids, 64}},
		"both, memory ends": {cgroup.Refusals{}, cgroup.Refusals{Killed: 1, Pids: 3}, &Exhausted{LimitMemory, 1 << 30}},
	} {
		got := limits.exhausted(tt.before, tt.now)
		if (got == nil) != (tt.want == nil) || got != nil && *got != *tt.want {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// A command whose container ran out of memory was killed, and keeps what it has printed; one whose container was lost otherwise
// has an unknown end. Neither is told what became of the connection.
func TestACommandWhoseContainerIsLost(t *testing.T) {
	for _, outOfMemory := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			engine := newScriptedEngine(t)
			engine.Serve(breaks(func(id string) {
				if outOfMemory {
					engine.End(id, 137, true)
				}
			}))
			e := engine.executor()
			defer e.Shutdown()
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
			if outOfMemory && (err != nil || r.Signal != syscall.SIGKILL || r.Exhausted == nil || *r.Exhausted != Exhausted{LimitMemory, 128 << 20}) {
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
		engine := newScriptedEngine(t)
		engine.exit.Code = 1
		engine.has("alice")
		group := "/docker/" + strings.Repeat("0", 63) + "1/"
		oom, pids := "memory"+group+"memory.oom_control", "pids"+group+"pids.events"
		e := engine.executor()
		e.cgroups = hostMemory(t, "", map[string]string{oom: "oom_kill 2\n", pids: "max 3\n", "memory" + group + "memory.usage_in_bytes": "4096\n"})
		e.Start(t.Context(), anything{})
		defer e.Shutdown()
		if r, err := e.Run(t.Context(), engine.spec("alice"), aCommand, discard); err != nil || engine.Made() != 1 || r.Exhausted != nil {
			t.Errorf("in %d containers: %+v, %v", engine.Made(), r.Exhausted, err)
		}
		if err := os.WriteFile(filepath.Join(e.cgroups.ControlGroups, oom), []byte("oom_kill 3\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if r, err := e.Run(t.Context(), engine.spec("alice"), aCommand, discard); err != nil || r.Exhausted == nil || r.Exhausted.Limit != LimitMemory {
			t.Errorf("after a kill: %+v, %v", r.Exhausted, err)
		}
	})
}

// gVisor's own threads on the host do not count as the commands', and commands cannot use up what it needs.
func TestLimitOfProcesses(t *testing.T) {
	p := Platform{Limits: Limits{Pids: 1024, OpenFiles: 99}}
	if n := p.hostPids(); n != 1024 || len(p.rlimits()) != 2 {
		t.Errorf("under runc: %d, %+v", n, p.rlimits())
	}
	p.GVisor = true
	limits := p.rlimits()
	if last := limits[len(limits)-1]; p.hostPids() != 2304 || last.Type != "RLIMIT_NPROC" || last.Hard != 1024 || last.Soft != 1024 {
		t.Errorf("under gVisor: %d, %+v", p.hostPids(), last)
	}
	if p.Limits.Pids = 1 << 22; p.hostPids() != 1<<22 {
		t.Errorf("the most that a limit may be: %d", p.hostPids())
	}
}
