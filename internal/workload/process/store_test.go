package process

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/internal/quota"

	"github.com/daycare-run/sandbox/internal/plan"
)

func TestRecordsAreReadBackAsTheyWere(t *testing.T) {
	h := newHost(t)
	s := h.serve()
	r, _, err := s.Start(t.Context(), Intent{
		UserID: "alice", SandboxID: "box", Name: "x", Argv: []string{"a", "b c"}, Login: true, Cwd: "/home", Home: "/home/x",
		Env: map[string]string{"A": "b"}, Grants: []string{"@network"}, AllowedDomains: []string{"example.org"},
		PackageManagers: []string{"go"}, Restrictions: plan.Restrictions{DenyRead: []string{"/home/a"}, DenyWrite: []string{"/home/b"}, DeniedDomains: []string{"a.example.org"}},
		Egress: Egress{"isolated", []string{"example.org"}, []string{"a.example.org"}}, KeepAlive: true,
	}, quota.Token{}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	crashed := s.exits(s.start(Intent{KeepAlive: true}).ID, Exit{Code: 4, Lost: 9})
	s.shutdown()
	s = h.open()
	for _, want := range []Record{r, crashed} {
		if diff := cmp.Diff(want, s.get(want.ID)); diff != "" {
			t.Errorf("read back otherwise: %s", diff)
		}
	}
}

func TestADamagedRecordIsSetAsideAndTheOthersLoad(t *testing.T) {
	h := newHost(t)
	s := h.serve()
	good, bad := s.start(Intent{}), s.start(Intent{KeepAlive: true})
	s.shutdown()
	name := filepath.Join(h.dir(), bad.ID, recordFile)
	whole, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for size := range len(whole) {
		if err := os.WriteFile(name, whole[:size], 0o600); err != nil {
			t.Fatal(err)
		}
		s := h.open()
		if list := s.List("alice"); len(list) != 1 || list[0].ID != good.ID {
			t.Fatalf("cut to %d bytes: %d records were read", size, len(list))
		}
		if problems := s.Problems(); len(problems) != 1 || !strings.Contains(problems[0], bad.ID+".damaged") {
			t.Fatalf("cut to %d bytes: it says %q", size, problems)
		}
		s.shutdown()
		if err := os.Rename(filepath.Join(h.dir(), bad.ID+".damaged"), filepath.Join(h.dir(), bad.ID)); err != nil {
			t.Fatal(err)
		}
	}
	// Nobody could stop what has no record.
	_ = os.WriteFile(name, nil, 0o600)
	if s = h.serve(); len(h.of(bad.ID)) != 0 || len(h.of(good.ID)) != 1 {
		t.Errorf("of the damaged one %v run, of the good one %v", h.of(bad.ID), h.of(good.ID))
	}
	s.shutdown()
	// The second one of that name, and the first is still told.
	if err := os.MkdirAll(filepath.Join(h.dir(), bad.ID), 0o700); err != nil {
		t.Fatal(err)
	}
	if problems := h.open().Problems(); len(problems) != 2 {
		t.Errorf("it says %q", problems)
	}
}

func TestRecordsThatSayTooMuch(t *testing.T) {
	good := Record{ID: "p-aaaaaaaaaaaa", Intent: Intent{UserID: "alice", Command: "x"}, DesiredState: Running, Status: Exited, CreatedAt: monday}
	for want, change := range map[string]func(*Record){
		"":                    func(*Record) {},
		`about "p-b"`:         func(r *Record) { r.ID = "p-b" },
		"no userId":           func(r *Record) { r.UserID = "" },
		"command and argv":    func(r *Record) { r.Argv = []string{"x"} },
		`desiredState "on"`:   func(r *Record) { r.DesiredState = "on" },
		`status "off"`:        func(r *Record) { r.Status = "off" },
		"runs in no containe": func(r *Record) { r.Status = Running },
		"ready has neither":   func(r *Record) { r.Ready = &Ready{} },
		"expose[0].port 0":    func(r *Record) { r.Expose = []Port{{HostPort: 8080}} },
		"expose[1].port 7000": func(r *Record) { r.Expose = []Port{{Port: 80}, {Port: 70_000}} },
		"expose[0].hostPort ": func(r *Record) { r.Expose = []Port{{Port: 80, HostPort: -1}} },
		"expose[1].hostPort ": func(r *Record) { r.Expose = []Port{{Port: 80, HostPort: 8080}, {Port: 81, HostPort: 8080}} },
		"more than 16": func(r *Record) {
			for i := range maxPorts + 1 {
				r.Expose = append(r.Expose, Port{Port: i + 1})
			}
		},
	} {
		r := good
		change(&r)
		text, err := r.encode()
		if err != nil {
			t.Fatal(err)
		}
		_, err = decode(good.ID, text)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
		if _, err := decode(good.ID, []byte(strings.Replace(string(text), `"version": 1`, `"version": 2`, 1))); err == nil {
			t.Error("a version of later was read")
		}
	}
}

// A record whose ports cannot be is set aside, and nothing listens for it.
func TestARecordWithImpossiblePortsIsSetAside(t *testing.T) {
	h := newHost(t)
	h.ports = freePort(t)
	s := h.serve()
	p := s.start(Intent{KeepAlive: true, Expose: []Port{{Port: 8080}}})
	s.shutdown()
	name := filepath.Join(h.dir(), p.ID, recordFile)
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(text), `"port": 8080`, `"port": 80800`, 1)
	if changed == string(text) {
		t.Fatalf("no port in %s", text)
	}
	if err := os.WriteFile(name, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	s = h.serve()
	if problems := s.Problems(); len(problems) != 1 || !strings.Contains(problems[0], "expose[0].port 80800") || !strings.Contains(problems[0], p.ID+damaged) {
		t.Errorf("it says %q", problems)
	}
	if list := s.List("alice"); len(list) != 0 {
		t.Errorf("read %+v", list)
	}
	if got := dialled(t, s, h.ports.First); got != "" {
		t.Errorf("a connection: %s", got)
	}
}

func TestCrashLeftoversAreRemoved(t *testing.T) {
	h := newHost(t)
	for _, name := range []string{"p-aaaaaaaaaaaa.new", "p-bbbbbbbbbbbb.removed"} {
		if err := os.MkdirAll(filepath.Join(h.dir(), name, "log"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if problems := h.serve().Problems(); len(problems) != 0 {
		t.Errorf("it says %q", problems)
	}
	if left, _ := filepath.Glob(filepath.Join(h.dir(), "p-*")); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

func TestADiskThatTakesNothing(t *testing.T) {
	h := newHost(t)
	s := h.serve()
	r := s.start(Intent{KeepAlive: true})
	// A directory in the way of the file.
	block := filepath.Join(h.dir(), r.ID, recordFile)
	if err := errors.Join(os.Remove(block), os.MkdirAll(filepath.Join(block, "x"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Stop(t.Context(), "alice", r.ID, syscall.SIGTERM); err == nil || h.done() != "start" {
		t.Errorf("stopped without a record of it: %v, %s", err, h.done())
	}
	// What has happened has happened.
	says(t, s.exits(r.ID, Exit{Code: 1}), "running/exited exit 1, waits 2000ms")
	s.pass(2 * time.Second)
	if r = s.get(r.ID); len(h.of(r.ID)) != 0 || r.Reason == "" {
		t.Errorf("it runs in %v without a record of it", h.of(r.ID))
	}
	if err := os.RemoveAll(block); err != nil {
		t.Fatal(err)
	}
	s.pass(4 * time.Second)
	says(t, s.get(r.ID), "running/running exit 1, restarts 2, pid")
}
