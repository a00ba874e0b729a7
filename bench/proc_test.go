package main

import (
	"os"
	"os/exec"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A thread stands for a process that shares its memory: to kcmp(2) both are tasks.
func TestSharedMemoryIsCountedOnce(t *testing.T) {
	other := exec.Command("sleep", "3600")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = other.Process.Kill()
		_ = other.Wait()
	}()
	thread := make(chan int)
	go func() {
		runtime.LockOSThread()
		thread <- unix.Gettid()
		thread <- 0 // it lives until it has been looked at
	}()
	owners, err := addressSpaces([]int{os.Getpid(), <-thread, other.Process.Pid})
	<-thread
	if want := []int{os.Getpid(), other.Process.Pid}; err != nil || !slices.Equal(owners, want) {
		t.Errorf("address spaces of %v, %v, want %v", owners, err, want)
	}
}

func TestProcessorTime(t *testing.T) {
	before, err := processorTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	after := before
	for begun := time.Now(); err == nil && after == before && time.Since(begun) < time.Minute; { // uses some
		after, err = processorTime(os.Getpid())
	}
	if used := after - before; err != nil || used <= 0 || used > time.Minute {
		t.Errorf("%v, %v", used, err)
	}
	if _, err := processorTime(1 << 23); err == nil {
		t.Error("no process has a number above 1<<22")
	}
}
