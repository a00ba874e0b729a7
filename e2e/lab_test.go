// Package e2e runs the real service against a real Docker with real gVisor, and checks from outside
// what happens. Nothing here is skipped: without Docker, root, runsc and the image the suite
// fails and says what is missing. Every scenario runs under runsc and under runc.
//
// A lab is a sandboxd with its own folders and containers, which the lab removes.
package e2e

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	docker "github.com/docker/docker/client"

	"github.com/daycare-run/sandbox/client"
)

const (
	engineSocket = "/var/run/docker.sock"
	sandboxImage = "daycare-sandbox:latest"
	ownerUID     = 1000
)

var runtimes = []string{"runsc", "runc"}

// lab is one sandboxd with everything that belongs to it.
type lab struct {
	dir     string
	place   *place
	environ []string
	wrap    []string // the command that starts sandboxd, if any
	from    string   // the folder of sandboxd; empty means binaries, SANDBOX_E2E_FROM sets another commit's
	egress  string   // the beginning of the names of its networks
	engine  *docker.Client
	client  *client.Client
	daemon  *exec.Cmd
	exited  chan struct{}
	log     *lockedBuffer
	// For a sandboxd that is not a process of ours: down removes it, and dumps ends it and returns its stacks.
	down  func()
	dumps func() string

	closed sync.Once

	users     sync.Map // the names of the scenarios that use the lab
	firstPort int      // the first of exposePorts
}

// newLab starts a sandboxd; settings are variables such as SANDBOXD_IDLE_REMOVE_AFTER=1s.
func newLab(t *testing.T, runtime string, settings ...string) *lab {
	t.Helper()
	return newLabIn(t, machine, runtime, settings...)
}

// newLabIn is newLab in another place.
func newLabIn(t *testing.T, p *place, runtime string, settings ...string) *lab {
	t.Helper()
	l, err := openLab(t, p, append(runtimeSettings(runtime), settings...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.close()
		if t.Failed() {
			t.Logf("the end of sandboxd's log:\n%s", l.log.tail())
		}
	})
	return l
}

func runtimeSettings(runtime string) []string {
	events := runtime
	if runtime == "runsc" {
		events = "runsc-events"
	}
	return []string{"SANDBOXD_DOCKER_RUNTIME=" + runtime, "SANDBOXD_DOCKER_EVENTS_RUNTIME=" + events}
}

// openLab is newLab, but returns an error instead of failing the test. The caller closes the lab.
func openLab(t *testing.T, p *place, settings []string) (*lab, error) {
	return openLabIn(t, runDir, p, settings)
}

func openLabIn(t *testing.T, run string, p *place, settings []string) (*lab, error) {
	l, err := settledLab(t, run, p, settings)
	if err != nil {
		return nil, err
	}
	if err := l.start(); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// settledLab returns a lab with settings, whose sandboxd has not been started.
func settledLab(t *testing.T, run string, p *place, settings []string) (*lab, error) {
	begin(t)
	l, err := layLab(t, run, p)
	if err != nil {
		return nil, err
	}
	l.environ = append([]string{
		"SANDBOXD_USERS_DIR=" + l.path("users"),
		"SANDBOXD_DATA_DIR=" + l.path("data"),
		"SANDBOXD_LISTEN=" + l.path("sandboxd.sock"),
		"SANDBOXD_DOCKER_SOCKET_PATH=" + p.socket,
		"SANDBOXD_LOG_LEVEL=debug",
		"SANDBOXD_EGRESS_NAME=" + l.egress,
		"SANDBOXD_EGRESS_ASK_METADATA=false", // nothing leaves this machine
		"PATH=" + os.Getenv("PATH"),
		"SANDBOXD_POOL_SIZE=" + labPool(),
		"SANDBOXD_EXEC_DEFAULT_TIMEOUT_MS=120000", // for a call that runs in parallel with others
		"DAEMON_ONLY=must-not-be-seen-inside",
	}, l.withPorts(settings)...)
	return l, nil
}

// labPool returns how many containers a lab keeps ready for new users. Each takes half a second of a processor to make, and
// the suite has hundreds of labs, so labs of one scenario have no pool, except in the scenarios about the pool;
// SANDBOX_E2E_POOL=2 gives all labs one. Labs that scenarios share have a pool (sharedPool).
func labPool() string { return cmp.Or(os.Getenv("SANDBOX_E2E_POOL"), "0") }

// sharedPool returns the pool setting of the labs that scenarios share.
func sharedPool() string { return "SANDBOXD_POOL_SIZE=" + cmp.Or(os.Getenv("SANDBOX_E2E_POOL"), "1") }

// layLab makes a lab without a sandboxd. Its folder is named like its networks.
func layLab(t *testing.T, run string, p *place) (*lab, error) {
	l, err := labAt(filepath.Join(run, egressName()), p)
	if err != nil {
		return nil, err
	}
	l.serves(t)
	openLabs.Store(l, nil)
	return l, os.Mkdir(l.dir, 0o700)
}

// labAt returns the lab that has, or had, this folder.
func labAt(dir string, p *place) (*lab, error) {
	engine, err := docker.NewClientWithOpts(docker.WithHost("unix://"+p.socket), docker.WithAPIVersionNegotiation())
	if err != nil {
		return nil, err
	}
	return &lab{
		dir: dir, place: p, egress: filepath.Base(dir), engine: engine,
		client: newClient(filepath.Join(dir, "sandboxd.sock")), log: &lockedBuffer{}, from: os.Getenv("SANDBOX_E2E_FROM"),
	}, nil
}

func (l *lab) path(name string) string { return filepath.Join(l.dir, name) }

func (l *lab) home(user string) string { return filepath.Join(l.dir, "users", user, "home") }

// start runs sandboxd and waits until it answers. First it waits for scenarios that need what sandboxd would remove.
func (l *lab) start() error {
	if l.place == machine {
		unlock, err := lockStarts(l.egress, syscall.LOCK_SH)
		if err != nil {
			return err
		}
		defer unlock()
	}
	return l.startNow()
}

func (l *lab) startNow() error {
	argv := append(slices.Clone(l.wrap), filepath.Join(cmp.Or(l.from, binaries), "sandboxd"))
	l.daemon = exec.Command(argv[0], argv[1:]...)
	l.daemon.Env = l.environ
	if l.from != "" { // a version that may not know the pool
		l.daemon.Env = slices.DeleteFunc(slices.Clone(l.environ), func(v string) bool { return strings.HasPrefix(v, "SANDBOXD_POOL_") })
	}
	l.daemon.Stdout, l.daemon.Stderr = l.log, l.log
	if err := l.place.do(l.daemon.Start); err != nil {
		return err
	}
	exited := make(chan struct{})
	l.exited = exited
	go func() {
		_ = l.daemon.Wait()
		close(exited)
	}()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		if _, err := l.client.Health(ctx); err == nil {
			return nil
		}
		select {
		case <-exited:
			return fmt.Errorf("sandboxd has ended:\n%s", l.log.String())
		case <-time.After(10 * time.Millisecond):
		}
	}
	return fmt.Errorf("sandboxd does not answer:\n%s", l.log.String())
}

// stop ends sandboxd with a signal and waits for it.
func (l *lab) stop(signal syscall.Signal) {
	_ = l.daemon.Process.Signal(signal)
	<-l.exited
	l.client.Close()
}

// close removes the lab. A second call waits for the first.
func (l *lab) close() { l.closed.Do(l.remove) }

func (l *lab) remove() {
	defer openLabs.Delete(l)
	if l.down != nil {
		l.down()
	}
	if l.exited != nil {
		select {
		case <-l.exited:
		default:
			late := time.AfterFunc(30*time.Second, func() { _ = l.daemon.Process.Kill() })
			l.stop(syscall.SIGTERM)
			late.Stop()
		}
	}
	if l.environ == nil || l.down != nil || !l.removeItself() {
		l.sweep()
	}
	_ = l.engine.Close()
	_ = removeTree(l.dir)
}

// sweep removes what a lab has left that cannot remove it itself, such as a lab of an earlier run.
func (l *lab) sweep() {
	left, _ := l.listContainers() // the next run removes what is left on an error
	for _, found := range left {
		l.removeByForce(found.ID)
	}
	l.removeNetworks()
	for _, name := range l.volumes() {
		_ = l.engine.VolumeRemove(context.Background(), name, true)
	}
}

// removeTree removes a folder, and unmounts what is below it. A tenant may have made it deeper than os.RemoveAll goes.
func removeTree(dir string) error {
	unmountBelow(dir)
	if out, err := exec.Command("rm", "-rf", "--", dir).CombinedOutput(); err != nil {
		return fmt.Errorf("cannot remove %s: %w: %.500s", dir, err, out)
	}
	return nil
}

// unmountBelow unmounts what is mounted below a directory.
func unmountBelow(dir string) {
	mounts, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(mounts)) {
		if at := strings.Fields(line)[1]; strings.HasPrefix(at, dir+"/") {
			_ = syscall.Unmount(at, syscall.MNT_DETACH)
		}
	}
}

// sharedLabs are for the scenarios that leave the service as they found it.
var (
	sharedMu   sync.Mutex
	sharedLabs = map[string]*lab{}
)

// eachRuntime runs a scenario once for each runtime, in a lab that it shares with others. A scenario
// has users of its own.
func eachRuntime(t *testing.T, scenario func(t *testing.T, l *lab)) {
	each(t, func(t *testing.T, p *place, runtime string) {
		scenario(t, sharedLab(t, p, runtime, runtimeSettings(runtime)))
	})
}

// sharedLab returns the shared lab with that name in that place. The first scenario that asks for it starts it.
func sharedLab(t *testing.T, p *place, name string, settings []string) *lab {
	t.Helper()
	name += " " + p.inet
	begin(t)
	sharedMu.Lock()
	defer sharedMu.Unlock()
	l := sharedLabs[name]
	if l == nil {
		var err error
		if l, err = openLab(t, p, append(settings, sharedPool())); err != nil {
			t.Fatal(err)
		}
		sharedLabs[name] = l
	}
	l.serves(t)
	return l
}

// serves notes that a scenario uses the lab until the scenario ends.
func (l *lab) serves(t *testing.T) {
	l.users.Store(t.Name(), nil)
	t.Cleanup(func() { l.users.Delete(t.Name()) })
}

// eachOwn is eachRuntime with a lab of the scenario's own.
func eachOwn(t *testing.T, scenario func(t *testing.T, l *lab), settings ...string) {
	each(t, func(t *testing.T, p *place, runtime string) { scenario(t, newLabIn(t, p, runtime, settings...)) })
}

// eventually polls until a condition holds. Its timeout is long enough for a slow and busy machine.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	eventuallyWithin(t, 90*time.Second, what, holds)
}

func eventuallyWithin(t *testing.T, most time.Duration, what string, holds func() bool) {
	t.Helper()
	deadline, pause := time.Now().Add(most), 20*time.Millisecond
	for ; ; pause = min(pause*3/2, 250*time.Millisecond) {
		late := time.Now().After(deadline) // one last look
		if holds() {
			return
		}
		if late {
			t.Fatalf("it never came true that %s", what)
		}
		time.Sleep(pause) // longer each time, because looking costs something, too
	}
}
