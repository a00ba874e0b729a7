package dockerexec

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/engine/enginetest"

	"github.com/daycare-run/sandbox/dockerexec/life"
)

// A container that was bound to a sandbox and does not fit, or ended while it was bound, is removed before the sandbox
// gets another one; nobody takes it for an earlier service's meanwhile.
func TestASandboxHasOneContainer(t *testing.T) {
	m := &poolModel{
		t: t, dir: t.TempDir(), docker: enginetest.New(t.Context()),
		containers: map[string]engine.Container{}, owners: map[string]string{}, homes: map[uint64]string{},
	}
	m.restart()
	egress := Egress{Profile: "isolated", Domains: []string{}}
	bind := func(user string) error { return m.take(user, true, egress) }
	m.stock(true)
	if err := bind("fits"); err != nil {
		t.Fatal(err)
	}
	list := m.e.inState(life.Ready)
	if len(list) != 1 {
		t.Fatalf("%d containers", len(list))
	}
	c := list[0]
	if got, is, err := m.e.boundPersistent(t.Context(), c.spec); !is || err != nil || got.ID != c.ID() {
		t.Errorf("%+v, %v, %v", got, is, err)
	}
	other := c.spec
	other.Platform.ImageID = "another"
	if got, is, err := m.e.boundPersistent(t.Context(), other); is || err != nil || len(m.e.all) != 0 || len(m.e.bound) != 0 {
		t.Errorf("%+v, %v, %v", got, is, err)
	}
	if _, err := os.Lstat(filepath.Join(m.e.records().Dir, c.ID()+".json")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its record: %v", err)
	}

	m.stock(true)
	id := fmt.Sprintf("%064d", m.made)
	m.e.cfg.GiveHome = func(from, to string) error {
		if m.e.consider(m.containers[id], new(m.platform())) != nil {
			t.Error("one that is being bound is taken over")
		}
		m.e.died(id)
		return m.give(from, to)
	}
	if err := bind("ends"); !errors.Is(err, ErrLost) || len(m.e.all) != 0 || len(m.e.bound) != 0 {
		t.Errorf("%v, %d, %v", err, len(m.e.all), m.e.bound)
	}
	if err := bind("late"); !errors.Is(err, life.ErrLeft) {
		t.Error(err)
	}
}

// A container that is to last is bound while Docker's list is compared. Whether or not it is current, it is neither removed
// nor taken for a container of sessions.
func TestAPersistentContainerThatIsBoundDuringAComparison(t *testing.T) {
	for name, image := range map[string]string{"current": "", "another image": "another"} {
		t.Run(name, func(t *testing.T) {
			m := newPoolModel(t)
			m.stock(true)
			id := fmt.Sprintf("%064d", m.made)
			platform := m.platform()
			platform.ImageID = image
			m.e.cfg.GiveHome = func(from, to string) error {
				if m.e.consider(m.containers[id], &platform) != nil {
					t.Error("one that is being bound is taken over")
				}
				return m.give(from, to)
			}
			if err := m.take("alice", true, Egress{Profile: "isolated"}); err != nil {
				t.Fatal(err)
			}
			if m.e.consider(m.containers[id], &platform) != nil {
				t.Error("one that is bound is taken over")
			}
			m.e.cancel() // it is not renamed
			m.e.work.Wait()
			if _, bound := m.e.bound[id]; !bound || m.e.runningDetached(id) == nil || len(m.e.calls) != 0 {
				t.Errorf("bound %v, by id %v, of calls %v", m.e.bound, m.e.ids, m.e.calls)
			}
		})
	}
}
