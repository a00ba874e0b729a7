package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/e2e/watchdog"
)

// A scenario that hangs ends the suite, which first prints where the scenario and its sandboxd are.

const module = "github.com/daycare-run/sandbox/"

// mostStacks is how many bytes of stacks are written for a process that hangs.
const mostStacks = 50_000

// explain writes where scenarios are. It ends the sandboxd of their labs.
func explain(out io.Writer, scenarios []string) {
	fmt.Fprintf(out, "e2e: the scenarios are at\n\n%s", ownStacks(scenarios...))
	for l := range openLabs.Range {
		if l := l.(*lab); slices.ContainsFunc(scenarios, func(name string) bool { _, uses := l.users.Load(name); return uses }) {
			fmt.Fprintf(out, "e2e: the sandboxd in %s is at\n\n%s", l.dir, watchdog.Pick(l.quit(), mostStacks, module, "main."))
		}
	}
}

// ownStacks returns the stacks of the scenarios' goroutines, without the caller's. Without names, it is for all scenarios.
func ownStacks(scenarios ...string) string {
	var dump bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&dump, 2)
	_, others, _ := strings.Cut(dump.String(), "\n\n")
	prefixes := []string{}
	for _, name := range scenarios {
		name, _, _ = strings.Cut(name, "/")
		name = module + "e2e." + name
		prefixes = append(prefixes, name+"\n", name+".", "created by "+name+".", "created by "+name+"\n")
	}
	if len(scenarios) == 0 {
		prefixes = []string{module + "e2e."}
	}
	return watchdog.Pick(others, mostStacks, prefixes...)
}

// quit makes sandboxd write its stacks and end, even while it is stopped by a signal, and returns the stacks.
func (l *lab) quit() string {
	if l.dumps != nil {
		return l.dumps()
	}
	if l.exited == nil {
		return ""
	}
	_ = l.daemon.Process.Signal(syscall.SIGQUIT)
	_ = l.daemon.Process.Signal(syscall.SIGCONT)
	select {
	case <-l.exited:
	case <-time.After(20 * time.Second):
	}
	_, dump, _ := strings.Cut(l.log.String(), dumpBegins)
	return dump
}

// killChildren kills the processes that this one has started and not yet waited for.
func killChildren() {
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	for _, list := range lists {
		text, _ := os.ReadFile(list)
		for _, word := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(word); err == nil {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
}

// explain says where a hanging scenario and its sandboxd wait, and ends no other scenario's sandboxd.
func TestAHangIsExplained(t *testing.T) {
	bystander, hung := newLab(t, "runc"), newLab(t, "runc")
	bystander.users.Clear() // as another scenario's
	hung.register(t, "hang")
	hung.sh(t, "hang", "true")
	called := make(chan error, 1)
	go func() {
		_, err := hung.client.Exec(context.Background(), "hang", types.Exec{Permissions: workspace, Command: "echo > begun; sleep 7811"})
		called <- err
	}()
	eventually(t, "the command runs", func() bool { _, err := os.Stat(hung.home("hang") + "/begun"); return err == nil })
	if err := hung.daemon.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	said := make(chan string)
	go func() {
		var out bytes.Buffer
		explain(&out, []string{t.Name()})
		said <- out.String()
	}()
	text := <-said
	if err := <-called; err == nil {
		t.Error("the call has not failed")
	}
	for _, want := range []string{"e2e.TestAHangIsExplained(", "e2e.TestAHangIsExplained.func1(", hung.dir, "sandbox/api.", "main.serve("} {
		if !strings.Contains(text, want) {
			t.Errorf("it does not say %q", want)
		}
	}
	if len(text) > 3*mostStacks || strings.Contains(text, bystander.dir) {
		t.Errorf("it says %d bytes, and of another scenario's lab: %t", len(text), strings.Contains(text, bystander.dir))
	}
	if _, err := bystander.client.Health(t.Context()); err != nil || errors.Is(err, context.Canceled) {
		t.Errorf("another scenario's lab: %v", err)
	}
	if t.Failed() {
		t.Logf("it says\n%s", text)
	}
}
