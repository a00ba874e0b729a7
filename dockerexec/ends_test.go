package dockerexec

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
)

// sleeper starts a process that ends when end is called.
func sleeper(t *testing.T) (pid int, end func()) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "cat")
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid, func() {
		_ = in.Close()
		_ = cmd.Wait()
	}
}

// ownGroup returns a part of the name of a control group that this program and its children are in.
func ownGroup(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return line
}

func TestEndOfAProcessIsAwaited(t *testing.T) {
	pid, end := sleeper(t)
	process := openProcess(pid, ownGroup(t))
	if process == nil {
		t.Fatal("it cannot be watched")
	}
	ended := make(chan bool)
	go func() { ended <- awaitEnd(t.Context(), process) }()
	end()
	if !<-ended {
		t.Error("its end was not seen")
	}
	if again := openProcess(pid, ownGroup(t)); again != nil {
		t.Error("a process that has ended is watched")
	}
}

// Docker may say that a container has ended whose first process goes on.
func TestAnEndThatDoesNotComeIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &Executor{ends: map[string]*end{"c": {learned: make(chan struct{})}}}
		if found := e.watchedEnd(t.Context(), "c"); found != nil {
			t.Errorf("%v", found)
		}
	})
}

func TestWaitForAnEndIsGivenUp(t *testing.T) {
	pid, end := sleeper(t)
	defer end()
	if openProcess(pid, "another container") != nil {
		t.Error("a process of something else is watched")
	}
	process := openProcess(pid, ownGroup(t))
	if process == nil {
		t.Fatal("it cannot be watched")
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan bool)
	go func() { ended <- awaitEnd(ctx, process) }()
	cancel()
	if <-ended {
		t.Error("it is taken for ended")
	}
}
