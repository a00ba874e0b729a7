package e2e

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	docker "github.com/docker/docker/client"
	"github.com/vishvananda/netns"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// privateEngine is a dockerd of the test's own, so that it can be stopped: the host's is others' too.
type privateEngine struct {
	dir      string
	place    *place
	programs string // the folder of its programs; empty: the system's
	cmd      *exec.Cmd
	exited   chan struct{}
	log      *lockedBuffer
	gone     sync.Mutex // held by who closes it
}

// newPrivateEngine is of the machine's programs, without a bridge and without rules.
func newPrivateEngine(t *testing.T) *privateEngine {
	t.Helper()
	begin(t)
	e := layEngine(t, map[string]any{"bridge": "none", "iptables": false, "ip-masq": false})
	t.Cleanup(func() {
		if err := e.close(); err != nil {
			t.Errorf("the private engine's files are left: %v", err)
		}
		if t.Failed() {
			t.Logf("the end of dockerd's log:\n%s", e.log.tail())
		}
	})
	e.start(t)
	return e
}

// layEngine makes the folder and the network namespace of a Docker daemon. It has the runtimes of the machine's.
func layEngine(t *testing.T, settings map[string]any) *privateEngine {
	t.Helper()
	info, err := connect(t, engineSocket).Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]any{}
	for _, name := range []string{"runsc", "runsc-events", "runsc-offline", "runsc-linked"} {
		known[name] = info.Runtimes[name].Runtime
	}
	settings["runtimes"] = known
	dir, err := os.MkdirTemp("", "engine-")
	if err != nil {
		t.Fatal(err)
	}
	e := &privateEngine{dir: dir, place: &place{socket: filepath.Join(dir, "docker.sock"), ns: netns.None()}, log: &lockedBuffer{}}
	openEngines.Store(e, nil)
	if e.place.ns, err = newNamespace(); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(settings)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "daemon.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	return e
}

func connect(t *testing.T, socket string) *docker.Client {
	t.Helper()
	engine, err := docker.NewClientWithOpts(docker.WithHost("unix://"+socket), docker.WithAPIVersionNegotiation())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close() })
	return engine
}

func (e *privateEngine) start(t *testing.T) {
	t.Helper()
	e.cmd = exec.Command(filepath.Join(e.programs, "dockerd"), "--config-file", e.dir+"/daemon.json", "--host", "unix://"+e.place.socket,
		"--data-root", e.dir+"/data", "--exec-root", e.dir+"/exec", "--pidfile", e.dir+"/pid")
	if e.programs != "" {
		e.cmd.Env = append(os.Environ(), "PATH="+e.programs+":"+os.Getenv("PATH"))
	}
	e.cmd.Stdout, e.cmd.Stderr = e.log, e.log
	// In a network of its own, because a dockerd that is told to have no bridge removes the host's docker0.
	if err := e.place.do(e.cmd.Start); err != nil {
		t.Fatalf("cannot start a dockerd of the tests' own: %v", err)
	}
	exited := make(chan struct{})
	e.exited = exited
	go func() {
		_ = e.cmd.Wait()
		close(exited)
	}()
	engine := connect(t, e.place.socket)
	eventually(t, "the private engine answers", func() bool {
		_, err := engine.Ping(context.Background())
		return err == nil
	})
}

func (e *privateEngine) stop() {
	_ = e.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-e.exited:
	case <-time.After(time.Minute):
		_ = e.cmd.Process.Kill()
		<-e.exited
	}
}

func (e *privateEngine) close() error {
	e.gone.Lock()
	defer e.gone.Unlock()
	defer openEngines.Delete(e)
	if e.exited != nil {
		e.stop()
	}
	if e.place.ns.IsOpen() {
		_ = e.place.ns.Close()
	}
	return removeTree(e.dir) // with what dockerd has left mounted
}

// giveImage imports a small image with a shell: dash, sleep and date with their libraries, and more files, taken from the
// sandbox image.
func (p *place) giveImage(t *testing.T, tag string, more ...string) {
	t.Helper()
	from, to := connect(t, engineSocket), connect(t, p.socket)
	created, err := from.ContainerCreate(t.Context(), &container.Config{Image: sandboxImage}, nil, nil, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = from.ContainerRemove(context.Background(), created.ID, container.RemoveOptions{Force: true})
	}()
	var whole bytes.Buffer
	out := tar.NewWriter(&whole)
	for _, name := range append(more, "/usr/bin/dash", "/usr/bin/sleep", "/usr/bin/true", "/usr/bin/date", "/usr/lib/x86_64-linux-gnu/libc.so.6", "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2") {
		copyFile(t, from, created.ID, name, out)
	}
	for link, target := range map[string]string{"bin": "usr/bin", "lib64": "usr/lib/x86_64-linux-gnu", "usr/bin/sh": "dash"} {
		if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: link, Linkname: target, Mode: 0o777}); err != nil {
			t.Fatal(err)
		}
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	progress, err := to.ImageImport(t.Context(), image.ImportSource{Source: &whole, SourceName: "-"}, tag, image.ImportOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer progress.Close()
	if said, err := io.ReadAll(progress); err != nil || strings.Contains(string(said), "error") {
		t.Fatalf("%v: %s", err, said)
	}
}

func copyFile(t *testing.T, from *docker.Client, id, name string, out *tar.Writer) {
	t.Helper()
	content, stat, err := from.CopyFromContainer(t.Context(), id, name)
	if err == nil && stat.LinkTarget != "" {
		_ = content.Close()
		content, _, err = from.CopyFromContainer(t.Context(), id, stat.LinkTarget)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	in := tar.NewReader(content)
	header, err := in.Next()
	if err != nil {
		t.Fatal(err)
	}
	header.Name = strings.TrimPrefix(name, "/")
	if err := out.WriteHeader(header); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
}

// Docker stops and comes back: calls fail meanwhile and say what to do, and the service goes on
// by itself, with an image that has nothing but a small shell.
func TestEngineStoppedAndStarted(t *testing.T) {
	engine := newPrivateEngine(t)
	engine.place.giveImage(t, "small:latest")
	for _, runtime := range runtimes {
		t.Run(runtime, func(t *testing.T) {
			l, err := openLab(t, engine.place, []string{"SANDBOXD_DOCKER_RUNTIME=" + runtime, "SANDBOXD_DOCKER_IMAGE=small"})
			if err != nil {
				t.Fatal(err)
			}
			defer l.close()
			l.register(t, "engine")
			if got := l.sh(t, "engine", "echo one > note; echo $0"); got != "sh" {
				t.Fatalf("got %q", got)
			}
			cut := make(chan error, 1)
			go func() {
				_, err := l.client.Exec(context.Background(), "engine", types.Exec{Permissions: workspace, Command: "echo > begun; sleep 7400"})
				cut <- err
			}()
			eventually(t, "the command runs", func() bool { _, err := os.Stat(l.home("engine") + "/begun"); return err == nil })
			engine.stop()
			if err := <-cut; err == nil {
				t.Error("a command did not notice that its engine stopped")
			}
			_, err = l.client.Exec(t.Context(), "engine", types.Exec{Permissions: workspace, Argv: []string{"true"}})
			var failure *client.Error
			if !errors.As(err, &failure) || failure.Kind != types.Engine || !strings.Contains(failure.Message, "no Docker engine answers at unix://"+engine.place.socket+": start it") {
				t.Errorf("with the engine down: %v", err)
			}
			if health, err := l.client.Health(t.Context()); err != nil || health.Status != "degraded" {
				t.Errorf("health: %+v, %v", health, err)
			}
			engine.start(t)
			eventually(t, "commands run again", func() bool {
				out, err := l.client.Exec(t.Context(), "engine", types.Exec{Permissions: workspace, Command: "read line < note; echo $line"})
				return err == nil && out.Stdout == "one\n"
			})
			eventually(t, "there is one container", func() bool { return len(l.containers(t)) == 1 })
			if t.Failed() {
				t.Log(l.log.String())
			}
		})
	}
}

// The service starts without Docker and serves when there is one.
func TestServiceStartsBeforeItsEngine(t *testing.T) {
	engine := newPrivateEngine(t)
	engine.place.giveImage(t, "small:latest")
	engine.stop()
	l, err := openLab(t, engine.place, []string{"SANDBOXD_DOCKER_IMAGE=small"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	l.register(t, "early")
	if _, err := l.client.Exec(t.Context(), "early", types.Exec{Permissions: workspace, Argv: []string{"true"}}); !isKind(err, types.Engine) {
		t.Errorf("without an engine: %v", err)
	}
	engine.start(t)
	eventually(t, "commands run", func() bool {
		out, err := l.client.Exec(t.Context(), "early", types.Exec{Permissions: workspace, Argv: []string{"true"}})
		return err == nil && !out.Failed
	})
}
