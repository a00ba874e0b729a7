package probes

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"
)

// The one that may have the fewest files open counts, by the number to which Go raises the other.
func TestFewestOpenFiles(t *testing.T) {
	proc := t.TempDir()
	if _, _, err := fewestOpenFiles(proc); err == nil {
		t.Error("nothing runs, and no error")
	}
	run := func(pid int, comm, soft, hard string) {
		dir := filepath.Join(proc, fmt.Sprint(pid))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		limits := fmt.Sprintf("Limit                     Soft Limit           Hard Limit           Units     \nMax open files            %-20s %-20s files     \nMax locked memory         8388608              8388608              bytes     \n", soft, hard)
		for name, text := range map[string]string{"comm": comm + "\n", "limits": limits} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	run(1, "init", "64", "64")
	for i, step := range []struct {
		comm, soft, hard, program string
		want                      uint64
	}{
		{"dockerd", "unlimited", "unlimited", "dockerd", math.MaxUint64},
		{"containerd", "1024", "524288", "containerd", 524288},
		{"dockerd", "20000", "20000", "dockerd", 20000},
	} {
		run(i+2, step.comm, step.soft, step.hard)
		if program, limit, err := fewestOpenFiles(proc); program != step.program || limit != step.want || err != nil {
			t.Errorf("%s with %s: %s, %d, %v", step.comm, step.hard, program, limit, err)
		}
	}
}
