package spawn

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// start runs a program with its stdout in a pipe, and returns that and how it ended.
func start(t *testing.T, p Process) (string, syscall.WaitStatus, error) {
	t.Helper()
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(null) }()
	p.Files = []int{null, pipe[1], null}
	pid, err := Start(t.Context(), p)
	_ = unix.Close(pipe[1])
	stdout := os.NewFile(uintptr(pipe[0]), "stdout")
	defer stdout.Close()
	if err != nil {
		if pid > 0 {
			_, _ = syscall.Wait4(pid, nil, 0, nil)
		}
		return "", 0, err
	}
	text, err := io.ReadAll(stdout)
	if err != nil {
		t.Fatal(err)
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil {
		t.Fatal(err)
	}
	return string(text), status, nil
}

func shell(script string) Process {
	return Process{Programs: []Program{{"/bin/sh", "sh"}}, Args: []string{"-c", script}, Env: []string{"PATH=/usr/bin:/bin", "A=b c"}, Dir: "/", UID: uint32(os.Getuid())}
}

func TestProgramsStartClean(t *testing.T) {
	for name, c := range map[string]struct{ script, want string }{
		"environment":       {"env | grep -v -E '^(PWD|_|SHLVL|OLDPWD)=' | sort", "A=b c\nPATH=/usr/bin:/bin\n"},
		"directory":         {"pwd", "/\n"},
		"session":           {`test "$(cut -d' ' -f6 /proc/$$/stat)" = $$ && echo own`, "own\n"},
		"no signal blocked": {"grep SigBlk /proc/self/status | cut -f2", "0000000000000000\n"},
		// The shell is a subreaper: what a subshell has orphaned becomes its child.
		"subreaper": {`(sleep 60 & echo $!) | { read pid; for i in $(seq 100); do
			parent=$(cut -d' ' -f4 /proc/$pid/stat); test $parent = $$ && break; sleep 0.1
		done; echo $parent; kill $pid; }; echo $$`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, status, err := start(t, shell(c.script))
			if err != nil || status.ExitStatus() != 0 {
				t.Fatalf("ended with %v, %v", status, err)
			}
			if name == "subreaper" {
				if lines := strings.Fields(got); len(lines) != 2 || lines[0] != lines[1] {
					t.Errorf("the orphan's parent and the shell: %q", got)
				}
				return
			}
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestTerminalIsTheControllingOne(t *testing.T) {
	near, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(near) }()
	if err := unix.IoctlSetPointerInt(near, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	far, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(near), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		t.Fatal(errno)
	}
	defer func() { _ = unix.Close(int(far)) }()
	// The shell's own group is in the foreground of the terminal that /dev/tty is.
	p := shell(`test "$(cut -d' ' -f8 /proc/$$/stat)" = $$ && : </dev/tty && exit 7`)
	p.Files, p.Terminal = []int{int(far), int(far), int(far)}, true
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(null) }()
	for _, stdin := range []int{int(far), null} {
		p.Files[0] = stdin
		pid, err := Start(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		var status syscall.WaitStatus
		if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil || status.ExitStatus() != 7 {
			t.Errorf("%v, %v", status, err)
		}
	}
	p.Files[1] = null
	var failed *Error
	if _, err := Start(t.Context(), p); !errors.As(err, &failed) || failed.Stage != StagePrepare || failed.Errno != syscall.ENOTTY {
		t.Errorf("what is no terminal: %v", err)
	}
}

func TestFailedStartsNameTheStage(t *testing.T) {
	script := t.TempDir() + "/script"
	if err := os.WriteFile(script, []byte("#!/no/such/interpreter\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*Process)
		stage  Stage
		errno  syscall.Errno
	}{
		"no such program":      {func(p *Process) { p.Programs = []Program{{"/no/such/program", "x"}} }, StageSearch, syscall.ENOENT},
		"behind a file":        {func(p *Process) { p.Programs = []Program{{"/etc/passwd/x", "x"}} }, StageExec, syscall.ENOTDIR},
		"not a program":        {func(p *Process) { p.Programs = []Program{{"/etc/passwd", "x"}} }, StageExec, syscall.EACCES},
		"nowhere":              {func(p *Process) { p.Programs = []Program{{"/no/sh", "x"}, {"/etc/passwd/sh", "x"}} }, StageSearch, syscall.ENOENT},
		"denied, and nowhere":  {func(p *Process) { p.Programs = []Program{{"/etc/passwd", "x"}, {"/no/sh", "x"}} }, StageExec, syscall.EACCES},
		"no interpreter":       {func(p *Process) { p.Programs = []Program{{"/no/sh", "x"}, {script, "x"}} }, StageExec, syscall.ENOENT},
		"nothing to look for":  {func(p *Process) { p.Programs = nil }, StageFork, syscall.EINVAL},
		"no such directory":    {func(p *Process) { p.Dir = "/no/such/dir" }, StageDir, syscall.ENOENT},
		"not a directory":      {func(p *Process) { p.Dir = "/etc/passwd" }, StageDir, syscall.ENOTDIR},
		"too long an argument": {func(p *Process) { p.Args = append(p.Args, strings.Repeat("x", 1<<20)) }, StageExec, syscall.E2BIG},
	} {
		t.Run(name, func(t *testing.T) {
			p := shell("true")
			c.change(&p)
			_, _, err := start(t, p)
			var failed *Error
			if !errors.As(err, &failed) || failed.Stage != c.stage || failed.Errno != c.errno {
				t.Errorf("got %v", err)
			}
		})
	}
	if _, _, err := start(t, Process{Programs: []Program{{"/bin/sh\x00", "sh"}}, Dir: "/"}); err == nil {
		t.Error("a path with a NUL byte was started")
	}
}

func TestTheFirstProgramThatThereIs(t *testing.T) {
	p := shell("echo $0")
	p.Programs = []Program{{"/no/sh", "first"}, {"/etc/passwd", "first"}, {"/bin/sh", "second"}, {"/bin/false", "third"}}
	if got, _, err := start(t, p); got != "second\n" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// Parent and child share memory until the exec, so many starts at once must not touch each other.
func TestManyStartsAtOnce(t *testing.T) {
	var work sync.WaitGroup
	for i := range 64 {
		work.Go(func() {
			want := strings.Repeat("x", i+1)
			got, status, err := start(t, shell("printf "+want+"; exit "+string(rune('0'+i%8))))
			if err != nil || got != want || status.ExitStatus() != i%8 {
				t.Errorf("start %d: %q, %v, %v", i, got, status, err)
			}
		})
	}
	work.Wait()
}

func TestBlock(t *testing.T) {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 3)
	read := func() (uintptr, syscall.Errno) {
		return Block(unix.SYS_READ, uintptr(pipe[0]), uintptr(unsafe.Pointer(&answer[0])), uintptr(len(answer)), 0)
	}
	written := make(chan error)
	go func() { // it runs while the read waits
		_, err := unix.Write(pipe[1], []byte("ab"))
		written <- err
	}()
	if n, errno := read(); n != 2 || errno != 0 || string(answer[:n]) != "ab" {
		t.Errorf("read %d bytes, %q, %v", n, answer, errno)
	}
	if err := errors.Join(<-written, unix.Close(pipe[1])); err != nil {
		t.Fatal(err)
	}
	if n, errno := read(); n != 0 || errno != 0 {
		t.Errorf("at the end: %d, %v", n, errno)
	}
	if err := unix.Close(pipe[0]); err != nil {
		t.Fatal(err)
	}
	if _, errno := read(); errno != unix.EBADF {
		t.Errorf("closed: %v", errno)
	}
}

// A start that hangs is given up when its context ends, also before there is a child.
func TestAStartThatIsGivenUp(t *testing.T) {
	name := filepath.Join(t.TempDir(), "leased") // whoever executes it waits for its lease
	program, err := os.ReadFile("/bin/true")
	if err == nil {
		err = os.WriteFile(name, program, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	leased, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer leased.Close()
	if _, err := unix.FcntlInt(leased.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Fatal(err)
	}
	p := shell("true")
	p.Programs = []Program{{name, "true"}}
	for _, limit := range []time.Duration{0, 10 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		pid, err := Start(ctx, p)
		cancel()
		var failed *Error
		if !errors.As(err, &failed) || failed.Errno != syscall.ETIME {
			t.Fatalf("after %v: %v", limit, err)
		}
		if _, err := syscall.Wait4(pid, nil, 0, nil); err != nil {
			t.Errorf("after %v: %v", limit, err)
		}
	}
}
