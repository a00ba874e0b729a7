//go:build linux

package agent

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/agent/spawn"
)

// aheadBuiltin is the path of the compiled sandbox-image/ahead.c in the image. The number is raised
// with every change that the other end could not understand, because an image may be older or newer
// than the agent.
const aheadBuiltin = "/usr/lib/daycare-sandbox/ahead.2.so"

// aheadRoom is how many bytes of its command line, and of its environment, /proc shows for a shell
// that was started ahead.
const aheadRoom = 4 << 10

// answerFirst is the time between a command's end and the start of the next one's shell. Started at
// once, the shell would take the processor from the processes that carry the answer to the caller.
const answerFirst = 2 * time.Millisecond

// ahead starts the next command's shell before the command comes. The shell waits for it in the
// builtin of sandbox-image/ahead.c, with its standard files in place.
//
// A shell waits only while nothing else lives in the container: it is started when the last command
// has ended with all that it left, from the image's own files and environment, and the next command
// to begin takes it or ends it. So no command can have touched the shell of the next one, though
// both run as one user.
//
// The builtin makes bash's variables again and runs the text as bash -c does. Cheaper ways were
// measured, and differ: eval of a text that read has read names eval in syntax errors and changes
// $_; source from a descriptor changes line numbers, return and BASH_SOURCE; BASH_ARGV0 changes $0,
// and no message. All three keep the environment that bash began with. A launcher that waits before
// its exec is exact, but saves only the fork, and bash's start is what takes the time. A waiting
// shell that executes programs gained nothing under gVisor and lost under runc.
type ahead struct {
	tree       *processTree
	devNull    int
	uid        uint32
	builtin    string
	env        []string        // the image's PATH and locale
	programs   []spawn.Program // of a command that the shell may take
	shells     []spawn.Program // those among them that no command can have replaced
	options    []string        // before the command line
	persistent bool            // commands may leave something behind
	besides    func() []int    // lists processes that belong to no command

	mu      sync.Mutex
	running int           // commands
	shell   *waitingShell // nil for none
	proven  bool          // a shell has waited: the image has bash and the builtin
	useless bool          // no shell could wait, or none may
}

// newAhead returns an ahead without a shell; environ is the environment that the container gives
// the agent.
func newAhead(tree *processTree, devNull int, uid uint32, builtin string, environ []string) *ahead {
	a := &ahead{
		tree: tree, devNull: devNull, uid: uid, builtin: builtin,
		env:      append(localeOf(environ), "PATH="+pathOf(environ)),
		programs: shellPrograms(environ, "/"), options: []string{"-c", "--"},
		besides: func() []int { return nil },
	}
	// Any other directory may be off the read-only root, where a command could have put its own
	// bash.
	own := strings.Split(pathOf(environ), ":")
	if other := slices.IndexFunc(own, func(dir string) bool {
		return !slices.Contains(strings.Split(defaultPath, ":"), dir)
	}); other >= 0 {
		own = own[:other]
	}
	a.shells, a.useless = places("bash", strings.Join(own, ":"), "/"), len(own) == 0
	return a
}

// newPersistentAhead starts shells for what clients of E2B run, /bin/bash -l -c COMMAND, where
// commands may leave something behind. The root filesystem is writable there, but not to the
// commands' user; where root may run commands, it may do anything anyway.
func newPersistentAhead(tree *processTree, devNull int, uid uint32, builtin string,
	environ []string, besides func() []int) *ahead {
	a := newAhead(tree, devNull, uid, builtin, environ)
	a.programs, a.options = places("/bin/bash", "", ""), []string{"-c", "-c"}
	a.shells = a.programs
	a.persistent, a.useless, a.besides = true, false, besides
	return a
}

// begin is called before a command starts. It returns the shell that takes the command, or nil.
func (a *ahead) begin(ctx context.Context, p spawn.Process) *waitingShell {
	a.mu.Lock()
	a.running++
	shell := a.shell
	a.shell = nil
	clean := a.running == 1
	a.mu.Unlock()
	if shell == nil {
		return nil
	}
	if clean && a.fits(p) {
		if shell.await(ctx) {
			return shell
		}
		if ctx.Err() == nil {
			a.mu.Lock()
			a.useless = !a.proven
			a.mu.Unlock()
		}
	}
	shell.discard(a.tree)
	return nil
}

// ended is called when a command has ended, with all that it left.
func (a *ahead) ended() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.running--
}

// next is called after ended. The next command is expected to be like this one.
func (a *ahead) next(p spawn.Process) {
	if a.fits(p) {
		time.AfterFunc(answerFirst, a.prepare)
	}
}

// ready calls prepare, and returns when the shell waits or never will, or after awaitLimit.
func (a *ahead) ready() {
	a.prepare()
	a.mu.Lock()
	shell := a.shell
	a.mu.Unlock()
	if shell != nil {
		shell.await(context.Background())
	}
}

// prepare starts a shell, unless there is one or anything else runs, besides the first process, the
// agent and bridges.
func (a *ahead) prepare() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.useless || a.running > 0 || a.shell != nil || !isOnlyProcess(a.besides()...) {
		return
	}
	a.shell = newWaitingShell()
	go a.run(a.shell) // the start may take long: nothing waits for it
}

// isOnlyProcess reports whether the container has no process but the first, the caller and those in
// besides.
func isOnlyProcess(besides ...int) bool {
	dir, err := os.Open("/proc")
	if err != nil {
		return false
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	return err == nil && !slices.ContainsFunc(names, func(name string) bool {
		pid, err := strconv.Atoi(name)
		return err == nil && pid != 1 && pid != os.Getpid() && !slices.Contains(besides, pid)
	})
}

// run starts a shell, and finds out whether it waits.
func (a *ahead) run(s *waitingShell) {
	s.waits = a.start(s) == nil && s.receive(make([]byte, 1))
	close(s.ready)
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case s.waits:
		a.proven = true
	case a.shell == s:
		a.shell, a.useless = nil, !a.proven
		s.discard(a.tree)
	}
}

func (a *ahead) start(s *waitingShell) error {
	defer close(s.started)
	files, err := openPipes(true, a.devNull)
	if err != nil {
		return err
	}
	defer files.closeChildEnds()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		files.close()
		return fmt.Errorf("cannot open a socket: %w", err)
	}
	defer unix.Close(ends[1])
	text := "enable -f " + a.builtin + " ahead; ahead"
	root, err := a.tree.start(s.starting, spawn.Process{
		Programs: a.shells, Args: append(slices.Clone(a.options),
			text+strings.Repeat(" ", max(0, aheadRoom-len(text)))),
		Env: append([]string{"ROOM=" + strings.Repeat(" ", aheadRoom)}, a.env...), Dir: "/",
		UID: a.uid, Files: append(files.child[:], ends[1]), GiveOrphans: a.persistent,
	})
	if err != nil {
		files.close()
		_ = unix.Close(ends[0])
		return err
	}
	s.root, s.pipes, s.socket = root, files, ends[0]
	return nil
}

// fits reports whether a shell that has started ahead runs a command as a new one would.
func (a *ahead) fits(p spawn.Process) bool {
	_, _, is := lineOf(p)
	return is && !p.Terminal && p.UID == a.uid && fitsRequest(p) &&
		slices.Equal(a.programs, p.Programs) &&
		slices.Equal(a.env[:len(a.env)-1], localeOf(p.Env)) &&
		!slices.ContainsFunc(p.Env, readAtStart)
}

// lineOf returns the command line of a process that is a shell, and whether it is a login shell.
func lineOf(p spawn.Process) (text string, login, is bool) {
	if len(p.Args) != 3 {
		return "", false, false
	}
	text = p.Args[2]
	switch [2]string(p.Args) {
	case [2]string{"-c", "--"}:
		return text, false, true
	case [2]string{"-lc", "--"}:
		return text, true, true
	case [2]string{"-l", "-c"}: // where bash may take a text for an option
		return text, true, !strings.HasPrefix(text, "-") && !strings.HasPrefix(text, "+")
	}
	return "", false, false
}

// maxAheadAll bounds what a waiting shell gets besides the command line, in bytes: the kernel does
// not take much more (execve(2)), and an ordinary start gets its error.
const maxAheadAll = 1 << 20

func fitsRequest(p spawn.Process) bool {
	size := 0
	for _, text := range append([]string{p.Dir}, p.Env...) {
		if len(text) > launch.MaxString || strings.ContainsRune(text, 0) {
			return false
		}
		size += len(text)
	}
	return size <= maxAheadAll &&
		!slices.ContainsFunc(p.Args, func(text string) bool {
			return strings.ContainsRune(text, 0)
		})
}

// readAtStart reports whether bash, the dynamic linker or the C library reads an entry of the
// environment when a program starts, and at no other time.
func readAtStart(entry string) bool {
	name, _, _ := strings.Cut(entry, "=")
	switch name {
	case "SSH_CLIENT", "SSH2_CLIENT", "SHELLOPTS", "POSIXLY_CORRECT", "POSIX_PEDANTIC", "LOCPATH",
		"GCONV_PATH", "ENV", "EMACS", "INSIDE_EMACS":
		return true
	}
	for _, prefix := range []string{"LD_", "MALLOC_", "GLIBC_"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return strings.HasPrefix(name, "BASH") && !strings.HasPrefix(name, "BASH_FUNC_")
}

// localeOf returns the entries that set a program's language and characters, sorted.
func localeOf(env []string) (locale []string) {
	for _, entry := range env {
		if strings.HasPrefix(entry, "LC_") || strings.HasPrefix(entry, "LANG=") ||
			strings.HasPrefix(entry, "LANGUAGE=") {
			locale = append(locale, entry)
		}
	}
	slices.Sort(locale)
	return locale
}
