package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// process is a first process under test.
type process struct {
	t   *testing.T
	dir string // as we see it
	cmd *exec.Cmd
	in  io.Writer
	out *json.Decoder
}

// begin starts the first process, in namespaces where it can harm nobody, and waits until it
// waits. Files are inherited; launch.json is written unless there is one.
func begin(t *testing.T, dir string, l launch.Launch, files []*os.File, env ...string) *process {
	t.Helper()
	l.Version = launch.Version
	if l.Cwd == "" {
		l.Cwd = "/"
	}
	if l.Env == nil {
		l.Env = []string{"PATH=/usr/bin:/bin", "DIR=" + dir}
	}
	if l.Log.MaxBytes == 0 {
		l.Log.MaxBytes = 1 << 20
	}
	data, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, dir: dir, cmd: exec.Command("/proc/self/exe")}
	if _, err := os.Lstat(p.path(launch.File)); err != nil {
		if err := os.WriteFile(p.path(launch.File), data, 0o400); err != nil {
			t.Fatal(err)
		}
	}
	inside := dir
	if files != nil {
		inside = "/proc/self/fd/3"
	}
	p.cmd.Env = append(os.Environ(), append(env, envDir+"="+inside)...)
	p.cmd.Stderr, p.cmd.ExtraFiles = os.Stderr, files
	p.cmd.SysProcAttr = namespaces()
	in, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.in, p.out = in, json.NewDecoder(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("these tests need root, or user namespaces for everybody: %v", err)
	}
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
	})
	p.until("launch.json is gone", func() bool { return !exists(p.path(launch.File)) })
	return p
}

// namespaces are where a first process can harm nobody.
func namespaces() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}
	if os.Getuid() != 0 {
		// A user namespace gives what the others need.
		attr.Cloneflags |= unix.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	return attr
}

func (p *process) path(name string) string { return filepath.Join(p.dir, name) }

// orders sends an order and returns the answer.
func (p *process) orders(o launch.Order) (a launch.Answer) {
	p.t.Helper()
	if err := errors.Join(json.NewEncoder(p.in).Encode(o), p.out.Decode(&a)); err != nil {
		p.t.Fatal(err)
	}
	return a
}

func (p *process) signal(s unix.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// until waits for what another process does.
func (p *process) until(what string, is func() bool) {
	p.t.Helper()
	if !waittest.Comes(is) {
		p.t.Fatalf("waited in vain until %s; the log is %q", what, p.log())
	}
}

func (p *process) untilLogged(text string) {
	p.t.Helper()
	p.until(fmt.Sprintf("%q was logged", text), func() bool { return strings.Contains(p.log(), text) })
}

func (p *process) log() string {
	data, _ := os.ReadFile(p.path(launch.LogFile))
	return string(data)
}

// end waits for the end and returns the exit code and the state.
func (p *process) end() (int, launch.State) {
	p.t.Helper()
	var failed *exec.ExitError
	timer := time.AfterFunc(timeout, func() { _ = p.cmd.Process.Kill() })
	defer timer.Stop()
	if err := p.cmd.Wait(); err != nil && !errors.As(err, &failed) {
		p.t.Fatal(err)
	}
	data, err := os.ReadFile(p.path(launch.StateFile))
	if err != nil {
		p.t.Fatalf("%v, after %v", err, p.cmd.ProcessState)
	}
	s, err := launch.ParseState(data)
	if err != nil {
		p.t.Fatal(err)
	}
	if s.EndedAt.IsZero() || time.Since(s.EndedAt) > timeout || exists(p.path(launch.StateFile+".next")) {
		p.t.Errorf("the state at the end is %s", data)
	}
	return p.cmd.ProcessState.ExitCode(), s
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func run(t *testing.T, dir string, l launch.Launch, env ...string) (*process, int, launch.State) {
	t.Helper()
	p := begin(t, dir, l, nil, env...)
	p.orders(launch.Order{Begin: true})
	code, s := p.end()
	return p, code, s
}

func shell(line string) launch.Launch { return launch.Launch{Command: launch.Command{Shell: line}} }

func program(args ...string) launch.Launch {
	return launch.Launch{Command: launch.Command{Process: specs.Process{Args: args}}}
}
