// Package e2e runs the real service against a real engine with real gVisor, and looks from outside
// at what happens. Nothing here is skipped: without an engine, root, runsc and the image the suite
// fails and says what is missing. Every story runs under runsc and under runc.
//
// A lab is a sandboxd of its own, with folders and containers of its own, which it removes.
package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/volume"
	docker "github.com/docker/docker/client"
	"github.com/docker/docker/pkg/stdcopy"

	"github.com/daycare-run/sandbox/api/apitypes"
	"github.com/daycare-run/sandbox/client"
)

const (
	engineSocket = "/var/run/docker.sock"
	sandboxImage = "daycare-sandbox:latest"
	ownerUID     = 1000
)

var runtimes = []string{"runsc", "runc"}

// binaries is where TestMain has built ours.
var binaries string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if err := missing(); err != nil {
		fmt.Fprintf(os.Stderr, "e2e: cannot run: %v\n     run `make setup` as root first\n", err)
		return 1
	}
	dir, err := os.MkdirTemp("", "daycare-e2e-bin-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	build := exec.Command("go", "build", "-trimpath", "-o", dir+"/", "../cmd/...")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "e2e: cannot build: %v\n%s", err, out)
		return 1
	}
	binaries = dir
	defer closeLabs()
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		<-interrupted
		closeLabs()
		_ = os.RemoveAll(dir)
		os.Exit(1)
	}()
	if err := promises.open(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	code := m.Run()
	if code == 0 && !promises.kept() {
		return 1
	}
	return code
}

func missing() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("root is needed, for homes that belong to others")
	}
	engine, err := docker.NewClientWithOpts(docker.WithHost("unix://"+engineSocket), docker.WithAPIVersionNegotiation())
	if err != nil {
		return err
	}
	defer engine.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	info, err := engine.Info(ctx)
	if err != nil {
		return err
	}
	for _, runtime := range append(runtimes, "runsc-events") {
		if _, ok := info.Runtimes[runtime]; !ok {
			return fmt.Errorf("the engine does not know the runtime %s", runtime)
		}
	}
	_, err = engine.ImageInspect(ctx, sandboxImage)
	return err
}

// lab is one sandboxd with all that belongs to it.
type lab struct {
	name    string
	dir     string
	socket  string // the engine's
	environ []string
	wrap    []string // what sandboxd is started with
	egress  string   // what the names of its networks begin with
	engine  *docker.Client
	client  *client.Client
	daemon  *exec.Cmd
	exited  chan struct{}
	log     *lockedBuffer
	down    func() // takes away a sandboxd that is no process of ours; nil where it is one
}

// newLab starts a sandboxd; settings are variables such as SANDBOXD_IDLE_TIMEOUT=1s.
func newLab(t *testing.T, runtime string, settings ...string) *lab {
	t.Helper()
	l, err := openLab(t.Name(), engineSocket, append(runtimeSettings(runtime), settings...))
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

func openLab(name, socket string, settings []string) (*lab, error) {
	dir, err := os.MkdirTemp("", "daycare-e2e-")
	if err != nil {
		return nil, err
	}
	engine, err := docker.NewClientWithOpts(docker.WithHost("unix://"+socket), docker.WithAPIVersionNegotiation())
	if err != nil {
		return nil, err
	}
	l := &lab{name: name, dir: dir, socket: socket, engine: engine, log: &lockedBuffer{}, egress: egressName()}
	l.environ = append([]string{
		"SANDBOXD_USERS_DIR=" + l.path("users"),
		"SANDBOXD_DATA_DIR=" + l.path("data"),
		"SANDBOXD_LISTEN=" + l.path("sandboxd.sock"),
		"SANDBOXD_DOCKER_SOCKET_PATH=" + socket,
		"SANDBOXD_LOG_LEVEL=debug",
		"SANDBOXD_EGRESS_NAME=" + l.egress,
		"PATH=" + os.Getenv("PATH"),
		"DAEMON_ONLY=must-not-be-seen-inside",
	}, settings...)
	l.client = newClient(l.path("sandboxd.sock"))
	openLabs.Store(l, nil)
	if err := l.start(); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (l *lab) path(name string) string { return filepath.Join(l.dir, name) }

func (l *lab) home(user string) string { return filepath.Join(l.dir, "users", user, "home") }

// start runs sandboxd and waits until it answers.
func (l *lab) start() error {
	argv := append(slices.Clone(l.wrap), filepath.Join(binaries, "sandboxd"))
	l.daemon = exec.Command(argv[0], argv[1:]...)
	l.daemon.Env = l.environ
	l.daemon.Stdout, l.daemon.Stderr = l.log, l.log
	if err := l.daemon.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	l.exited = exited
	go func() {
		_ = l.daemon.Wait()
		close(exited)
	}()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		if _, err := l.client.Health(context.Background()); err == nil {
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

func (l *lab) close() {
	openLabs.Delete(l)
	if l.down != nil {
		l.down()
	}
	if l.exited != nil {
		select {
		case <-l.exited:
		default:
			l.stop(syscall.SIGTERM)
		}
	}
	for _, found := range l.containers() {
		_ = l.engine.ContainerRemove(context.Background(), found.ID, container.RemoveOptions{Force: true, RemoveVolumes: true})
	}
	l.removeNetworks()
	for _, name := range l.volumes() {
		_ = l.engine.VolumeRemove(context.Background(), name, true)
	}
	_ = l.engine.Close()
	unmountBelow(l.dir)
	_ = os.RemoveAll(l.dir)
}

// unmountBelow takes away what is mounted below a directory.
func unmountBelow(dir string) {
	mounts, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(mounts)) {
		if at := strings.Fields(line)[1]; strings.HasPrefix(at, dir+"/") {
			_ = syscall.Unmount(at, syscall.MNT_DETACH)
		}
	}
}

// containers are those that the engine has for this lab, running or not.
func (l *lab) containers() []container.Summary {
	instance := l.instance()
	if instance == "" {
		return nil
	}
	list, _ := l.engine.ContainerList(context.Background(), container.ListOptions{
		All:     true,
		Filters: filters.NewArgs(filters.Arg("label", "run.daycare.sandbox.instance="+instance)),
	})
	return list
}

// instance marks what is the lab's; empty before sandboxd has run.
func (l *lab) instance() string {
	text, _ := os.ReadFile(l.path("data/instance"))
	return strings.TrimSpace(string(text))
}

// volumes are the names of those that the engine has for this lab.
func (l *lab) volumes() []string {
	instance := l.instance()
	if instance == "" {
		return nil
	}
	list, err := l.engine.VolumeList(context.Background(), volume.ListOptions{
		Filters: filters.NewArgs(filters.Arg("label", "run.daycare.sandbox.instance="+instance)),
	})
	if err != nil {
		return nil
	}
	var names []string
	for _, v := range list.Volumes {
		names = append(names, v.Name)
	}
	return names
}

// containersOf are a user's.
func (l *lab) containersOf(user string) []container.Summary {
	return slices.DeleteFunc(l.containers(), func(c container.Summary) bool { return c.Labels["run.daycare.sandbox.user"] != user })
}

// register makes a sandbox named after the user.
func (l *lab) register(t *testing.T, user string) {
	t.Helper()
	if _, err := l.client.Put(context.Background(), user, apitypes.Registration{UserID: user}); err != nil {
		t.Fatal(err)
	}
}

// workspace is the grant of the stories that are not about grants.
var workspace = []string{"@workspace"}

// run executes and expects the service not to fail. A call that says nothing of permissions has
// @workspace; an empty list is none.
func (l *lab) run(t *testing.T, user string, e apitypes.Exec) apitypes.Output {
	t.Helper()
	if e.Permissions == nil {
		e.Permissions = workspace
	}
	out, err := l.client.Exec(context.Background(), user, e)
	if err != nil {
		t.Fatalf("exec %.200q %.200q: %v", e.Command, e.Argv, err)
	}
	return out
}

// sh runs a shell command and returns its stdout without the last newline; it has to succeed.
func (l *lab) sh(t *testing.T, user, command string) string {
	t.Helper()
	out := l.run(t, user, apitypes.Exec{Command: command})
	if out.Failed {
		t.Fatalf("%.200s: failed: %.500q %.500q", command, out.Stdout, out.Stderr)
	}
	return strings.TrimSuffix(out.Stdout, "\n")
}

// inside runs a command in a container by the engine, past our service.
func (l *lab) inside(t *testing.T, id string, argv ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	created, err := l.engine.ContainerExecCreate(ctx, id, container.ExecOptions{Cmd: argv, AttachStdout: true, AttachStderr: true})
	if err != nil {
		t.Fatal(err)
	}
	attached, err := l.engine.ContainerExecAttach(ctx, created.ID, container.ExecAttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer attached.Close()
	// An engine may keep the stream open when the container ends in the middle.
	defer context.AfterFunc(ctx, attached.Close)()
	var out bytes.Buffer
	if _, err := stdcopy.StdCopy(&out, &out, attached.Reader); err != nil {
		t.Fatalf("%q: %v", argv, err)
	}
	return out.String()
}

// shared labs serve the stories that leave the service as they found it.
var (
	sharedMu   sync.Mutex
	sharedLabs = map[string]*lab{}
)

// eachRuntime tells a story once for each runtime, in a lab that it shares with others. A story
// takes users of its own.
func eachRuntime(t *testing.T, story func(t *testing.T, l *lab)) {
	for _, runtime := range runtimes {
		t.Run(runtime, func(t *testing.T) {
			story(t, sharedLab(t, runtime, runtimeSettings(runtime)))
		})
	}
}

// sharedLab is the one with that name; the first story that asks for it starts it.
func sharedLab(t *testing.T, name string, settings []string) *lab {
	t.Helper()
	sharedMu.Lock()
	defer sharedMu.Unlock()
	l := sharedLabs[name]
	if l == nil {
		var err error
		if l, err = openLab("shared "+name, engineSocket, settings); err != nil {
			t.Fatal(err)
		}
		sharedLabs[name] = l
	}
	return l
}

// eachOwn is eachRuntime with a lab of the story's own.
func eachOwn(t *testing.T, story func(t *testing.T, l *lab), settings ...string) {
	for _, runtime := range runtimes {
		t.Run(runtime, func(t *testing.T) { story(t, newLab(t, runtime, settings...)) })
	}
}

// openLabs are all labs that have not been closed, so that an interrupted suite leaves nothing.
var openLabs sync.Map

// closing makes whoever comes second wait, so that the suite does not exit in the middle.
var closing sync.Mutex

func closeLabs() {
	closing.Lock()
	defer closing.Unlock()
	openLabs.Range(func(l, _ any) bool {
		l.(*lab).close()
		return true
	})
	closeWorld()
}

// eventually polls until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if holds() {
			return
		}
	}
	t.Fatalf("it never came true that %s", what)
}

// lockedBuffer collects a process's output while it is read.
type lockedBuffer struct {
	mu   sync.Mutex
	data bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.String()
}

// tail is the last of it, for a test that has failed.
func (b *lockedBuffer) tail() string {
	text := b.String()
	return text[max(0, len(text)-4000):]
}
