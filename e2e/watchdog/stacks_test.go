package watchdog

import (
	"bytes"
	"runtime/pprof"
	"strings"
	"testing"
)

// Of a dump those are picked that run what was asked for, once where they are alike.
func TestPick(t *testing.T) {
	end := make(chan struct{})
	defer close(end)
	wait := func(begun chan<- struct{}) { begun <- struct{}{}; <-end }
	begun := make(chan struct{})
	for range 3 {
		go wait(begun)
		<-begun
	}
	var dump bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&dump, 2); err != nil {
		t.Fatal(err)
	}
	const ours = "github.com/daycare-run/sandbox/e2e/watchdog."
	got := Pick(dump.String(), 10000, ours)
	if strings.Count(got, ours+"TestPick.func1(") != 1 || strings.Count(got, ours+"TestPick(") != 1 {
		t.Error(got)
	}
	if alone := Pick(dump.String(), 10000, ours+"TestPick\n"); strings.Count(alone, "goroutine ") > 2 || !strings.Contains(alone, ours+"TestPick(") {
		t.Error(alone)
	}
	if cut := Pick(dump.String(), 1, ours); strings.Count(cut, "\n\n") != 1 {
		t.Error(cut)
	}
	if none := Pick(dump.String(), 10000, "example.org/none."); none != "" {
		t.Error(none)
	}
}
