package main

import (
	"os"
	"os/exec"
	"runtime"
	"slices"
	"testing"

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
