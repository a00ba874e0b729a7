package process

import (
	"slices"
	"testing"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

func TestWhoIsReached(t *testing.T) {
	web := Record{Intent: Intent{Name: "web", SandboxID: "box"}}
	unnamed := Record{Intent: Intent{SandboxID: "box"}}
	for _, tt := range []struct {
		name    string
		reaches []dockerexec.Reach
		is      Record
		want    bool
	}{
		{"nothing", nil, web, false},
		{"by name", []dockerexec.Reach{{Name: "web"}}, web, true},
		{"another name", []dockerexec.Reach{{Name: "we"}, {Name: "web2"}}, web, false},
		{"its own", []dockerexec.Reach{{Name: "web", Sandbox: "box"}}, web, true},
		{"another sandbox's", []dockerexec.Reach{{Name: "web", Sandbox: "box2"}, {Sandbox: "box2"}}, web, false},
		{"all of its own", []dockerexec.Reach{{Name: "x"}, {Sandbox: "box"}}, web, true},
		{"without a name", []dockerexec.Reach{{Sandbox: "box"}}, unnamed, true},
		{"without a name, by name", []dockerexec.Reach{{Name: "web"}}, unnamed, false},
	} {
		if got := tt.is.ReachedBy(tt.reaches); got != tt.want {
			t.Errorf("%s: %t", tt.name, got)
		}
	}
}

// Of processes that listen at one port, the first by name has it; there are never too many ports.
func TestPortsOfSeveralProcesses(t *testing.T) {
	m := &Manager{}
	named := func(name string, ports ...int) *toldPorts {
		return &toldPorts{ports: ports, by: m.newProcess(Record{ID: "p-" + name, Intent: Intent{Name: name}})}
	}
	many := []int{}
	for port := range 2 * wire.MaxPorts {
		many = append(many, 20_000+port)
	}
	a, b, c := named("a", 80, 90), named("b", 80, 100), named("c", many...)
	f := &offer{behind: map[int]*process{70: a.by}, told: map[Identity]*toldPorts{{Container: "1"}: c, {Container: "2"}: b, {Container: "3"}: a}}
	ports := f.sum()
	if len(ports) != wire.MaxPorts || !slices.Equal(ports[:3], []int{80, 90, 100}) {
		t.Errorf("%v", ports)
	}
	if f.behind[80] != a.by || f.behind[100] != b.by || f.behind[70] != nil {
		t.Errorf("%v", f.behind)
	}
}
