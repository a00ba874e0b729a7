//go:build linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/agent/wire"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// busy is what a shell computes for some tenths of a second.
const busy = `i=0; while ((i++ < 50000)); do :; done; `

// bash is a command line for bash.
func bash(text string) wire.Start {
	return wire.Start{Command: launch.Command{Process: specs.Process{Cwd: "/tmp", Env: []string{"PATH=" + defaultPath, "LANG=C.UTF-8"}}, Shell: text}}
}

// What was written into a pipe before a command's end arrives, in the output and in files.
func TestDrainingIsWaitedFor(t *testing.T) {
	agents := startBoth(t)
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		`echo a > >(` + busy + `cat)`:                                                  "a\n",
		`exec > >(` + busy + `tee ` + dir + `/log) 2>&1; seq 20; exit 3`:               "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n13\n14\n15\n16\n17\n18\n19\n20\n",
		`seq 300000 > >(gzip > ` + dir + `/f.gz)`:                                      "",
		`echo b > >(setsid bash -c '` + busy + `cat' > >(` + busy + `cat)); echo "$?"`: "0\nb\n",
	} {
		for name, mux := range map[string]bool{"plain": false, "ahead": true} {
			session := agents.plain
			if mux {
				session = agents.ahead
			}
			got, err := exchange(session, bash(text), "")
			wantCode := 0
			if strings.Contains(text, "exit 3") {
				wantCode = 3
			}
			if err != nil || got.Stdout != want || got.Exit.Code != wantCode || got.Exit.Leftovers != nil || got.Exit.MoreLeftovers > 0 {
				t.Errorf("%s: %s: %+v, %v", name, text, got, err)
			}
		}
	}
	if got, err := exchange(agents.plain, bash("gunzip < "+dir+"/f.gz | tail -1; tail -1 "+dir+"/log"), ""); err != nil || got.Stdout != "300000\n20\n" {
		t.Errorf("the files: %+v, %v", got, err)
	}
}

// What goes on for itself is asked to end, and told. What only sleeps holds nothing up, though it has the output open.
func TestLeftoversAreEndedAndTold(t *testing.T) {
	agents := startBoth(t)
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	many := slices.Repeat([]string{"sleep 3021"}, wire.MaxLeftovers)
	for text, want := range map[string]wire.Exit{
		`sleep 3021 & echo a`:                            {Leftovers: many[:1]},
		`nohup setsid sleep 3021 2>&1 & echo a`:          {Leftovers: many[:1]},
		`for i in {1..20}; do sleep 3021 & done; echo a`: {Leftovers: many, MoreLeftovers: 12},
		`python3 -c '` + "import time\n# \x1b\u202e" + strings.Repeat("#", 300) + "\ntime.sleep(3021)' & sleep 0.2; echo a": {Leftovers: []string{"python3 -c import time # " + strings.Repeat("#", 172) + "…"}},
		`(sleep 3021; echo b) & sleep 0.1; echo a`: {MoreLeftovers: -1},
		`sleep 3021 & kill -STOP $!; echo a`:       {MoreLeftovers: -1},
		`bash -c 'trap "echo over > ` + dir + `/told; exit" TERM; touch ` + dir + `/up; while :; do sleep 3021 & wait; done' &
			until test -e ` + dir + `/up; do sleep 0.01; done; echo a`: {MoreLeftovers: -1},
	} {
		got, err := exchange(agents.plain, bash(text), "")
		if err != nil || got.Stdout != "a\n" || got.Stderr != "" || got.Exit.Code != 0 {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
		if want.MoreLeftovers >= 0 && (!slices.Equal(got.Exit.Leftovers, want.Leftovers) || got.Exit.MoreLeftovers != want.MoreLeftovers) {
			t.Errorf("%s: told %q and %d more", text, got.Exit.Leftovers, got.Exit.MoreLeftovers)
		}
		for _, line := range got.Exit.Leftovers {
			if len(line) > wire.MaxLeftover || strings.ContainsAny(line, "\n\x1b\u202e") {
				t.Errorf("%s: told %q", text, line)
			}
		}
	}
	if told, err := os.ReadFile(filepath.Join(dir, "told")); err != nil || string(told) != "over\n" {
		t.Errorf("the process that catches SIGTERM wrote %q, %v", told, err)
	}
}

// beginTree makes the test program an agent, and returns a function that starts the first process of a command line.
func beginTree() (*processTree, func(text string) (*rootProcess, error), error) {
	if err := harden(); err != nil {
		return nil, nil, err
	}
	tree := newProcessTree(nil)
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	return tree, func(text string) (*rootProcess, error) {
		p, fault := prepare(bash(text).Command, uint32(os.Getuid()))
		if fault.Fault != wire.FaultNone {
			return nil, errors.New(fault.Message)
		}
		p.Files = []int{null, null, null}
		return tree.start(context.Background(), p)
	}, err
}

// toItsEnd returns a function that runs such a process to its end.
func toItsEnd(start func(string) (*rootProcess, error)) func(string) (*rootProcess, error) {
	return func(text string) (*rootProcess, error) {
		root, err := start(text)
		if err == nil {
			<-root.exited
		}
		return root, err
	}
}

// endsBeside has the test program be endsTwo.
const endsBeside = "beside"

// endsTwo is an agent of which two commands end at the same time: one leaves a process that is stubborn and busy, the other
// one nothing. Neither waits for the other's processes, nor ends them.
func endsTwo() (int, error) {
	tree, start, err := beginTree()
	if err != nil {
		return 99, err
	}
	run := toItsEnd(start)
	// The second process is the first one's child, and becomes the agent's when the first is killed.
	one, err := run(`bash -c 'trap "" TERM; (trap "" TERM; while :; do :; done) & while :; do :; done' &`)
	if err != nil {
		return 99, err
	}
	if !waittest.Comes(func() bool { return len(descendants(1)) == 2 }) {
		return 99, errors.New("what it leaves does not begin")
	}
	termLimit = termQuiet // which they do not heed
	ended := make(chan []string)
	go func() {
		lines, _ := tree.endLeftovers(one, nil, nil)
		ended <- lines
	}()
	for range 20 {
		begun := time.Now()
		other, err := run("true")
		if err != nil {
			return 99, err
		}
		if lines, more := tree.endLeftovers(other, nil, nil); lines != nil || more > 0 {
			return 1, fmt.Errorf("the other one is told of %q and %d more", lines, more)
		}
		if err := tree.sweep(other); err != nil {
			return 2, err
		}
		if took := time.Since(begun); took > timeout {
			return 3, fmt.Errorf("the other one took %v", took)
		}
		if left := descendants(1); len(left) != 2 {
			return 4, fmt.Errorf("there are %v", left)
		}
	}
	for _, pid := range descendants(1) {
		_ = unix.Kill(pid, unix.SIGSTOP) // so that they are no longer waited for
	}
	if lines := <-ended; len(lines) != 2 {
		return 5, fmt.Errorf("told %q", lines)
	}
	if err := tree.sweep(one); err != nil {
		return 6, err
	}
	if left := descendants(1); len(left) > 0 {
		return 7, fmt.Errorf("there are still %v", left)
	}
	return 0, nil
}

func TestCommandsEndOnlyTheirOwn(t *testing.T) {
	if out, err := newNamespace(t.TempDir(), envEnds+"="+endsBeside).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// A command that is to end gives what it has left no time.
func TestHurry(t *testing.T) {
	hurry := make(chan struct{})
	close(hurry)
	asked := 0
	group := func() ([]int, <-chan struct{}) { asked++; return []int{os.Getpid()}, nil }
	if why := settle(group, nil, time.Hour, time.Hour, hurry); why != hurried || asked != 1 {
		t.Errorf("settled with %d after %d looks", why, asked)
	}
}

// What never rests is waited for no longer than the limit.
func TestWhatNeverRests(t *testing.T) {
	group := func() ([]int, <-chan struct{}) { return []int{os.Getpid()}, nil }
	if why := settle(group, nil, time.Hour, time.Millisecond, nil); why != remain {
		t.Errorf("settled with %d", why)
	}
}

// endsAtOnce has the test program be endTogether.
const endsAtOnce = "together"

// endTogether is an agent of which two commands have ended before either is collected: nobody knows whose their leftovers are.
func endTogether() (int, error) {
	tree, start, err := beginTree()
	if err != nil {
		return 99, err
	}
	var roots, left []int
	var both []*rootProcess
	for range 2 {
		root, err := start(`sleep 3024 & wait`)
		if err != nil {
			return 99, err
		}
		both, roots = append(both, root), append(roots, root.pid)
		for len(left) < len(both) {
			left = append(left, descendants(root.pid)...)
		}
	}
	tree.mu.Lock()
	for _, pid := range roots {
		_ = unix.Kill(pid, unix.SIGKILL)
		waittest.Comes(func() bool { return hasEnded(pid) })
	}
	tree.mu.Unlock()
	for _, root := range both {
		<-root.exited
		tree.mu.Lock()
		pids := tree.leftovers(root)
		tree.mu.Unlock()
		if !slices.Equal(pids, left) {
			return 1, fmt.Errorf("%v are a command's, not %v", pids, left)
		}
	}
	for _, root := range both {
		if err := tree.sweep(root); err != nil {
			return 2, err
		}
		if rest := descendants(1); len(rest) > 0 {
			return 3, fmt.Errorf("there are still %v", rest)
		}
	}
	return 0, nil
}

func TestCommandsThatEndTogether(t *testing.T) {
	if out, err := newNamespace(t.TempDir(), envEnds+"="+endsAtOnce).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// What still drains when a command is to end is told, though it is given no time.
func TestHurriedEndTellsOfDraining(t *testing.T) {
	if out, err := newNamespace(t.TempDir(), envEnds+"="+endsInAHurry).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// endsInAHurry has the test program be hurries.
const endsInAHurry = "hurry"

// hurries is an agent that is told to end a command whose rest still drains.
func hurries() (int, error) {
	tree, start, err := beginTree()
	if err != nil {
		return 99, err
	}
	run := toItsEnd(start)
	root, err := run(`while :; do :; done & exit 0`)
	if err != nil {
		return 99, err
	}
	hurry, looked := make(chan struct{}), &output{bulk: -1}
	looked.taken.Store(true)
	go func() {
		waittest.Comes(func() bool { return !looked.taken.Load() })
		close(hurry)
	}()
	begun := time.Now()
	if lines, more := tree.endLeftovers(root, []*output{looked}, hurry); len(lines)+more != 1 {
		return 1, fmt.Errorf("told %q and %d more", lines, more)
	}
	if took := time.Since(begun); took > timeout {
		return 2, fmt.Errorf("it took %v", took)
	}
	if err := tree.sweep(root); err != nil {
		return 3, err
	}
	if left := descendants(1); len(left) > 0 {
		return 4, fmt.Errorf("there are still %v", left)
	}
	return 0, nil
}

// What drains at a persistent command's end is the command's; what sleeps holds nothing up, and goes on.
func TestPersistentCommandsDrain(t *testing.T) {
	l := beginPersistent(t)
	for text, want := range map[string]string{
		`echo a > >(` + busy + `cat)`: "a\n[0 0 false]",
		`sleep 3022 & echo b`:         "b\n[0 0 false]",
	} {
		stream, _ := l.start("", func(r *control.Request) { r.Run.Args[0], r.Run.Args[2] = "bash", text })
		if got := rest(t, stream); got != want {
			t.Errorf("%s: %q", text, got)
		}
	}
}

// A persistent command that has ended in time is not ended because of what it has left, nor is that.
func TestDrainingOutlastsAPersistentTimeout(t *testing.T) {
	l := beginPersistent(t)
	stream, _ := l.start("", func(r *control.Request) {
		text := `echo a > >(end=$((${EPOCHREALTIME/./} + 5500000)); while ((${EPOCHREALTIME/./} < end)); do :; done; cat)`
		r.Run.Args[0], r.Run.Args[2], r.Run.TimeoutMs = "bash", text, 5000
	})
	if got, want := rest(t, stream), "a\n[0 0 false]"; got != want {
		t.Errorf("%q, not %q", got, want)
	}
}

// A durable process's log has what drains at its end.
func TestProcessesDrain(t *testing.T) {
	p, code, _ := run(t, t.TempDir(), shell(`sleep 3023 & exec > >(`+busy+`cat); seq 3; exit 3`))
	if code != 3 || p.log() != "1\n2\n3\n" {
		t.Errorf("it ended with %d and logged %q", code, p.log())
	}
}
