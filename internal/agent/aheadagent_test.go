//go:build linux

package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-yamux/v5"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/agent/mux"
	"github.com/daycare-run/sandbox/internal/agent/spawn"
	"github.com/daycare-run/sandbox/internal/agent/wire"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// envAhead makes the test program an agent, with that builtin or, where it is a dash, with none. After "named:" its shells
// are those of a persistent container. It serves its descriptor 3, one command at a time, each of which a shell awaits.
const envAhead = "TEST_PROCESS_AHEAD"

// commandsUID is who commands run as in an agent that is root.
const commandsUID = 65534

func serveAhead(builtin string) (int, error) {
	if err := harden(); err != nil {
		return 99, err
	}
	dir, uid := os.Getenv(envDir), uint32(os.Getuid())
	if uid == 0 {
		uid = commandsUID
	}
	err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("mode=0700,uid=%d", uid))
	if err != nil {
		return 99, fmt.Errorf("cannot mount %s: %w", dir, err)
	}
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 99, err
	}
	conn, err := net.FileConn(os.NewFile(3, "session"))
	if err != nil {
		return 99, err
	}
	unix.CloseOnExec(3)
	mux, err := yamux.Server(conn, mux.Config(10), nil)
	if err != nil {
		return 99, err
	}
	tree := newProcessTree(nil)
	builtin, named := strings.CutPrefix(builtin, "named:")
	environ := []string{"PATH=" + defaultPath, "LANG=C.UTF-8"}
	a := newAhead(tree, null, uid, builtin, environ)
	if named {
		a = newPersistentAhead(tree, null, uid, builtin, environ, a.besides)
	}
	a.useless = builtin == "-"
	for {
		stream, err := mux.AcceptStream()
		if err != nil {
			return 0, nil
		}
		if !a.await() {
			return 98, errors.New("no shell waits")
		}
		(&Agent{tree: tree, spool: &spool{}, devNull: null, uid: uid, ahead: a}).newCommand(stream).serve()
	}
}

// await waits until a shell waits, where one may.
func (a *ahead) await() bool {
	var shell *waitingShell
	useless := false
	waittest.Comes(func() bool {
		a.prepare()
		a.mu.Lock()
		shell, useless = a.shell, a.useless
		a.mu.Unlock()
		return shell != nil || useless
	})
	if shell == nil || useless {
		return useless
	}
	<-shell.ready
	return shell.waits
}

// compileAhead compiles the builtin as the image has it.
func compileAhead(t *testing.T) string {
	t.Helper()
	for _, program := range []string{"gcc", "bash"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("there is no %s, with which the shells that wait are tested: scripts/setup.sh tests installs it", program)
		}
	}
	file := filepath.Join(t.TempDir(), "ahead.2.so")
	if err := os.Chmod(filepath.Dir(filepath.Dir(file)), 0o755); err != nil { // for commandsUID
		t.Fatal(err)
	}
	out, err := exec.Command("gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", file, "../../sandbox-image/ahead.c").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return file
}

// both are two agents, of which one starts no shells ahead.
type both struct {
	dir          string // a file system that each has for itself
	plain, ahead *yamux.Session
}

func startBoth(t *testing.T) both {
	t.Helper()
	builtin, dir := compileAhead(t), t.TempDir()
	return both{dir, startAgent(t, dir, "-"), startAgent(t, dir, builtin)}
}

// startNamed has shells ahead as in a persistent container.
func startNamed(t *testing.T) both {
	t.Helper()
	builtin, dir := compileAhead(t), t.TempDir()
	return both{dir, startAgent(t, dir, "-"), startAgent(t, dir, "named:"+builtin)}
}

func startAgent(t *testing.T, dir, builtin string) *yamux.Session {
	t.Helper()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(ends[0]), "session"), os.NewFile(uintptr(ends[1]), "session")
	defer theirs.Close()
	defer ours.Close()
	var said bytes.Buffer
	cmd := newNamespace(dir, envAhead+"="+builtin)
	cmd.ExtraFiles, cmd.Stdout, cmd.Stderr = []*os.File{theirs}, &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	conn, err := net.FileConn(ours)
	if err != nil {
		t.Fatal(err)
	}
	mux, err := yamux.Client(conn, mux.Config(0), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = mux.Close()
		defer time.AfterFunc(timeout, func() { _ = cmd.Process.Kill() }).Stop()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the agent: %v: %s", err, said.String())
		}
	})
	return mux
}

// newNamespace is the test program as the first process of a pid namespace.
func newNamespace(dir, environ string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), envDir+"="+dir, environ)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	return cmd
}

// outcome is what a caller sees of a command.
type outcome struct {
	Exit           wire.Exit
	Stdout, Stderr string
}

// exchange runs a command to its end.
func exchange(mux *yamux.Session, start wire.Start, stdin string) (o outcome, err error) {
	stream, err := mux.OpenStream(context.Background())
	if err != nil {
		return o, err
	}
	defer stream.Close()
	_ = stream.SetDeadline(time.Now().Add(timeout))
	start.Stdin = stdin != ""
	if err := wire.WriteMessage(stream, wire.KindStart, start); err != nil {
		return o, err
	}
	if start.Stdin {
		if _, err := stream.Write([]byte(stdin)); err != nil {
			return o, err
		}
		_ = stream.CloseWrite()
	}
	for {
		kind, length, err := wire.ReadHeader(stream)
		if err != nil {
			return o, err
		}
		if kind == wire.KindExit {
			return o, wire.DecodeMessage(stream, length, &o.Exit)
		}
		text := make([]byte, length)
		if _, err := io.ReadFull(stream, text); err != nil {
			return o, err
		}
		if kind == wire.KindStdout {
			o.Stdout += string(text)
		} else {
			o.Stderr += string(text)
		}
	}
}

// A call does not wait for long for a shell that has not started.
func TestShellThatDoesNotStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		if newWaitingShell().await(t.Context()) || time.Since(begun) != awaitLimit {
			t.Errorf("gave up after %v, want %v", time.Since(begun), awaitLimit)
		}
	})
}

// endsHung has the test program be hangsAhead.
const endsHung = "hung"

// hangsAhead is an agent whose shell is executed for as long as the kernel waits for whoever has a lease of the file, which is
// three quarters of a minute.
func hangsAhead(dir string) (int, error) {
	const limit = 20 * time.Second // less than the kernel waits, and a command that waits for the shell
	awaitLimit = timeout
	if err := harden(); err != nil {
		return 99, err
	}
	bash, err := os.ReadFile("/bin/bash")
	name := filepath.Join(dir, "bash")
	if err == nil {
		err = errors.Join(unix.Mount("tmpfs", dir, "tmpfs", 0, ""), os.WriteFile(name, bash, 0o755))
	}
	if err != nil {
		return 99, err
	}
	leased, err := os.Open(name)
	if err == nil {
		_, err = unix.FcntlInt(leased.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
	}
	if err != nil {
		return 99, err
	}
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 99, err
	}
	a := newAhead(newProcessTree(nil), null, uint32(os.Getuid()), "none", []string{"PATH=" + defaultPath})
	a.programs = []spawn.Program{{Path: name, Name: "bash"}}
	a.shells = a.programs
	a.prepare()
	if !waittest.Comes(func() bool { return !isOnlyProcess() }) {
		return 99, errors.New("no shell starts")
	}
	shell, begun := a.shell, time.Now()
	p, fault := prepare(launch.Command{Process: specs.Process{Cwd: "/", Env: []string{"PATH=" + defaultPath}}, Shell: "setsid sleep 1000 >&- 2>&- &"}, uint32(os.Getuid()))
	if fault.Fault != wire.FaultNone {
		return 99, errors.New(fault.Message)
	}
	p.Files = []int{null, null, null}
	if a.begin(context.Background(), p) != nil {
		return 1, errors.New("the command is given a shell")
	}
	root, err := a.tree.start(context.Background(), p)
	if err != nil {
		return 2, err
	}
	<-root.exited
	if err := a.tree.sweep(root); err != nil {
		return 99, err
	}
	a.ended()
	if took := time.Since(begun); took > limit {
		return 3, fmt.Errorf("a command took %v", took)
	}
	<-shell.ready
	if took := time.Since(begun); took > limit || shell.waits {
		return 4, fmt.Errorf("the start of the shell took %v", took)
	}
	return 0, nil
}

// A shell that is being started keeps no command waiting, and is given up when a command begins.
func TestAShellThatHangsAtItsStartHoldsNothingUp(t *testing.T) {
	if out, err := newNamespace(t.TempDir(), envEnds+"="+endsHung).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
