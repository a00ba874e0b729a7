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

	"github.com/daycare-run/sandbox/internal/agent/spawn"
)

// aheadBuiltin is where the image has sandbox-image/ahead.c, compiled. The number is raised with every change that the
// other end could not understand, for an image may be older or newer than the agent.
const aheadBuiltin = "/usr/lib/daycare-sandbox/ahead.2.so"

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
	options  []string     // before the text
	lasting  bool         // commands may leave something behind
	besides  func() []int // processes that are nobody's command

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
		env: append(localeOf(environ), "PATH="+pathOf(environ)), programs: shellPrograms(environ, "/"), options: []string{"-c", "--"},
		besides: func() []int { return nil },
	}
	// Elsewhere than on the read-only root a command could have put its own bash.
	a.useless = slices.ContainsFunc(strings.Split(pathOf(environ), ":"), func(dir string) bool {
		return !slices.Contains(strings.Split(defaultPath, ":"), dir)
	})
	return a
}

// newLastingAhead has shells wait for what clients of E2B begin commands with, /bin/bash -l -c COMMAND, where commands may leave
// something behind. Its root filesystem can be written, but not by who commands run as, or by root, who may do all there.
func newLastingAhead(tree *processTree, devNull int, uid uint32, builtin string, environ []string, besides func() []int) *ahead {
	a := newAhead(tree, devNull, uid, builtin, environ)
	a.programs, a.options = places("/bin/bash", "", ""), []string{"-c", "-c"}
	a.lasting, a.useless, a.besides = true, false, besides
	return a
}

// begin is called before a command starts. It returns the shell that takes it, or nil.
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
func (a *ahead) next(p spawn.Process) {
	if a.fits(p) {
		time.AfterFunc(answerFirst, a.prepare)
	}
}

// ready is prepare that returns when the shell waits, or never will.
func (a *ahead) ready() {
	a.prepare()
	a.mu.Lock()
	shell := a.shell
	a.mu.Unlock()
	if shell != nil {
		shell.await(context.Background())
	}
}

// prepare starts a shell unless there is one, or anything else but the first process and the agent.
func (a *ahead) prepare() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.useless || a.running > 0 || a.shell != nil || !isOnlyProcess(a.besides()...) {
		return
	}
	a.shell = newWaitingShell()
	go a.run(a.shell) // whose start may take as long as it likes: nobody waits for it
}

// isOnlyProcess reports whether the container has no other process than the first, the caller and those.
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
		Programs: a.programs, Args: append(slices.Clone(a.options), text+strings.Repeat(" ", max(0, aheadRoom-len(text)))),
		Env: append([]string{"ROOM=" + strings.Repeat(" ", aheadRoom)}, a.env...), Dir: "/", UID: a.uid,
		Files: append(files.child[:], ends[1]), GiveOrphans: a.lasting,
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
		slices.Equal(a.programs, p.Programs) && slices.Equal(a.env[:len(a.env)-1], localeOf(p.Env)) &&
		!slices.ContainsFunc(p.Env, readAtStart)
}

// lineOf is the command line of a process that is a shell, and whether that is a login shell.
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
	case [2]string{"-l", "-c"}: // where a text may be taken for an option
		return text, true, !strings.HasPrefix(text, "-") && !strings.HasPrefix(text, "+")
	}
	return "", false, false
}

// Bounds of what a shell is handed. The kernel takes neither a longer argument nor much more of all
// (execve(2), MAX_ARG_STRLEN), and says so when asked.
const (
	maxAheadText = 128<<10 - 1
	maxAheadAll  = 1 << 20
)

func fitsRequest(p spawn.Process) bool {
	size := 0
	for _, text := range append(append([]string{p.Dir}, p.Args...), p.Env...) {
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
	case "SSH_CLIENT", "SSH2_CLIENT", "SHELLOPTS", "POSIXLY_CORRECT", "POSIX_PEDANTIC", "LOCPATH", "GCONV_PATH", "ENV", "EMACS", "INSIDE_EMACS":
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
