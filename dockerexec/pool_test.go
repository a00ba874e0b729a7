package dockerexec

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/waittest"
)

// Where a service is killed while it binds.
const (
	beforeRecord = iota
	beforeRename
	afterRename
	afterAll
	killPoints
)

// Nobody ever has a container or a home that was another's, and no home is lost, wherever services are killed.
func TestBindingsWithKills(t *testing.T) {
	n := 3_000
	if testing.Short() {
		n = 500
	}
	m := newPoolModel(t)
	var kills [killPoints]int
	for i := range n {
		persistent := m.random.IntN(2) == 0
		for range 1 + m.random.IntN(2) {
			m.stock(persistent)
		}
		at := -1
		if m.random.IntN(4) == 0 {
			at = m.random.IntN(killPoints)
			kills[at]++
		}
		if !m.bind(fmt.Sprintf("user-%d", i), persistent, at) {
			if m.random.IntN(4) == 0 { // and something is left of what was being written, or the disk is bad
				m.spoil()
			}
			m.restart()
		}
		m.prune()
	}
	t.Logf("killed before the record %d times, before the rename %d, after it %d, after all %d", kills[beforeRecord], kills[beforeRename], kills[afterRename], kills[afterAll])
}

// expelling is mounts of which one becomes visible that is to be hidden, while they are bound.
type expelling struct {
	*poolModel
	expel func(Fingerprint)
}

func (x expelling) Rebind(_, to Spec) error { x.expel(to.Fingerprint()); return nil }

// One that would see a hidden file is given to nobody, although it had been bound by then.
func TestAContainerThatIsExpelledAsItIsBound(t *testing.T) {
	m := newPoolModel(t)
	for user, bind := range map[string]func(user string) error{
		"alice": func(user string) error {
			return m.take(user, false, Egress{Profile: "isolated"})
		},
		"persistent": func(user string) error {
			return m.take(user, true, Egress{Profile: "isolated"})
		},
	} {
		m.stock(user == "persistent")
		m.e.cfg.Mounts = expelling{m, m.e.Expel}
		if err := bind(user); !errors.Is(err, ErrLost) {
			t.Fatalf("%s: %v", user, err)
		}
		m.e.work.Wait()
		if len(m.e.all)+len(m.e.bound) != 0 {
			t.Errorf("%s: left: %v, %v", user, m.e.all, m.e.bound)
		}
	}
	m.e.Shutdown()
}

// A record that was cut anywhere is refused, set aside, and never keeps the service from starting.
func TestRecordsThatWereCut(t *testing.T) {
	e := New(refusing(t), Config{DataDir: t.TempDir(), Log: zerolog.Nop()})
	defer e.Shutdown()
	spec := Spec{User: "alice", Mounts: []Mount{{Source: "/u/alice/home", Target: homeTarget, ID: FileID{Dev: 1, Ino: 2, Since: 3}}}}
	e.bound["c1"] = poolRecord{Version: poolRecordVersion, Container: "c1", Pooled: PoolUser("p1"), Spec: spec}
	e.readRecords() // there are none
	if err := e.writeRecord("c1"); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(e.records().Dir, "c1.json")
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for n := range len(whole) + 1 {
		if err := os.WriteFile(file, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		clear(e.bound)
		e.readRecords()
		_, aside := os.Lstat(file + ".damaged")
		if read := len(e.bound) == 1; read != (n == len(whole)) || read == (aside == nil) {
			t.Fatalf("of %d bytes: read %v, set aside %v", n, read, aside == nil)
		}
		_ = os.Remove(file + ".damaged")
	}
	for what, change := range map[string]func(*poolRecord){
		"another version": func(r *poolRecord) { r.Version++ }, "another container": func(r *poolRecord) { r.Container = "c2" },
		"no pool": func(r *poolRecord) { r.Pooled = "bob" }, "out of the pool": func(r *poolRecord) { r.Pooled = PoolUser("..") },
		"no user": func(r *poolRecord) { r.Spec.User = "" }, "a path as user": func(r *poolRecord) { r.Spec.User = "bob/../alice" },
		"the pool as user": func(r *poolRecord) { r.Spec.User = PoolUser("p2") }, "no home": func(r *poolRecord) { r.Spec.Mounts = nil },
	} {
		r := poolRecord{Version: poolRecordVersion, Container: "c1", Pooled: PoolUser("p1"), Spec: spec}
		change(&r)
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parsePoolRecord("c1", text); err == nil {
			t.Errorf("%s is taken", what)
		}
	}
}

// A bound container's Spec differs from the pooled one's in the user, the places of the home and what may be reached.
func TestBoundSpec(t *testing.T) {
	pooled := fullSpec()
	pooled.User, pooled.SpoolDir = PoolUser("p1"), "/data/users/.pool/p1"
	pooled.Mounts = []Mount{{Source: "/data/users/.pool/p1/user/home", Target: homeTarget, ID: FileID{1, 2, 3}}, {Source: "/srv/x", Target: "/x"}}
	pooled.Masks = []Mask{{Target: "/home/.ssh", Place: "/data/users/.pool/p1/user/home/.ssh"}, {Target: "/image"}}
	pooled.Pins = []Pin{{Place: "/data/users/.pool/p1/user/home/a", Target: "/home/a"}}
	before := pooled.Fingerprint()
	bound := pooled.boundTo("alice", Egress{Profile: pooled.Egress.Profile, Domains: []string{"a.example"}})
	if strings.Contains(bound.text(), poolDir) || bound.User != "alice" || bound.SpoolDir != "/data/users/alice" ||
		bound.Mounts[0].Source != "/data/users/alice/home" || bound.Mounts[1] != pooled.Mounts[1] || bound.Masks[0].Place != "/data/users/alice/home/.ssh" {
		t.Errorf("%s", bound.text())
	}
	if pooled.Fingerprint() != before {
		t.Error("what waited has changed with it")
	}
	if bound.tmpName() != pooled.tmpName() {
		t.Error("they have not the same /tmp")
	}
	back := bound.boundTo("x", pooled.Egress)
	back.User, back.SpoolDir, back.Mounts, back.Masks, back.Pins = pooled.User, pooled.SpoolDir, pooled.Mounts, pooled.Masks, pooled.Pins
	if back.Fingerprint() != before {
		t.Error("something else has changed")
	}
}

// The volume of /tmp is that of one home: no other home, nor a later one with its number, and no other service has it.
func TestTmpBelongsToAHome(t *testing.T) {
	of := func(user string, id FileID, instance string) string {
		return Spec{User: user, Platform: Platform{Instance: instance}, Mounts: []Mount{{Target: homeTarget, ID: id}}}.tmpName()
	}
	seen := map[string]bool{}
	for _, name := range []string{
		of("a", FileID{1, 2, 3}, "i"), of("a", FileID{1, 2, 4}, "i"), of("a", FileID{1, 3, 3}, "i"), of("a", FileID{2, 2, 3}, "i"), of("a", FileID{1, 2, 3}, "j"),
		of("a", FileID{1, 2, 0}, "i"), of("b", FileID{1, 2, 0}, "i"), // where the time is not known it is the user's
	} {
		if seen[name] {
			t.Errorf("%s is that of two", name)
		}
		seen[name] = true
	}
	if of("a", FileID{1, 2, 3}, "i") != of("b", FileID{1, 2, 3}, "i") {
		t.Error("a home that is renamed has another /tmp")
	}
}

// slowPreparer takes a second for each container.
type slowPreparer struct{ mountPreparer }

func (p slowPreparer) Prepare(spec Spec) (Prepared, error) {
	time.Sleep(time.Second)
	return p.mountPreparer.Prepare(spec)
}

// Docker does not answer at the service's start, and the first comparison with it takes long. What the service has made of its
// pool meanwhile stays, and what an earlier one has left of containers that are gone does not.
func TestPoolMadeBeforeTheFirstReconciliationStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newScriptedEngine(t)
		engine.has("carol") // for whom the comparison takes long
		e := engine.executor()
		e.cfg.Mounts, e.cfg.PoolDir = slowPreparer{e.cfg.Mounts}, filepath.Join(engine.dir, poolDir)
		e.cfg.GiveHome = func(_, _ string) error { return fs.ErrNotExist } // they are where they belong
		engine.fails(1)
		// bind does what a container of the pool and its binding do on disk.
		bind := func(id, user string) (folder, record string) {
			home := filepath.Join(engine.dir, user, "home")
			pooled := PoolUser("test-" + id)
			folder = e.poolFolder(pooled)
			var st unix.Stat_t
			if err := errors.Join(os.MkdirAll(home, 0o700), os.MkdirAll(folder, 0o700), unix.Stat(home, &st)); err != nil {
				t.Fatal(err)
			}
			spec := Spec{User: user, Persistent: user, Mounts: []Mount{{Source: home, Target: homeTarget, ID: FileID{Dev: uint64(st.Dev), Ino: st.Ino, Since: 1}}}}
			e.mu.Lock()
			e.bound[id] = poolRecord{Version: poolRecordVersion, Container: id, Pooled: pooled, Spec: spec}
			e.mu.Unlock()
			if err := e.writeRecord(id); err != nil {
				t.Fatal(err)
			}
			return folder, filepath.Join(e.records().Dir, id+".json")
		}
		there := func(want bool, names ...string) {
			t.Helper()
			for _, name := range names {
				if _, err := os.Lstat(name); (err == nil) != want {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
		e.readRecords() // there are none
		oldFolder, oldRecord := bind("old", "alice")
		clear(e.bound)
		e.Start(t.Context(), anything{})
		defer e.Shutdown()
		synctest.Wait() // the list has come
		there(true, oldFolder, oldRecord)
		newFolder, newRecord := bind("new", "bob")
		waittest.Pass(2 * time.Second)
		there(false, oldFolder, oldRecord)
		there(true, newFolder, newRecord)
	})
}

// TestNothingIsKeptForContainersThatAreGone has one leave, and one of the pool that cannot be bound.
func TestNothingIsKeptForContainersThatAreGone(t *testing.T) {
	engine := newScriptedEngine(t)
	e := engine.executor()
	defer e.Shutdown()
	c, err := e.joined(t.Context(), engine.spec("alice"))
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Leave(t.Context(), "alice"); err != nil || c.Making().Err() == nil || len(e.all) > 0 {
		t.Errorf("it left: %v, %v", err, e.all)
	}
	m := newPoolModel(t)
	defer m.e.Shutdown()
	m.stock(false)
	m.e.cfg.GiveHome = func(string, string) error { return fs.ErrPermission }
	if err := m.take("bob", false, Egress{Profile: "isolated"}); !errors.Is(err, fs.ErrPermission) {
		t.Fatal(err)
	}
	if len(m.e.all)+len(m.e.calls)+len(m.e.ids)+len(m.e.bound) != 0 {
		t.Errorf("left: %v", m.e.all)
	}
}

// The record of a container whose home is another one, or is not there, goes. While that is not known, it stays.
func TestRecordsWhoseHomesCannotBeLookedAtStay(t *testing.T) {
	engine := newScriptedEngine(t)
	e := engine.executor()
	e.cfg.GiveHome = func(_, _ string) error { return fs.ErrExist } // they are where they belong
	for id, home := range map[string]string{
		"another": engine.dir, "none": filepath.Join(engine.dir, "none"), "unknown": filepath.Join(engine.dir, strings.Repeat("x", 300)),
	} {
		e.bound[id] = poolRecord{Container: id, Spec: Spec{User: id, Mounts: []Mount{{Source: home, Target: homeTarget}}}}
	}
	e.recoverBound()
	if _, stays := e.bound["unknown"]; !stays || len(e.bound) != 1 {
		t.Errorf("%v", e.bound)
	}
}
