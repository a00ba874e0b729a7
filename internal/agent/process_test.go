//go:build linux

package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/internal/agent/launch"
)

// The test program is also what these tests run: with one of these in its environment it is the
// first process of a pid namespace, or a command in there.
const (
	envDir   = "TEST_PROCESS_DIR"   // of the first process
	envFsize = "TEST_PROCESS_FSIZE" // its RLIMIT_FSIZE
	envFill  = "TEST_PROCESS_FILL"  // a command that prints so many bytes
	envEnds  = "TEST_PROCESS_ENDS"  // the first process is an agent that ends, with commands that do not
	envTrace = "TEST_PROCESS_TRACE" // the first process is an agent whose command has something traced; see traces
)

// timeout is for what takes far less.
const timeout = time.Minute

func init() {
	if os.Getenv(envDir) != "" || os.Getenv(envTrace) != "" {
		runtime.LockOSThread() // as in cmd/sandbox-agent, and because a tracer is a thread, and so is what it traces
	}
}

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(envDir) != "":
		code, err := firstProcess(os.Getenv(envDir))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(code)
	case os.Getenv(envTrace) != "":
		fmt.Fprintln(os.Stderr, traces(os.Getenv(envTrace)))
		os.Exit(1)
	case os.Getenv(envFill) != "":
		if err := fill(os.Getenv(envFill)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	default:
		os.Exit(m.Run())
	}
}

// firstProcess sees to it that /proc is the new namespace's, and to the limit.
func firstProcess(dir string) (int, error) {
	err := errors.Join(
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("proc", "/proc", "proc", 0, ""))
	if err != nil {
		return 99, fmt.Errorf("cannot mount /proc: %w", err)
	}
	if limit, err := strconv.ParseUint(os.Getenv(envFsize), 10, 64); err == nil {
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
			return 99, err
		}
	}
	leftLimit, termLimit, readLimit = 2*timeout, 2*timeout, timeout // so that who waits for them is seen to
	switch os.Getenv(envEnds) {
	case "":
	case endsBeside:
		return endsTwo()
	case endsAtOnce:
		return endTogether()
	case endsInAHurry:
		return hurries()
	case endsHung:
		return hangsAhead(dir)
	case endsTracing:
		return tracesRoot()
	default:
		return endsAll()
	}
	if os.Getenv(envTrace) != "" {
		return sweepsTracer()
	}
	if builtin := os.Getenv(envAhead); builtin != "" {
		return serveAhead(builtin)
	}
	if socket := os.Getenv(envSocket); socket != "" {
		startLimit = 8 * time.Second
		return 0, runPersistent(socket, uint32(os.Getuid()), false, nil, os.Getenv(envBuiltin))
	}
	return RunProcess(dir, filepath.Join(dir, "socket"), uint32(os.Getuid()), nil)
}

func TestAProcessStartsWhenItIsTold(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, launch.StateFile, "left", "over"), 0o700); err != nil {
		t.Fatal(err)
	}
	p := begin(t, dir, shell(`ls $DIR; while [ ! -e $DIR/go ]; do sleep 0.01; done; exit 7`), nil)
	if exists(p.path(launch.StateFile)) || p.log() != "" {
		t.Error("there is a state before the start, or output")
	}
	if a := p.orders(launch.Order{AccessTimes: []string{"/proc", dir}}); a.AccessTimes != nil || a.Fault != "nothing is mounted at "+dir {
		t.Errorf("the answer for what is not mounted is %+v", a)
	}
	if a := p.orders(launch.Order{AccessTimes: []string{"/proc"}}); len(a.AccessTimes) != 1 || a.Fault != "" {
		t.Errorf("the answer is %+v", a)
	}
	if exists(p.path(launch.StateFile)) {
		t.Error("a question has begun it")
	}
	told := time.Now()
	p.orders(launch.Order{Begin: true})
	p.until("there is a state", func() bool { return exists(p.path(launch.StateFile)) })
	data, err := os.ReadFile(p.path(launch.StateFile))
	if err != nil {
		t.Fatal(err)
	}
	s, err := launch.ParseState(data)
	if err != nil || s.StartedAt.Before(told) || s.PID < 2 || !s.EndedAt.IsZero() {
		t.Errorf("the state while it runs is %s, %v", data, err)
	}
	if err := os.WriteFile(p.path("go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	code, end := p.end()
	if code != 7 || end.ExitCode != 7 || end.Signal != "" || end.Fault != "" || end.Lost != 0 || end.PID != s.PID || !end.StartedAt.Equal(s.StartedAt) {
		t.Errorf("exit code %d, state %+v", code, end)
	}
	if strings.Contains(p.log(), launch.File) || !strings.Contains(p.log(), launch.LogFile) {
		t.Errorf("the command found %q", p.log())
	}
}

func TestAProcessThatIsNotToStartAnyMore(t *testing.T) {
	for signal, want := range map[unix.Signal]string{unix.SIGTERM: "SIGTERM", unix.SIGINT: "SIGINT", unix.SIGHUP: "SIGHUP"} {
		p := begin(t, t.TempDir(), shell("echo started"), nil)
		p.signal(signal)
		code, s := p.end()
		if code != 128+int(signal) || s.Signal != want || !s.StartedAt.IsZero() || exists(p.path(launch.LogFile)) {
			t.Errorf("%s: exit code %d, state %+v, log %q", want, code, s, p.log())
		}
	}
}

func TestProcessExitsAreReported(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		launch launch.Launch
		code   int
		signal string
		log    string
	}{
		"in order":    {program("sh", "-c", "exit $1", "sh", "3"), 3, "", ""},
		"in silence":  {shell("true"), 0, "", ""},
		"by a signal": {shell("echo before; kill -KILL $$"), 137, "SIGKILL", "before\n"},
		"by a real-time signal": {
			program("bash", "-c", "kill -40 $$"), 168, "SIG40", ""},
		// Those beyond 31 are the C library's own.
		"signals are as usual": {
			shell(`grep -E '^Sig(Blk|Ign)' /proc/self/status | while read -r name set; do echo "$name $((0x$set & 0x7fffffff))"; done`), 0, "", "SigBlk: 0\nSigIgn: 0\n"},
		"a note comes first":       {launch.Launch{Command: shell("echo hi").Command, Note: "made anew"}, 0, "", "[sandbox: made anew]\nhi\n"},
		"stdin is empty":           {shell("readlink /proc/self/fd/0; wc -c"), 0, "", "/dev/null\n0\n"},
		"one pipe for both":        {shell("[ /proc/self/fd/1 -ef /proc/self/fd/2 ] && echo one"), 0, "", "one\n"},
		"a session of its own":     {shell("echo $(cut -d' ' -f6 /proc/$$/stat) $$ | tr ' ' '\\n' | uniq | wc -l"), 0, "", "1\n"},
		"the program is not there": {program("no-such"), 127, "", "[sandbox: cannot start: no-such: command not found]\n"},
		"the file is not there":    {program("/no/such"), 127, "", "[sandbox: cannot start: /no/such: no such file or directory]\n"},
		"no program":               {program("/etc/passwd"), 126, "", "[sandbox: cannot start: /etc/passwd: permission denied]\n"},
		"the cwd is not there":     {launch.Launch{Command: launch.Command{Process: specs.Process{Cwd: "/no/such"}, Shell: "true"}}, 126, "", "[sandbox: cannot start: /no/such: no such file or directory]\n"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			p, code, s := run(t, dir, c.launch)
			if code != c.code || s.Signal != c.signal || s.Signal == "" && s.ExitCode != code {
				t.Errorf("exit code %d, state %+v", code, s)
			}
			if p.log() != c.log {
				t.Errorf("the log is %q, want %q", p.log(), c.log)
			}
			if fault := strings.Contains(c.log, "cannot start"); fault != (s.Fault != "") || fault != s.StartedAt.IsZero() || !strings.Contains(p.log(), s.Fault) {
				t.Errorf("the state is %+v", s)
			}
		})
	}
}

func TestOutputKeepsItsOrder(t *testing.T) {
	var want strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&want, "o%d\ne%d\n", i, i)
	}
	p, _, _ := run(t, t.TempDir(), shell(`i=0; while [ $i -lt 3000 ]; do echo o$i; echo e$i >&2; i=$((i+1)); done`))
	if p.log() != want.String() {
		t.Errorf("%d bytes were logged, not the %d that were printed in their order", len(p.log()), want.Len())
	}
}

func TestARotatedLogHasEveryLineOnce(t *testing.T) {
	l := shell("seq 1 500000")
	l.Log = launch.Log{MaxBytes: 256 << 10, Files: 50}
	p, _, s := run(t, t.TempDir(), l)
	next := 1
	files := parts(t, p.dir)
	for _, file := range files {
		for line := range strings.Lines(file) {
			if line != strconv.Itoa(next)+"\n" {
				t.Fatalf("line %d is %q", next, line)
			}
			next++
		}
	}
	if next != 500001 || len(files) < 10 || s.Lost != 0 {
		t.Errorf("%d lines in %d files, %d bytes lost", next-1, len(files), s.Lost)
	}
}

// Each of the three says that the signal has come. The first process goes when the others have.
func TestSignalsReachEverything(t *testing.T) {
	const line = `
		child='trap "echo $0 got it; : > $DIR/$0; exit" TERM HUP; echo $0 ready; while :; do sleep 1000 & wait; done'
		setsid sh -c "$child" session &
		(setsid sh -c "(sh -c '$child' daemon &)" &)
		(sh -c "$child" background &)
		trap 'echo leader got it; while [ ! -e $DIR/session ] || [ ! -e $DIR/daemon ] || [ ! -e $DIR/background ]; do sleep 0.01; done; exit 5' TERM HUP
		echo leader ready
		while :; do sleep 1000 & wait; done`
	for _, signal := range []unix.Signal{unix.SIGTERM, unix.SIGHUP} {
		p := begin(t, t.TempDir(), shell(line), nil)
		p.orders(launch.Order{Begin: true})
		names := []string{"leader", "session", "daemon", "background"}
		for _, name := range names {
			p.untilLogged(name + " ready\n")
		}
		p.signal(signal)
		if code, s := p.end(); code != 5 || s.Signal != "" {
			t.Errorf("exit code %d, state %+v", code, s)
		}
		for _, name := range names {
			if n := strings.Count(p.log(), name+" got it\n"); n != 1 {
				t.Errorf("%v: %s got it %d times", signal, name, n)
			}
		}
	}
}

// A shell's background jobs ignore SIGINT, so it has a test of its own.
func TestAnInterrupt(t *testing.T) {
	p := begin(t, t.TempDir(), shell("trap 'exit 9' INT; echo ready; while :; do sleep 0.01; done"), nil)
	p.orders(launch.Order{Begin: true})
	p.untilLogged("ready\n")
	p.signal(unix.SIGINT)
	if code, s := p.end(); code != 9 || s.ExitCode != 9 {
		t.Errorf("exit code %d, state %+v", code, s)
	}
}

// What the first process leaves running ends with it, and what that had printed is there.
func TestNothingOutlivesTheRootProcess(t *testing.T) {
	p, code, s := run(t, t.TempDir(), shell(`
		(setsid sh -c 'trap "" TERM HUP INT; head -c 60000 /dev/zero | tr "\0" x; echo; : > $DIR/printed; while :; do sleep 1000; done' &)
		while [ ! -e $DIR/printed ]; do sleep 0.01; done; exit 3`))
	if code != 3 || s.EndedAt.Sub(s.StartedAt) > timeout || p.log() != strings.Repeat("x", 60000)+"\n" {
		t.Errorf("exit code %d, state %+v, %d bytes logged", code, s, len(p.log()))
	}
}

// An orphan is collected at once, by the first process: roots that live long collect none.
func TestOrphansAreCollected(t *testing.T) {
	p, code, _ := run(t, t.TempDir(), shell(`
		(sh -c 'echo $$ > $DIR/orphan; while [ ! -e $DIR/go ]; do sleep 0.01; done' &)
		while [ ! -s $DIR/orphan ]; do sleep 0.01; done
		read pid < $DIR/orphan; cut -d' ' -f4 /proc/$pid/stat
		: > $DIR/go; while [ -e /proc/$pid ]; do sleep 0.01; done`))
	if code != 0 || p.log() != "1\n" {
		t.Errorf("exit code %d, the orphan's parent was %q", code, p.log())
	}
}

func TestALaunchThatCannotBe(t *testing.T) {
	for name, c := range map[string]struct {
		make func(path string) error
		want string
	}{
		"no launch":      {func(path string) error { return os.WriteFile(path, []byte("{}"), 0o400) }, "refused"},
		"a field more":   {func(path string) error { return os.WriteFile(path, []byte(`{"version":1,"x":1}`), 0o400) }, "unknown field"},
		"too large":      {func(path string) error { return os.WriteFile(path, make([]byte, launch.MaxSize+1), 0o400) }, "more than"},
		"a pipe, not it": {func(path string) error { return unix.Mkfifo(path, 0o600) }, "not a regular file"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := c.make(filepath.Join(dir, launch.File)); err != nil {
				t.Fatal(err)
			}
			code, s := begin(t, dir, launch.Launch{}, nil).end()
			if code != launch.CodeAgent || s.ExitCode != code || !strings.Contains(s.Fault, c.want) {
				t.Errorf("exit code %d, state %+v", code, s)
			}
		})
	}
}

// SIGXFSZ, which comes with the limit, would end a Go program.
func TestALimitOfFileSizes(t *testing.T) {
	const limit = 2 * launch.MaxStateSize
	p, code, s := run(t, t.TempDir(), shell("head -c 20000 /dev/zero | tr '\\0' x; exit 6"), envFsize+"="+strconv.Itoa(limit))
	if code != 6 || s.Lost != 20000-limit || p.log() != strings.Repeat("x", limit) {
		t.Errorf("exit code %d, state %+v, %d bytes logged", code, s, len(p.log()))
	}
}
