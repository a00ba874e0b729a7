package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Each job that needs no more than python and git can be done, and leaves nothing.
func TestJobsCanBeDone(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "make.py"), []byte(makeInput), 0o600); err != nil {
		t.Fatal(err)
	}
	whole := jobs
	defer func() { jobs = whole }()
	jobs = slices.DeleteFunc(slices.Clone(jobs), func(j job) bool {
		return slices.ContainsFunc([]string{"node", "rg ", "make ", "sqlite3 "}, func(of string) bool { return strings.Contains(j.prepare+j.run, of) })
	})
	if len(jobs) < 10 {
		t.Fatalf("%d jobs", len(jobs))
	}
	l := &lab{settings: settings{quick: true}, dir: dir, progress: io.Discard}
	work := filepath.Join(dir, "work")
	found, err := l.work(t.Context(), onHost, []workPlace{{onHost, work}}, func(script string) (spent, error) {
		cmd := exec.CommandContext(t.Context(), "bash", "-c", strings.ReplaceAll(script, "FILES=400", "FILES=40"))
		cmd.Env = append(os.Environ(), "INPUT="+dir)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v: %s", script, err, out)
		}
		return spent{wall: 1, processor: 2}, nil
	})
	if err != nil || len(found[onHost]) != len(jobs) || found.all(onHost) != (spent{10, 20}) {
		t.Errorf("%v, %v", found, err)
	}
	if _, err := os.Stat(work); !os.IsNotExist(err) {
		t.Errorf("left: %v", err)
	}
}
