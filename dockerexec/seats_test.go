package dockerexec

import (
	"fmt"
	"os"
	"testing"
	"testing/synctest"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/quota"
)

// TestNothingStartsWithoutASeat has a host lose its user before Docker is asked to start a container, and meanwhile.
func TestNothingStartsWithoutASeat(t *testing.T) {
	for refused := 1; refused <= 2; refused++ {
		synctest.Test(t, func(t *testing.T) {
			engine := newScriptedEngine(t)
			e := engine.executor()
			defer e.Shutdown()
			asked := 0
			e.gate.Store(new(Gate(starts(func(user string) error {
				if user != "alice" || asked < refused && e.Starting() != 1 { // later, the container is given up
					t.Errorf("asked about %q while %d are started", user, e.Starting())
				}
				if asked++; asked >= refused {
					return fmt.Errorf("it is another host's: %w", cerrdefs.ErrUnavailable)
				}
				return nil
			}))))
			if err := e.run(t.Context(), engine.spec("alice")); !cerrdefs.IsUnavailable(err) {
				t.Errorf("%v", err)
			}
			asked = 0
			if _, err := e.StartProcess(t.Context(), engine.spec("alice"), quota.Token{}); !cerrdefs.IsUnavailable(err) {
				t.Errorf("a process: %v", err)
			}
			synctest.Wait()
			if len(engine.Containers()) != 0 || e.Starting() != 0 {
				t.Errorf("%d containers are left, %d are started", len(engine.Containers()), e.Starting())
			}
		})
	}
}

// A host that has lost its user gives the user no home, neither while it binds nor after a restart, and runs nothing
// in one that it has just given.
func TestNothingIsBoundWithoutASeat(t *testing.T) {
	lost := fmt.Errorf("it is another host's: %w", cerrdefs.ErrUnavailable)
	for refused := 1; refused <= 2; refused++ {
		m := newPoolModel(t)
		m.stock(false)
		asked := 0
		m.e.gate.Store(new(Gate(starts(func(user string) error {
			if user != "alice" {
				t.Errorf("asked about %q", user)
			}
			if asked++; asked >= refused {
				return lost
			}
			return nil
		}))))
		if err := m.take("alice", false, Egress{Profile: "isolated"}); !cerrdefs.IsUnavailable(err) {
			t.Fatalf("it is bound, or not for that reason: %v", err)
		}
		if _, err := os.Lstat(m.home("alice")); (err == nil) != (refused == 2) {
			t.Errorf("refused at question %d: %v", refused, err)
		}
		m.e.work.Wait()
		if all := m.e.list(); len(m.e.bound)+len(all) > 0 {
			t.Errorf("%v are bound, %d are left", m.e.bound, len(all))
		}
		m.e.Shutdown()
	}
}

// What a killed service had recorded but not done is not done by a service that does not hold the user.
func TestNothingIsRecoveredWithoutASeat(t *testing.T) {
	m := newPoolModel(t)
	m.stock(false)
	if m.bind("alice", false, beforeRename) {
		t.Fatal("it was not killed")
	}
	m.may = func(string) error { return cerrdefs.ErrUnavailable }
	m.restart()
	if _, err := os.Lstat(m.home("alice")); err == nil || len(m.e.bound) > 0 {
		t.Errorf("the home is given: %v, %v", err, m.e.bound)
	}
}

// Hosts that share usersDir have folders of their own in the pool, also where one's dataDir is a copy of another's.
func TestHostsOfOnePoolDir(t *testing.T) {
	dir := t.TempDir()
	e := New(refusing(t), Config{Host: "host-1", Instance: "0123456789abcdef", DataDir: t.TempDir(), PoolDir: dir})
	defer e.Shutdown()
	e.gate.Store(new(Gate(anything{})))
	user, err := e.NewPoolUser()
	if err != nil || !e.IsOfPool(user) || e.IsOfPool("host-1") {
		t.Errorf("%q, %v", user, err)
	}
	if err := os.Mkdir(e.poolFolder(user), 0o700); err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]int{"host-1": 1, "host-11": 0, "host-2": 0, "": 0} {
		if got := PoolFolders(dir, host, "0123456789abcdef"); len(got) != want {
			t.Errorf("%q: %q", host, got)
		}
	}
	e.gate.Store(new(Gate(starts(func(string) error { return cerrdefs.ErrUnavailable }))))
	if _, err := e.NewPoolUser(); !cerrdefs.IsUnavailable(err) {
		t.Errorf("without a lease: %v", err)
	}
}
