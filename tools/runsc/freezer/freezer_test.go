package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const container = "0123abcd"

// host is a container as the freezer sees it: its bundle, its control group, and real processes
// that stand for gVisor's and for a program in it.
type host struct {
	call
	group   string
	gvisor  []int
	program int
}

// newHost makes a container with two processes of gVisor's and one more, which does what the shell
// is told to. A runsc beside it notes how it is called, and exits with the code in the file code.
func newHost(t *testing.T, version int, program string) *host {
	t.Helper()
	dir := t.TempDir()
	h := &host{call: call{
		runsc: filepath.Join(dir, "runsc"), bundle: filepath.Join(dir, container),
		proc: filepath.Join(dir, "proc"), cgroups: filepath.Join(dir, "cgroup"),
	}}
	write(t, h.runsc, "#!/bin/sh\necho \"$*\" >>"+dir+"/calls\nexit $(cat "+dir+"/code 2>/dev/null || echo 0)\n", 0o755)
	h.gvisor = []int{start(t, "sleep", "60"), start(t, "sleep", "60")}
	h.program = start(t, "sh", "-c", program)
	shim := os.Getpid()
	all := ""
	for i, process := range append(slices.Clone(h.gvisor), h.program) {
		at := filepath.Join(h.proc, strconv.Itoa(process))
		mkdir(t, at)
		real := fmt.Sprintf("/proc/%d/", process)
		if err := os.Symlink(real+"task", at+"/task"); err != nil {
			t.Fatal(err)
		}
		parent := shim
		if i == len(h.gvisor) {
			parent = h.gvisor[0]
		}
		write(t, at+"/stat", fmt.Sprintf("%d (a) name) S %d 1 1", process, parent), 0o600)
		all += fmt.Sprintln(process)
	}
	groups, usage := "0::/docker/"+container+"\n", "docker/"+container+"/cpu.stat"
	h.group = filepath.Join(h.cgroups, "docker", container)
	if version == 1 {
		groups = "3:cpu,cpuacct:/docker/" + container + "\n2:pids:/docker/" + container + "\n0::/\n"
		usage = "cpuacct/docker/" + container + "/cpuacct.usage"
		h.group = filepath.Join(h.cgroups, "pids/docker", container)
	}
	mkdir(t, h.bundle)
	write(t, filepath.Join(h.bundle, "init.pid"), strconv.Itoa(h.gvisor[0]), 0o600)
	for _, process := range h.gvisor {
		write(t, filepath.Join(h.proc, strconv.Itoa(process), "cgroup"), groups, 0o600)
	}
	mkdir(t, h.group)
	write(t, filepath.Join(h.group, "cgroup.procs"), all, 0o600)
	mkdir(t, filepath.Dir(filepath.Join(h.cgroups, usage)))
	write(t, filepath.Join(h.cgroups, usage), "usage_usec 5\n", 0o600)
	return h
}

func start(t *testing.T, argv ...string) (pid int) {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

func write(t *testing.T, name, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

func mkdir(t *testing.T, name string) {
	t.Helper()
	if err := os.MkdirAll(name, 0o755); err != nil {
		t.Fatal(err)
	}
}

// asks makes a call, and requires that runsc is left with these arguments; none is "".
func (h *host) asks(t *testing.T, call, want string) {
	t.Helper()
	h.args = strings.Fields(call)
	rest, err := h.answer()
	if err != nil || strings.Join(rest, " ") != want {
		t.Errorf("%s: %q, %v, want %q", call, rest, err, want)
	}
}

// pausesQuietly pauses the container without runsc. On a busy machine a process may be late to stop.
func (h *host) pausesQuietly(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		h.asks(t, "--root r pause "+container, "")
		if n, _ := h.note(); n.by == ours {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("it calls runsc for a pause")
		}
		h.asks(t, "resume "+container, "resume "+container)
	}
}

// are requires a state of gVisor's processes, which they reach in a moment.
func (h *host) are(t *testing.T, state string) {
	t.Helper()
	for _, process := range h.gvisor {
		var s stat
		for deadline := time.Now().Add(10 * time.Second); s.state != state; time.Sleep(time.Millisecond) {
			s, _ = call{proc: "/proc"}.stat(strconv.Itoa(process))
			if time.Now().After(deadline) {
				t.Fatalf("%d is in state %q, want %s", process, s.state, state)
			}
		}
	}
}

// notes requires what is in the file paused, with P and Q for gVisor's processes.
func (h *host) notes(t *testing.T, want string) {
	t.Helper()
	want = strings.NewReplacer("P", strconv.Itoa(h.gvisor[0]), "Q", strconv.Itoa(h.gvisor[1])).Replace(want)
	text, err := os.ReadFile(filepath.Join(h.bundle, "paused"))
	if err != nil && want != "" || string(text) != want {
		t.Errorf("it notes %q, %v, want %q", text, err, want)
	}
}

// called requires which calls runsc has had from within.
func (h *host) called(t *testing.T, want string) {
	t.Helper()
	text, _ := os.ReadFile(filepath.Join(filepath.Dir(h.runsc), "calls"))
	if string(text) != want {
		t.Errorf("runsc was called %q, want %q", text, want)
	}
}

// If nothing runs, gVisor is stopped, and runsc knows of nothing.
func TestPauseOfAQuietContainer(t *testing.T) {
	for _, version := range []int{1, 2} {
		h := newHost(t, version, "sleep 60")
		for range 2 {
			h.pausesQuietly(t)
			h.are(t, "T")
			h.notes(t, "ours P Q\n")
			h.asks(t, "resume "+container, "")
			h.are(t, "S")
			h.notes(t, "")
		}
		h.asks(t, "ps --format json "+container, "ps --format json "+container)
	}
}

// If something runs, runsc pauses it first, and resumes it last.
func TestPauseOfABusyContainer(t *testing.T) {
	h := newHost(t, 2, "while :; do :; done")
	pause := "--log l pause " + container
	h.asks(t, pause, "")
	h.are(t, "T")
	h.notes(t, "runsc P Q\n")
	h.called(t, pause+"\n")
	h.asks(t, "resume "+container, "resume "+container)
	h.are(t, "S")
	h.notes(t, "")

	// A pause that fails leaves nothing stopped, and fails as runsc's.
	write(t, filepath.Join(filepath.Dir(h.runsc), "code"), "7", 0o600)
	h.args = strings.Fields(pause)
	_, err := h.answer()
	if failed := (*exec.ExitError)(nil); !errors.As(err, &failed) || failed.ExitCode() != 7 {
		t.Error(err)
	}
	h.are(t, "S")
	h.notes(t, "")
}

func TestPauseIsLeftToRunsc(t *testing.T) {
	for name, change := range map[string]func(h *host){
		"no init.pid":       func(h *host) { _ = os.Remove(filepath.Join(h.bundle, "init.pid")) },
		"it has ended":      func(h *host) { _ = os.RemoveAll(h.proc) },
		"another's group":   func(h *host) { _ = os.Rename(h.bundle, h.bundle+"0"); h.bundle += "0" },
		"the group is gone": func(h *host) { _ = os.RemoveAll(h.group) },
		"no other child": func(h *host) {
			write(t, filepath.Join(h.group, "cgroup.procs"), fmt.Sprintln(h.program), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, 2, "sleep 60")
			change(h)
			h.asks(t, "pause "+container, "pause "+container)
			h.are(t, "S")
			h.notes(t, "")
		})
	}
}

func TestAnswersForAPausedContainer(t *testing.T) {
	h := newHost(t, 2, "sleep 60")
	for _, verb := range verbs[1:] { // before it is paused
		h.asks(t, "--root r "+verb+" x", "--root r "+verb+" x")
	}
	h.pausesQuietly(t)
	h.asks(t, "ps --format json "+container, "")
	for _, other := range []string{"state " + container, "create --bundle b x", "--version", ""} {
		h.asks(t, other, other)
	}
	for _, refused := range []string{"exec -d x", "update x", "events --stats x", "checkpoint x", "kill x 15", "kill x TERM", "kill --pid 3 x 9", "kill --pid=3 x KILL"} {
		h.args = strings.Fields(refused)
		if rest, err := h.answer(); !errors.Is(err, errPaused) {
			t.Errorf("%s: %q, %v", refused, rest, err)
		}
	}
	h.are(t, "T")
	h.asks(t, "--root r delete x", "--root r delete --force x")
	h.are(t, "S")
	h.notes(t, "ours P Q\n")

	// The number of one that has ended may be another process's by now.
	stranger := start(t, "sleep", "60")
	mkdir(t, filepath.Join(h.proc, strconv.Itoa(stranger)))
	write(t, filepath.Join(h.proc, strconv.Itoa(stranger), "cgroup"), "0::/docker/another\n", 0o600)
	h.signal([]int{stranger, 1 << 30}, syscall.SIGKILL)
	if s, ok := (call{proc: "/proc"}).stat(strconv.Itoa(stranger)); !ok || s.state == "Z" {
		t.Errorf("a stranger is killed: %+v", s)
	}

	h.signal(h.gvisor, syscall.SIGSTOP)
	h.are(t, "T")
	h.asks(t, "kill --all x 9", "")
	h.are(t, "Z")
	h.notes(t, "killed P Q\n")
	h.asks(t, "resume x", "")
	h.notes(t, "killed P Q\n")
	h.asks(t, "kill x SIGKILL", "")
	h.asks(t, "delete --force x", "delete --force --force x")
}

func TestProgramCallsTheRunscBesideIt(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "runsc-freezer")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	write(t, filepath.Join(dir, "runsc"), "#!/bin/sh\necho \"$0: $*, $ONE\"\nexit 5\n", 0o755)
	elsewhere := t.TempDir()
	for link, flags := range map[string]string{
		program: "", dir + "/runsc-offline": "--network=none ", elsewhere + "/runsc-events": "--host-uds=open ", elsewhere + "/other": "",
	} {
		if link != program {
			if err := os.Symlink(program, link); err != nil {
				t.Fatal(err)
			}
		}
		for _, args := range []string{"", "--log l create x"} {
			cmd := exec.Command(link, strings.Fields(args)...)
			cmd.Dir, cmd.Env = elsewhere, []string{"ONE=1"}
			out, _ := cmd.Output()
			want := strings.TrimSuffix(dir+"/runsc: "+flags+args, " ") + ", 1\n"
			if args == "" {
				want = dir + "/runsc: " + strings.TrimSuffix(flags, " ") + ", 1\n"
			}
			if string(out) != want || cmd.ProcessState.ExitCode() != 5 {
				t.Errorf("%s %s: %q, want %q, %v", link, args, out, want, cmd.ProcessState)
			}
		}
	}
	if err := os.Remove(filepath.Join(dir, "runsc")); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(program, "list").CombinedOutput()
	if err == nil || !strings.HasPrefix(string(out), "runsc-freezer: cannot run "+dir+"/runsc: ") {
		t.Errorf("%s, %v", out, err)
	}
}

// Under the name runsc-linked a container is connected once it is created. One that cannot be is deleted, and a shim can read why.
func TestALinkedContainer(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "runsc-linked")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	bundle, calls, log := t.TempDir(), filepath.Join(dir, "calls"), filepath.Join(dir, "log.json")
	for name, tt := range map[string]struct {
		runsc, linker, verb string
		calls, log          string
		code                int
	}{
		"connected":   {"exit 0", "exit 0", "create", "--root r --log=L create x\nlink in B\n", "", 0},
		"not created": {"exit 7", "exit 0", "create", "--root r --log=L create x\n", "", 7},
		"not connected": {"exit 0", "echo no gateway >&2; exit 1", "create",
			"--root r --log=L create x\nlink in B\n--root r --log=L delete --force x\n", "cannot connect the container: exit status 1: no gateway", 1},
		"started": {"exit 0", "exit 1", "start", "--root r --log=L start x\n", "", 0},
	} {
		_, _ = os.Remove(calls), os.Remove(log)
		write(t, filepath.Join(dir, "runsc"), "#!/bin/sh\necho \"$*\" >> "+calls+"\n"+tt.runsc+"\n", 0o755)
		write(t, filepath.Join(dir, "runsc-linker"), "#!/bin/sh\necho \"link in $PWD\" >> "+calls+"\n"+tt.linker+"\n", 0o755)
		cmd := exec.Command(program, "--root", "r", "--log="+log, tt.verb, "x")
		cmd.Dir = bundle
		_ = cmd.Run()
		got, _ := os.ReadFile(calls)
		said, _ := os.ReadFile(log)
		called := strings.NewReplacer(log, "L", bundle, "B").Replace(string(got))
		if called != tt.calls || cmd.ProcessState.ExitCode() != tt.code || !strings.Contains(string(said), tt.log) || (tt.log == "") != (len(said) == 0) {
			t.Errorf("%s: exit code %d, called %q, log %q", name, cmd.ProcessState.ExitCode(), called, said)
		}
	}
}
