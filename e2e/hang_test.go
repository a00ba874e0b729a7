package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/e2e/watchdog"
)

// What a story that hangs waits for is ended, and has to say first what it was at: the story itself, its
// sandboxd, and the programs that it has started.

const module = "github.com/daycare-run/sandbox/"

// running is a process that serves stories.
type running struct {
	pid    int
	exited <-chan struct{}
}

// breakUp writes what a story is at that has hung for so long, and ends what it waits for.
func breakUp(out io.Writer, story string, since time.Duration) {
	fmt.Fprintf(out, "e2e: %s hangs; it is at\n\n%s", story, ownStacks(since))
	others := map[int]bool{}
	for e := range openEngines.Range {
		if d := e.(*privateEngine).runs.Load(); d != nil {
			others[d.pid] = true
		}
	}
	for l := range openLabs.Range {
		if l := l.(*lab); l.serves(story) {
			l.broken.Store(true)
			fmt.Fprintf(out, "e2e: its sandboxd is at\n\n%s", watchdog.Pick(l.quit(), since, 10000, module, "main."))
		} else if d := l.runs.Load(); d != nil {
			others[d.pid] = true
		}
	}
	for _, pid := range children() {
		if line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); !others[pid] && len(line) > 0 {
			fmt.Fprintf(out, "e2e: it has started process %d, which is ended: %.200q\n", pid, bytes.ReplaceAll(line, []byte{0}, []byte{' '}))
			quit(pid)
		}
	}
}

// ownStacks are the stories' own, without the caller's.
func ownStacks(since time.Duration) string {
	var dump bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&dump, 2)
	_, others, _ := strings.Cut(dump.String(), "\n\n")
	return watchdog.Pick(others, since, 10000, module+"e2e.")
}

// quit has a program of Go write its stacks to its stderr, also one that is stopped, and ends any other.
func quit(pid int) {
	_ = syscall.Kill(pid, syscall.SIGQUIT)
	_ = syscall.Kill(pid, syscall.SIGCONT)
}

// quit ends sandboxd and returns its stacks.
func (l *lab) quit() string {
	if l.dumps != nil {
		return l.dumps()
	}
	d := l.runs.Load()
	if d == nil {
		return ""
	}
	select {
	case <-d.exited:
		return ""
	default:
		quit(d.pid)
	}
	select {
	case <-d.exited:
	case <-time.After(time.Minute):
	}
	_, dump, _ := strings.Cut(l.log.String(), dumpBegins)
	return dump
}

// serves reports whether the story, or one inside it, has the lab.
func (l *lab) serves(story string) bool {
	at := *l.story.Load()
	return at == story || strings.HasPrefix(at, story+"/")
}

// children are the processes that this one has started and that have not been waited for.
func children() (pids []int) {
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	for _, list := range lists {
		text, _ := os.ReadFile(list)
		for _, word := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(word); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func killChildren() {
	for _, pid := range children() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// Broken up, a story's calls and programs end and say what they were at; the next story has a lab that works,
// and nobody else loses one.
func TestAHangIsBrokenUp(t *testing.T) {
	const name = "hang"
	bystander := newLab(t, "runc")
	open := func(t *testing.T) *lab { return sharedLab(t, machine, name, runtimeSettings("runc")) }
	var hung *lab
	t.Run("the story", func(t *testing.T) {
		hung = open(t)
		hung.register(t, name)
		hung.sh(t, name, "true")
		called := make(chan error, 1)
		go func() {
			_, err := hung.client.Exec(context.Background(), name, types.Exec{Permissions: workspace, Command: "echo > begun; sleep 7811"})
			called <- err
		}()
		eventually(t, "the command runs", func() bool { _, err := os.Stat(hung.home(name) + "/begun"); return err == nil })
		program := exec.Command("sleep", "7812")
		if err := errors.Join(program.Start(), hung.daemon.Process.Signal(syscall.SIGSTOP)); err != nil {
			t.Fatal(err)
		}
		var said bytes.Buffer
		breakUp(&said, t.Name(), storyLimit)
		if err := <-called; err == nil {
			t.Error("the call has not failed")
		}
		_ = program.Wait()
		if got := program.ProcessState.Sys().(syscall.WaitStatus).Signal(); got != syscall.SIGQUIT {
			t.Errorf("the program ended by %v", got)
		}
		for _, want := range []string{t.Name() + " hangs", "e2e.TestAHangIsBrokenUp.func", "sandbox/api.", "main.serve  ", `"sleep 7812 "`} {
			if !strings.Contains(said.String(), want) {
				t.Errorf("it does not say %q", want)
			}
		}
		if n := said.Len(); n > 25000 {
			t.Errorf("it says %d bytes", n)
		}
		if t.Failed() {
			t.Logf("it says\n%s", said.String())
		}
	})
	if _, err := os.Stat(hung.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the lab is left: %v", err)
	}
	l := open(t)
	l.broken.Store(true) // nobody else needs it
	l.register(t, name)
	l.sh(t, name, "true")
	if _, err := bystander.client.Health(t.Context()); err != nil {
		t.Errorf("another story's lab: %v", err)
	}
}
