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
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	docker "github.com/docker/docker/client"

	"github.com/daycare-run/sandbox/api/apitypes"
	"github.com/daycare-run/sandbox/client"
)

// privateEngine is a dockerd of the test's own, so that it can be stopped: the host's is others' too.
type privateEngine struct {
	dir    string
	socket string
	cmd    *exec.Cmd
	exited chan struct{}
	log    *lockedBuffer
	runs   atomic.Pointer[running] // as a lab's
	gone   sync.Mutex              // held by who closes it
}

func newPrivateEngine(t *testing.T) *privateEngine {
	t.Helper()
	stories.Watch(t)
	dir, err := os.MkdirTemp("", "engine-")
	if err != nil {
		t.Fatal(err)
	}
	e := &privateEngine{dir: dir, socket: filepath.Join(dir, "docker.sock"), log: &lockedBuffer{}}
	openEngines.Store(e, nil)
	t.Cleanup(func() {
		if err := e.close(); err != nil {
			t.Errorf("the private engine's files are left: %v", err)
		}
		if t.Failed() {
			t.Logf("the end of dockerd's log:\n%s", e.log.tail())
		}
	})
	settings, err := json.Marshal(map[string]any{"runtimes": map[string]any{"runsc": map[string]string{"path": runscPath(t)}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "daemon.json"), settings, 0o600); err != nil {
		t.Fatal(err)
	}
	e.start(t)
	return e
}

// runscPath is where the host's engine has its runsc.
func runscPath(t *testing.T) string {
	t.Helper()
	engine := connect(t, engineSocket)
	info, err := engine.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return info.Runtimes["runsc"].Path
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
	e.cmd = exec.Command("dockerd", "--config-file", e.dir+"/daemon.json", "--host", "unix://"+e.socket,
		"--data-root", e.dir+"/data", "--exec-root", e.dir+"/exec", "--pidfile", e.dir+"/pid",
		"--bridge", "none", "--iptables=false", "--ip-masq=false")
	e.cmd.Stdout, e.cmd.Stderr = e.log, e.log
	// In a network of its own: a dockerd that is told to have no bridge removes the host's docker0.
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if err := e.cmd.Start(); err != nil {
		t.Fatalf("cannot start a dockerd of the test's own: %v", err)
	}
	exited := make(chan struct{})
	e.exited = exited
	e.runs.Store(&running{e.cmd.Process.Pid, exited})
	go func() {
		_ = e.cmd.Wait()
		close(exited)
	}()
	engine := connect(t, e.socket)
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
	unmountBelow(e.dir) // what dockerd has left
	return os.RemoveAll(e.dir)
}

// giveImage imports a small image with a shell: dash and sleep with their libraries, taken from the
// sandbox image.
func (e *privateEngine) giveImage(t *testing.T, tag string) {
	t.Helper()
	from, to := connect(t, engineSocket), connect(t, e.socket)
	created, err := from.ContainerCreate(t.Context(), &container.Config{Image: sandboxImage}, nil, nil, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = from.ContainerRemove(context.Background(), created.ID, container.RemoveOptions{Force: true})
	}()
	var whole bytes.Buffer
	out := tar.NewWriter(&whole)
	for _, name := range []string{"/usr/bin/dash", "/usr/bin/sleep", "/usr/bin/true", "/usr/lib/x86_64-linux-gnu/libc.so.6", "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"} {
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
	content, _, err := from.CopyFromContainer(t.Context(), id, name)
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

// The engine stops and comes back: calls fail meanwhile and say what to do, and the service goes on
// by itself, with an image that has nothing but a small shell.
func TestEngineStoppedAndStarted(t *testing.T) {
	engine := newPrivateEngine(t)
	engine.giveImage(t, "small:latest")
	for _, runtime := range runtimes {
		t.Run(runtime, func(t *testing.T) {
			l, err := openLab(t, engine.socket, []string{"SANDBOXD_DOCKER_RUNTIME=" + runtime, "SANDBOXD_DOCKER_IMAGE=small"})
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
				_, err := l.client.Exec(context.Background(), "engine", apitypes.Exec{Permissions: workspace, Command: "echo > begun; sleep 7400"})
				cut <- err
			}()
			eventually(t, "the command runs", func() bool { _, err := os.Stat(l.home("engine") + "/begun"); return err == nil })
			engine.stop()
			if err := <-cut; err == nil {
				t.Error("a command did not notice that its engine stopped")
			}
			_, err = l.client.Exec(t.Context(), "engine", apitypes.Exec{Permissions: workspace, Argv: []string{"true"}})
			var failure *client.Error
			if !errors.As(err, &failure) || failure.Kind != apitypes.Engine || !strings.Contains(failure.Message, "no Docker engine answers at unix://"+engine.socket+": start it") {
				t.Errorf("with the engine down: %v", err)
			}
			if health, err := l.client.Health(t.Context()); err != nil || health.Status != "degraded" {
				t.Errorf("health: %+v, %v", health, err)
			}
			engine.start(t)
			eventually(t, "commands run again", func() bool {
				out, err := l.client.Exec(t.Context(), "engine", apitypes.Exec{Permissions: workspace, Command: "read line < note; echo $line"})
				return err == nil && out.Stdout == "one\n"
			})
			if left := len(l.containers(t)); left != 1 {
				t.Errorf("%d containers", left)
			}
			if t.Failed() {
				t.Log(l.log.String())
			}
		})
	}
}

// The service starts without an engine and serves when there is one.
func TestServiceStartsBeforeItsEngine(t *testing.T) {
	engine := newPrivateEngine(t)
	engine.giveImage(t, "small:latest")
	engine.stop()
	l, err := openLab(t, engine.socket, []string{"SANDBOXD_DOCKER_IMAGE=small"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	l.register(t, "early")
	if _, err := l.client.Exec(t.Context(), "early", apitypes.Exec{Permissions: workspace, Argv: []string{"true"}}); err == nil {
		t.Error("a command ran without an engine")
	}
	engine.start(t)
	eventually(t, "commands run", func() bool {
		out, err := l.client.Exec(t.Context(), "early", apitypes.Exec{Permissions: workspace, Argv: []string{"true"}})
		return err == nil && !out.Failed
	})
}
