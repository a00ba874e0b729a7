package dockerexec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/dockerexec/networks"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/agent/wire"
	"github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/engine/enginetest"
	"github.com/daycare-run/sandbox/internal/quota"
)

// poolModel is services one after the other on real directories, with a Docker that has only a list.
type poolModel struct {
	t          *testing.T
	dir        string
	docker     engine.Engine
	random     *rand.Rand
	e          *Executor
	containers map[string]engine.Container
	owners     map[string]string // who has run commands in a container, by its id
	homes      map[uint64]string // whose home an inode is
	made       int
	may        starts // nil: always
	killAt     int
	killed     bool
}

func newPoolModel(t *testing.T) *poolModel {
	m := &poolModel{
		t: t, dir: fastDir(t), docker: enginetest.New(t.Context()), random: rand.New(rand.NewPCG(1, 2)),
		containers: map[string]engine.Container{}, owners: map[string]string{}, homes: map[uint64]string{},
	}
	m.restart()
	return m
}

// assigned is a Filter of which nothing but Assign and Remove is called.
type assigned struct {
	networks.Filter
	assign func()
}

func (a assigned) Assign(uint64, networks.Party, networks.Party) error { a.assign(); return nil }

func (a assigned) Remove(string, uint64) {}

// kill ends the goroutine that binds as kill -9 does all.
func (m *poolModel) kill(at int) {
	if m.killAt == at {
		m.killed = true
		runtime.Goexit()
	}
}

func (m *poolModel) Prepare(Spec) (Prepared, error) { return Prepared{}, nil }

func (m *poolModel) Release(Spec) {}

func (m *poolModel) Forget(Spec) {}

func (m *poolModel) Follow(context.Context, Spec, []string, func(News)) {}

func (m *poolModel) Rebind(Spec, Spec) error { m.kill(afterRename); return nil }

func (m *poolModel) give(from, to string) error {
	m.kill(beforeRename)
	folder := func(user string) string { return filepath.Dir(m.home(user)) }
	return unix.Rename(folder(from), folder(to))
}

func (m *poolModel) home(user string) string { return filepath.Join(m.dir, "users", user, "home") }

func (m *poolModel) platform() Platform { return Platform{Instance: "test", DataDir: m.dir} }

// stock puts a container into the pool that is ready, for calls or a persistent one.
func (m *poolModel) stock(persistent bool) {
	m.made++
	id := fmt.Sprintf("%064d", m.made)
	user, err := m.e.NewPoolUser()
	if err != nil {
		m.t.Fatal(err)
	}
	folder := m.e.poolFolder(user)
	spool, sess := filepath.Join(folder, spoolPrefix+"1"), openSessionOfTests(m.t)
	var st unix.Stat_t
	if err := errors.Join(os.MkdirAll(filepath.Join(m.home(user), ".ssh"), 0o700), unix.Stat(m.home(user), &st)); err != nil {
		m.t.Fatal(err)
	}
	spec := Spec{
		Platform: m.platform(), User: user, SpoolDir: folder, Egress: Egress{Profile: "isolated"},
		Mounts: []Mount{{Source: m.home(user), Target: homeTarget, ID: FileID{Dev: uint64(st.Dev), Ino: st.Ino, Since: 1}}},
		Masks:  []Mask{{Target: "/home/.ssh", Place: m.home(user) + "/.ssh"}},
	}
	found := engine.Container{ID: id, State: specs.StateRunning}
	if persistent {
		spec.Persistent, spool, sess = user, "", nil
	} else if err := os.WriteFile(spool, nil, 0o600); err != nil {
		m.t.Fatal(err)
	} else {
		found.Mounts = []specs.Mount{{Destination: wire.SpoolPath, Source: spool}}
	}
	found.Labels = spec.labels()
	m.containers[id] = found
	c := m.e.inPlace(m.t, spec, id, 0)
	c.spool, c.pool, c.sess = spool, spec.SpoolDir, sess
	c.net = m.e.nets.Found(spec.candidate(spec.Egress), engine.Container{})
	if err := c.mounts.prepare(m, spec); err != nil {
		m.t.Fatal(err)
	}
}

// restart begins a service where another was killed.
func (m *poolModel) restart() {
	if m.e != nil {
		m.e.mu.Lock()
		m.e.closed = true
		m.e.mu.Unlock()
		m.e.cancel()
	}
	m.killAt, m.killed = -1, false
	m.e = New(m.docker, Config{
		Instance: "test", DataDir: m.dir, PoolDir: filepath.Join(m.dir, "users", poolDir), GiveHome: m.give, Mounts: m,
		Filter: assigned{assign: func() { m.kill(beforeRecord) }}, Log: zerolog.Nop(),
	})
	if m.e.gate.Store(new(Gate(anything{}))); m.may != nil {
		m.e.gate.Store(new(Gate(m.may)))
	}
	m.e.readRecords()
	m.e.recoverBound()
	var listed []engine.Container
	for id, found := range m.containers {
		if record, bound := m.e.bound[id]; bound {
			found.Name = record.Spec.ContainerName()
		}
		listed = append(listed, found)
	}
	for _, found := range listed {
		c := m.e.consider(found, new(m.platform()))
		if c == nil {
			delete(m.containers, found.ID)
			continue
		}
		if c.spec.Persistent == "" {
			c.sess = openSessionOfTests(m.t)
		}
		m.belongs(found.ID, c.spec)
	}
	m.e.tidyPool(listed)
	m.e.work.Wait() // for what is removed
	for _, user := range m.owners {
		m.kept(user)
	}
	folders, err := os.ReadDir(m.e.cfg.PoolDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) || len(folders) > len(m.containers) {
		m.t.Fatalf("%d folders for %d containers, %v", len(folders), len(m.containers), err)
	}
}

// belongs makes sure that a container has never been another's, and that its home is its user's.
func (m *poolModel) belongs(id string, spec Spec) {
	m.t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(m.home(spec.User), &st); err != nil || st.Ino != spec.Home().Ino {
		m.t.Fatalf("%s has a container with another home than the user's: %v", spec.User, err)
	}
	if was := m.owners[id]; was != "" && was != spec.User {
		m.t.Fatalf("%s has the container of %s", spec.User, was)
	}
	if was := m.homes[st.Ino]; was != "" && was != spec.User {
		m.t.Fatalf("%s has the home of %s", spec.User, was)
	}
	m.owners[id], m.homes[st.Ino] = spec.User, spec.User
	// A command runs there.
	if err := os.WriteFile(filepath.Join(m.home(spec.User), "mine"), []byte(spec.User), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

// kept makes sure that a user has what commands have written, and nobody else's.
func (m *poolModel) kept(user string) {
	m.t.Helper()
	if text, err := os.ReadFile(filepath.Join(m.home(user), "mine")); err != nil || string(text) != user {
		m.t.Fatalf("the home of %s has %q, %v", user, text, err)
	}
}

// take binds a container that waits to a user.
func (m *poolModel) take(user string, persistent bool, egress Egress) error {
	for _, c := range m.e.ForCalls() {
		if c.spec.IsPooled() && c.is(life.Ready) && (c.spec.Persistent != "") == persistent {
			return m.e.Bind(m.t.Context(), c, quota.Account{User: user}, egress)
		}
	}
	return life.ErrLeft
}

// bind binds for a new user, and reports whether the service is still there.
func (m *poolModel) bind(user string, persistent bool, at int) (alive bool) {
	m.killAt = at
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		egress := Egress{Profile: "isolated", Domains: []string{user + ".example"}}
		if persistent {
			err = m.take(user, true, egress)
		} else {
			err = m.take(user, false, egress)
		}
	}()
	<-done
	if m.killed {
		return false
	}
	if err != nil {
		m.t.Fatalf("%s: %v", user, err)
	}
	for _, c := range m.e.inState(inUse...) {
		if c.spec.User == user {
			if persistent != (c.spec.Persistent == user) || !c.is(life.Ready) || c.spec.Egress.Domains[0] != user+".example" {
				m.t.Fatalf("%s: %+v", user, c.spec)
			}
			m.belongs(c.ID(), c.spec)
			return at != afterAll
		}
	}
	m.t.Fatalf("%s has none", user)
	return false
}

// forgets ends a user's container, of which nothing may be left but the home.
func (m *poolModel) forgets(id string) {
	gone := m.e.known(id)
	gone.Do(life.Remove, nil)
	if err := m.e.Remove(gone); err != nil {
		m.t.Fatal(err)
	}
	delete(m.containers, id)
	if _, err := os.Lstat(filepath.Join(m.e.records().Dir, id+".json")); !errors.Is(err, fs.ErrNotExist) {
		m.t.Fatalf("its record is there: %v", err)
	}
	m.kept(gone.spec.User)
	delete(m.owners, id)
}

// pipeConn is a connection to an agent that says nothing on stderr.
type pipeConn struct{ net.Conn }

func (pipeConn) Stderr() string { return "" }

// openSessionOfTests is one whose agent has greeted, and says nothing more.
func openSessionOfTests(t *testing.T) *session.Session {
	here, there := net.Pipe()
	go func() {
		_ = wire.ReadMessage(there, wire.KindHello, &wire.Hello{})
		_ = wire.WriteMessage(there, wire.KindHello, wire.Hello{Version: wire.Version})
		_, _ = io.Copy(io.Discard, there) // who writes is not kept waiting: that would be the session's end
	}()
	spool := filepath.Join(t.TempDir(), "spool")
	if err := os.WriteFile(spool, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := session.Open(t.Context(), pipeConn{here}, nil, spool)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(); _ = there.Close() })
	return s
}

// fastDir is a folder on which fsync takes no time.
func fastDir(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "pool-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// prune ends containers of users, so that there are not too many.
func (m *poolModel) prune() {
	for id, user := range m.owners {
		if len(m.containers) < 8 {
			return
		}
		if _, there := m.containers[id]; there {
			m.forgets(id)
		} else {
			delete(m.owners, id) // it went with a record that was damaged
			m.kept(user)
		}
		if err := os.RemoveAll(filepath.Dir(m.home(user))); err != nil { // the operator's doing
			m.t.Fatal(err)
		}
		for ino, has := range m.homes {
			if has == user {
				delete(m.homes, ino)
			}
		}
	}
	if len(m.containers) >= 16 {
		m.restart()
	}
}

// spoil cuts a record, or leaves half of one beside.
func (m *poolModel) spoil() {
	names, _ := filepath.Glob(filepath.Join(m.e.records().Dir, "*.json"))
	if len(names) == 0 {
		return
	}
	name := names[m.random.IntN(len(names))]
	text, err := os.ReadFile(name)
	if err == nil && m.random.IntN(2) == 0 {
		err = os.WriteFile(filepath.Join(filepath.Dir(name), "."+filepath.Base(name)+"123"), text[:len(text)/2], 0o600)
	} else if err == nil {
		err = os.WriteFile(name, text[:m.random.IntN(len(text))], 0o600)
	}
	if err != nil {
		m.t.Fatal(err)
	}
}
