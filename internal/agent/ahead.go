//go:build linux

package agent

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/agent/spawn"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// aheadBuiltin is where the image has sandbox-image/ahead.c, compiled. The number is raised with every change that the
// other end could not understand, for an image may be older or newer than the agent.
const aheadBuiltin = "/usr/lib/daycare-sandbox/ahead.1.so"

// aheadRoom is how many bytes /proc shows of the command line of a shell that was started ahead, and of its environment.
const aheadRoom = 4 << 10

// answerFirst is how long after a command's end the next one's shell is started: it would take the processor from those
// who carry the answer to the caller.
const answerFirst = 2 * time.Millisecond

// ahead starts the next command's shell before it is asked for. The shell waits in the builtin of sandbox-image/ahead.c
// for its command, with its standard files in place.
//
// A shell waits only while nothing else lives in the container: it is started when the last command has ended with
// all that it left, from the image's own files and environment, and a command that begins takes it or ends it. So no
// command can have reached the one after it, though both are of one user.
type ahead struct {
	tree     *processTree
	devNull  int
	uid      uint32
	builtin  string
	env      []string // the image's PATH and locale
	programs []spawn.Program

	mu      sync.Mutex
	running int           // commands
	shell   *waitingShell // nil for none
	proven  bool          // one has waited: the image has bash and the builtin
	useless bool          // one has not, or none may
}

// newAhead takes the environment that the agent has of its container.
func newAhead(tree *processTree, devNull int, uid uint32, builtin string, environ []string) *ahead {
	a := &ahead{
		tree: tree, devNull: devNull, uid: uid, builtin: builtin,
		env: append(localeOf(environ), "PATH="+pathOf(environ)), programs: shellPrograms(environ, "/"),
	}
	// Elsewhere than on the read-only root a command could have put its own bash.
	a.useless = slices.ContainsFunc(strings.Split(pathOf(environ), ":"), func(dir string) bool {
		return !slices.Contains(strings.Split(defaultPath, ":"), dir)
	})
	return a
}

// begin is called before a command starts. It returns the shell that takes it, or nil.
func (a *ahead) begin(start wire.Start, p spawn.Process) *waitingShell {
	a.mu.Lock()
	a.running++
	shell := a.shell
	a.shell = nil
	clean := a.running == 1
	a.mu.Unlock()
	if shell == nil {
		return nil
	}
	close(shell.hurry)
	if clean && a.fits(start, p) {
		if shell.await() {
			return shell
		}
		a.mu.Lock()
		a.useless = !a.proven
		a.mu.Unlock()
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
func (a *ahead) next(start wire.Start, p spawn.Process) {
	if start.Ahead && a.fits(start, p) {
		time.AfterFunc(answerFirst, a.prepare)
	}
}

// prepare starts a shell unless there is one, or anything else but the first process and the agent.
func (a *ahead) prepare() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.useless || a.running > 0 || a.shell != nil || !isOnlyProcess() {
		return
	}
	a.shell = &waitingShell{hurry: make(chan struct{}), started: make(chan struct{}), ready: make(chan struct{})}
	go a.run(a.shell) // whose start may take as long as it likes: nobody waits for it
}

// isOnlyProcess reports whether the container has no other process than the first and the caller.
func isOnlyProcess() bool {
	dir, err := os.Open("/proc")
	if err != nil {
		return false
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	return err == nil && !slices.ContainsFunc(names, func(name string) bool {
		pid, err := strconv.Atoi(name)
		return err == nil && pid != 1 && pid != os.Getpid()
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
	root, err := a.tree.start(spawn.Process{
		Programs: a.programs, Args: []string{"-c", "--", text + strings.Repeat(" ", max(0, aheadRoom-len(text)))},
		Env: append([]string{"ROOM=" + strings.Repeat(" ", aheadRoom)}, a.env...), Dir: "/", UID: a.uid,
		Files: append(files.child[:], ends[1]), Hurry: s.hurry,
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
func (a *ahead) fits(start wire.Start, p spawn.Process) bool {
	return start.Shell != "" && !start.Login && !start.Terminal && fitsRequest(start) &&
		slices.Equal(a.programs, p.Programs) && slices.Equal(a.env[:len(a.env)-1], localeOf(start.Env)) &&
		!slices.ContainsFunc(start.Env, readAtStart)
}

// Bounds of what a shell is handed. The kernel takes neither a longer argument nor much more of all
// (execve(2), MAX_ARG_STRLEN), and says so when asked.
const (
	maxAheadText = 128<<10 - 1
	maxAheadAll  = 1 << 20
)

func fitsRequest(start wire.Start) bool {
	size := 0
	for _, text := range append([]string{start.Shell, start.Cwd}, start.Env...) {
		if len(text) > maxAheadText || strings.ContainsRune(text, 0) {
			return false
		}
		size += len(text)
	}
	return size <= maxAheadAll
}

// readAtStart reports whether bash, the dynamic linker or the C library reads an entry of the environment when a
// program starts, and at no other time.
func readAtStart(entry string) bool {
	name, _, _ := strings.Cut(entry, "=")
	switch name {
	case "SHELLOPTS", "POSIXLY_CORRECT", "POSIX_PEDANTIC", "LOCPATH", "GCONV_PATH", "ENV", "EMACS", "INSIDE_EMACS":
		return true
	}
	for _, prefix := range []string{"LD_", "MALLOC_", "GLIBC_"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return strings.HasPrefix(name, "BASH") && !strings.HasPrefix(name, "BASH_FUNC_")
}

// localeOf are the entries that decide about a program's language and characters, sorted.
func localeOf(env []string) (locale []string) {
	for _, entry := range env {
		if strings.HasPrefix(entry, "LC_") || strings.HasPrefix(entry, "LANG=") || strings.HasPrefix(entry, "LANGUAGE=") {
			locale = append(locale, entry)
		}
	}
	slices.Sort(locale)
	return locale
}
