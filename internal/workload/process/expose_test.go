package process

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/quota"
)

func TestReadyIsChecked(t *testing.T) {
	s := newHost(t).serve()
	for _, tt := range []struct {
		ready Ready
		want  string // "" is none
	}{
		{Ready{Port: 80}, ""},
		{Ready{Command: "true", IntervalMs: 100, TimeoutMs: 60_000}, ""},
		{Ready{}, "neither command nor port"},
		{Ready{Command: "true", Port: 80}, "exclude each other"},
		{Ready{Command: " \n"}, "ready.command is blank"},
		{Ready{Command: strings.Repeat("x", maxReadyCommand+1)}, "ready.command has 65537 bytes"},
		{Ready{Command: "a\x00"}, "ready.command has a NUL byte"},
		{Ready{Port: -1}, "ready.port -1"},
		{Ready{Port: 65536}, "ready.port 65536"},
		{Ready{Port: 80, IntervalMs: 99}, "ready.intervalMs 99"},
		{Ready{Port: 80, IntervalMs: 60_001}, "ready.intervalMs 60001"},
		{Ready{Port: 80, TimeoutMs: 99}, "ready.timeoutMs 99"},
		{Ready{Port: 80, TimeoutMs: -1}, "ready.timeoutMs -1"},
	} {
		asked := tt.ready
		r, _, err := s.Start(t.Context(), Intent{UserID: "alice", Command: "true", Ready: &asked}, quota.Token{}, nil, nil)
		switch {
		case tt.want != "":
			if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%+v: %v, want %s", tt.ready, err, tt.want)
			}
		case err != nil:
			t.Errorf("%+v: %v", tt.ready, err)
		case r.Ready.IntervalMs == 0 || r.Ready.TimeoutMs == 0 || asked != tt.ready:
			t.Errorf("%+v became %+v", asked, *r.Ready)
		}
	}
}

// Readiness is told of a process that runs, and kept nowhere.
func TestReadinessIsOfNow(t *testing.T) {
	h := newHost(t)
	s := h.serve()
	asks, does := s.start(Intent{Ready: &Ready{Port: 80}}), s.start(Intent{})
	s.run.readiness = Readiness{OK: true, Since: monday, Message: "a word of its own"}
	for _, r := range append(s.List("alice"), s.get(asks.ID), s.get(does.ID)) {
		if got, want := r.Readiness.OK, r.ID == asks.ID; got != want {
			t.Errorf("%s is ready: %v", r.ID, got)
		}
	}
	if r := s.exits(asks.ID, Exit{}); r.Readiness != (Readiness{}) || r.Ready.Port != 80 {
		t.Errorf("one that has ended: %+v", r)
	}
	text, err := os.ReadFile(h.dir() + "/" + asks.ID + "/" + recordFile)
	if err != nil || strings.Contains(string(text), "a word of its own") {
		t.Errorf("%s, %v", text, err)
	}
}

// freePort is one at which nobody listens. It is below those that the kernel gives to connections: one of these may
// be another's before it is used here.
func freePort(t *testing.T) PortRange {
	t.Helper()
	const first, count = 31_000, 1_500
	for i := range count {
		port := first + (os.Getpid()+i)%count // others who run these tests begin elsewhere
		listener, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			_ = listener.Close()
			return PortRange{First: port, Last: port}
		}
	}
	t.Fatal("no port is free")
	return PortRange{}
}

// dialled connects to a port and says what the process's runner was asked for; "" is that nobody listens.
func dialled(t *testing.T, s *service, port int) string {
	t.Helper()
	asked := make(chan string, 1)
	s.run.mu.Lock()
	s.run.onDial = func(i Instance, port int) (Conn, error) {
		asked <- fmt.Sprintf("%s:%d", i.Container, port)
		return nil, errors.New("no more was wanted")
	}
	s.run.mu.Unlock()
	conn, err := net.Dial("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return ""
	case err == nil: // else it was broken at once
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		_, _ = conn.Read(make([]byte, 1))
		_ = conn.Close()
	}
	select {
	case got := <-asked:
		return got
	default:
		return "not asked"
	}
}

// A port leads to the container that the process runs in, over restarts of both, until it has ended for good.
func TestPortsLeadToWhatRuns(t *testing.T) {
	h := newHost(t)
	h.ports = freePort(t)
	s := h.serve()
	p := s.start(Intent{KeepAlive: true, Expose: []Port{{Port: 8080}}})
	at := func(s *service, want string) {
		t.Helper()
		if got := dialled(t, s, h.ports.First); got != want {
			t.Errorf("a connection: %q, want %q", got, want)
		}
	}
	if len(p.Expose) != 1 || p.Expose[0].HostPort != h.ports.First {
		t.Fatalf("%+v", p.Expose)
	}
	at(s, "c1:8080")
	s.exits(p.ID, Exit{Code: 1})
	at(s, "not asked")
	s.pass(2 * time.Second)
	at(s, "c2:8080")
	s.shutdown()
	at(s, "")
	again := h.serve()
	at(again, "c2:8080")
	if r := again.get(p.ID); r.Expose[0].Fault != "" {
		t.Errorf("%+v", r.Expose)
	}
	if r, err := again.Stop(context.Background(), "alice", p.ID, syscall.SIGTERM); err != nil || r.Expose != nil {
		t.Fatalf("%+v, %v", r.Expose, err)
	}
	at(again, "")
}

// A process that cannot have its ports is not started, and one that cannot be started frees them.
func TestPortsComeFirst(t *testing.T) {
	h := newHost(t)
	s := h.serve()
	wanted := Intent{UserID: "alice", Command: "true", Expose: []Port{{Port: 8080}}}
	if _, _, err := s.Start(t.Context(), wanted, quota.Token{}, nil, nil); !errdefs.IsPermissionDenied(err) {
		t.Errorf("where none are allowed: %v", err)
	}
	ports := freePort(t)
	s.cfg.Ports.SetRange(ports)
	taken, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", ports.First))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Start(t.Context(), wanted, quota.Token{}, nil, nil); !errdefs.IsConflict(err) {
		t.Errorf("where it is taken: %v", err)
	}
	_ = taken.Close()
	s.run.onStart = func(Record) error { return errTest }
	if _, _, err := s.Start(t.Context(), wanted, quota.Token{}, nil, nil); !errors.Is(err, errTest) {
		t.Errorf("%v", err)
	}
	if got := s.run.done(); got != "" || len(s.List("alice")) != 0 {
		t.Errorf("%s; %v", got, s.List("alice"))
	}
	s.run.onStart = nil
	s.start(wanted)
}
