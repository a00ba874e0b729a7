package dockerexec

import (
	"testing"

	"github.com/daycare-run/sandbox/dockerexec/life"
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

// What is known of a container's end is told after it is gone, too.
func TestWhyAContainerThatIsGoneHasEnded(t *testing.T) {
	engine := newScriptedEngine(t)
	c := engine.executor().newContainer(engine.spec("alice"), "f", "", false)
	c.Do(life.Remove, nil)
	c.Do(life.Removed, nil)
	c.exhausted = &Exhausted{Limit: LimitMemory}
	close(c.learned)
	for range 100 { // one of two is chosen by chance
		if c.Exhausted(t.Context()) == nil {
			t.Fatal("it is not told")
		}
	}
}
