package process

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

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
		return &toldPorts{ports: ports, name: name, by: m.newProcess(Record{ID: "p-" + name})}
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

// Who is reached is asked, again when its agent has gone, and forgotten when it has ended.
func TestProcessesAreAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newHost(t).serve()
		ctx, cancel := context.WithCancel(t.Context())
		f := &offer{of: NewOffers(m.Manager), owner: &owner{user: "alice", ctx: ctx}, told: map[Identity]*toldPorts{},
			behind: map[int]*process{}, wake: make(chan struct{}, 1), reaches: []dockerexec.Reach{{Name: "web"}}}
		defer f.work.Wait()
		defer cancel()
		tells, asked := make(chan []int), 0
		m.run.onPorts = func(ctx context.Context, _ Instance, each func([]int) bool) error {
			asked++
			for {
				select {
				case ports := <-tells:
					if ports == nil {
						return errors.New("its agent has gone")
					}
					each(ports)
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		}
		p := m.start(Intent{UserID: "alice", Name: "web", Command: "x"})
		m.start(Intent{UserID: "alice", Name: "db", Command: "x"})
		m.start(Intent{UserID: "bob", Name: "web", Command: "x"})
		step := func(want []int, waits bool) {
			t.Helper()
			synctest.Wait()
			waiting := f.ask()
			synctest.Wait()
			if got := f.sum(); !slices.Equal(got, want) || waiting != waits {
				t.Errorf("%v, waits: %t; want %v, %t", got, waiting, want, waits)
			}
		}
		step(nil, true)
		tells <- []int{80, 443}
		step([]int{80, 443}, false)
		tells <- nil
		step([]int{80, 443}, false) // until it was asked again
		time.Sleep(offerInterval)   // on a clock of its own
		step([]int{80, 443}, false)
		tells <- nil
		step(nil, false)
		if !f.told[f.only()].fails || asked != 2 {
			t.Errorf("asked %d times", asked)
		}
		time.Sleep(offerAgain)
		step(nil, false)
		tells <- []int{8000}
		step([]int{8000}, false)
		if asked != 3 {
			t.Errorf("asked %d times", asked)
		}
		if _, err := m.Stop(t.Context(), "alice", p.ID, 0); err != nil {
			t.Fatal(err)
		}
		step(nil, false)
		if len(f.told) != 0 {
			t.Error("an ended process is not forgotten")
		}
	})
}

// only returns the one instance that there is.
func (f *offer) only() (id Identity) {
	for id = range f.told {
	}
	return id
}
