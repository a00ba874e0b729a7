package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// build builds a program as scripts/setup.sh does.
func build(t *testing.T, of string) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "program")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-E=main.entry", "-o", program, of)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// descriptors returns for how many file descriptors a process has a table.
func descriptors(t *testing.T, status []byte) int {
	t.Helper()
	found := regexp.MustCompile(`(?m)^FDSize:\s*(\d+)$`).FindSubmatch(status)
	if found == nil {
		t.Fatalf("no FDSize in %s", status)
	}
	size, err := strconv.Atoi(string(found[1]))
	if err != nil {
		t.Fatal(err)
	}
	return size
}

func TestRunscHasItsTableOfDescriptorsFromTheStart(t *testing.T) {
	program := build(t, ".")
	log := filepath.Join(t.TempDir(), "log")
	if err := syscall.Mkfifo(log, 0o600); err != nil {
		t.Fatal(err)
	}
	runsc := exec.Command(program, "--log="+log, "--root="+t.TempDir(), "list")
	if err := runsc.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- runsc.Wait() }()
	// It opens its log, and waits for a reader. By then Go has started its threads.
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		status, err := os.ReadFile("/proc/" + strconv.Itoa(runsc.Process.Pid) + "/status")
		if err != nil {
			t.Fatal(err)
		}
		if descriptors(t, status) >= 256 && regexp.MustCompile(`(?m)^Threads:\s*([2-9]|\d\d)`).Match(status) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s", status)
		}
	}
	reader, err := os.Open(log)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// The prewarmer executes what it is told to, with arguments and environment, and a larger table.
func TestPrewarmerExecutes(t *testing.T) {
	program := build(t, "./prewarmer")
	status, err := exec.Command(program, "/bin/cat", "cat", "/proc/self/status").Output()
	if err != nil {
		t.Fatal(err)
	}
	if size := descriptors(t, status); size < 256 {
		t.Errorf("a table for %d descriptors", size)
	}

	shell := exec.Command(program, "/bin/sh", "name", "-c", `echo "$0 $# $2 $ONE $TWO"; exit 3`, "zero", "", "b c")
	shell.Env = []string{"ONE=1", "TWO=2"}
	out, err := shell.Output()
	if string(out) != "zero 2 b c 1 2\n" || shell.ProcessState.ExitCode() != 3 {
		t.Errorf("%q, %v", out, err)
	}
	for _, args := range [][]string{nil, {"/bin/true"}, {"/nowhere/true", "true"}} {
		cmd := exec.Command(program, args...)
		if err := cmd.Run(); cmd.ProcessState.ExitCode() != 127 {
			t.Errorf("%q: %v", args, err)
		}
	}
}
