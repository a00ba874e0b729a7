package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/internal/waittest"
)

// freeRange is n ports in a row that nobody listens at, below those that the kernel gives to connections.
func freeRange(t *testing.T, n int) PortRange {
	t.Helper()
	const begin, count = 21_000, 9_000
candidates:
	for i := range count / n {
		first := begin + (os.Getpid()+i)%(count/n)*n // others who run these tests begin elsewhere
		for port := first; port < first+n; port++ {
			listener, err := listenAt(port)
			if err != nil {
				continue candidates
			}
			_ = listener.Close()
		}
		return PortRange{first, first + n - 1}
	}
	t.Fatal("no ports are free")
	return PortRange{}
}

func TestPortsAreChosen(t *testing.T) {
	allowed := freeRange(t, 3)
	l := newListeners(t, allowed)
	none := func(context.Context, int) (Conn, error) { return nil, errors.New("none") }
	open := func(name string, ports ...Port) string {
		opened, err := l.Open("user-"+name, name, ports, none)
		var text []string
		for _, p := range opened {
			text = append(text, fmt.Sprintf("%d at +%d%s", p.Port, p.HostPort-allowed.First, p.Fault))
		}
		switch {
		case errdefs.IsConflict(err):
			text = append(text, "conflict")
		case errdefs.IsPermissionDenied(err):
			text = append(text, "denied")
		case err != nil:
			text = append(text, err.Error())
		}
		return strings.Join(text, ", ")
	}
	for _, tt := range []struct {
		name, want string
		ports      []Port
	}{
		{"named", "80 at +1", []Port{{Port: 80, HostPort: allowed.First + 1}}},
		{"taken", "conflict", []Port{{Port: 80}, {Port: 81, HostPort: allowed.First + 1}}},
		{"the next ones free", "80 at +0, 81 at +2", []Port{{Port: 80}, {Port: 81}}},
		{"none left", "conflict", []Port{{Port: 80}}},
		{"out of range", "denied", []Port{{Port: 80, HostPort: allowed.Last + 1}}},
		{"nothing", "", nil},
	} {
		if got := open(tt.name, tt.ports...); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
	l.Close("the next ones free")
	l.Close("named")
	if got, want := open("named first", Port{Port: 80}, Port{Port: 81, HostPort: allowed.First}), "80 at +1, 81 at +0"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	l.Close("named first")
	l.SetRange(PortRange{})
	if got := open("not any more", Port{Port: 80}); got != "denied" {
		t.Error(got)
	}
}

// After a restart of the service what can be listened at is, and what cannot says why.
func TestPortsAreOpenedAgain(t *testing.T) {
	allowed := freeRange(t, 2)
	l := newListeners(t, allowed)
	taken, err := listenAt(allowed.First)
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	dial, came := inside(t)
	was := []Port{{Port: 80, HostPort: allowed.First}, {Port: 81, HostPort: allowed.Last, Fault: "earlier"}, {Port: 82, HostPort: 80}}
	l.Reopen("user-p", "p", was, dial)
	got := l.Ports("p")
	want := []Port{
		{Port: 80, HostPort: allowed.First, Fault: fmt.Sprintf("expose[0].hostPort %d cannot be listened on: address already in use", allowed.First)},
		{Port: 81, HostPort: allowed.Last},
		{Port: 82, HostPort: 80, Fault: fmt.Sprintf("expose[2].hostPort 80 is not one of %s, which the setting processes.exposePorts allows", allowed)},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
	connect(t, allowed.Last)
	<-came
	l.Close("p")
	if left := l.Ports("p"); left != nil {
		t.Errorf("%+v", left)
	}
}

// A port that was in use is listened at when it is free.
func TestPortsAreTriedAgain(t *testing.T) {
	l := newListeners(t, freeRange(t, 1))
	l.retryAfter = time.Millisecond
	taken, err := listenAt(l.allowed.First)
	if err != nil {
		t.Fatal(err)
	}
	l.Reopen("user-p", "p", []Port{{Port: 80, HostPort: l.allowed.First}}, nil)
	if l.Ports("p")[0].Fault == "" {
		t.Error("no fault")
	}
	_ = taken.Close()
	waittest.Until(t, "the port is listened at", func() bool { return l.Ports("p")[0].Fault == "" })
}

func TestCheck(t *testing.T) {
	l := newListeners(t, PortRange{2000, 2999})
	many := make([]Port, maxPorts+1)
	for i := range many {
		many[i].Port = i + 1
	}
	for _, tt := range []struct {
		want  string
		ports []Port
	}{
		{"", nil},
		{"", []Port{{Port: 1}, {Port: 65535}, {Port: 3, HostPort: 2000}, {Port: 4, HostPort: 2999}}},
		{"expose[0].port 0", []Port{{}}},
		{"expose[1].port 65536", []Port{{Port: 1}, {Port: 65536}}},
		{"expose[0].hostPort -1", []Port{{Port: 1, HostPort: -1}}},
		{"expose[0].hostPort 65536", []Port{{Port: 1, HostPort: 65536}}},
		{"expose[0].hostPort 1999 is not one of 2000-2999", []Port{{Port: 1, HostPort: 1999}}},
		{"expose[0].hostPort 3000 is not one of 2000-2999", []Port{{Port: 1, HostPort: 3000}}},
		{"expose[1].port 1 is listed twice", []Port{{Port: 1}, {Port: 1}}},
		{"expose[1].hostPort 2000 is listed twice", []Port{{Port: 1, HostPort: 2000}, {Port: 2, HostPort: 2000}}},
		{"more than 16", many},
	} {
		err := l.Check(tt.ports)
		if got := fmt.Sprint(err); (tt.want == "") != (err == nil) || err != nil && !strings.Contains(got, tt.want) {
			t.Errorf("%v: %v, want %q", tt.ports, err, tt.want)
		}
	}
	l.SetRange(PortRange{})
	if err := l.Check([]Port{{Port: 80}}); !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), "processes.exposePorts") {
		t.Errorf("%v", err)
	}
	if err := l.Check(nil); err != nil {
		t.Errorf("%v", err)
	}
}
