package probes

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"
)

// What starts containers counts, by the number to which Go raises the other, and none of that name in a container.
func TestWhoMayOpenHowManyFiles(t *testing.T) {
	proc := t.TempDir()
	if _, _, err := mayOpen(proc); err == nil {
		t.Error("nothing runs, and no error")
	}
	run := func(pid, comm, soft, hard, namespace string) {
		dir := filepath.Join(proc, pid)
		if err := errors.Join(os.MkdirAll(dir+"/ns", 0o755), os.Symlink(namespace, dir+"/ns/pid")); err != nil {
			t.Fatal(err)
		}
		limits := fmt.Sprintf("Limit                     Soft Limit           Hard Limit           Units     \nMax open files            %-20s %-20s files     \nMax locked memory         8388608              8388608              bytes     \n", soft, hard)
		for name, text := range map[string]string{"comm": comm + "\n", "limits": limits} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	run("self", "sandboxd", "64", "64", "pid:[1]")
	for pid, step := range []struct {
		comm, soft, hard, namespace, program string
		want                                 uint64
	}{
		{"containerd", "64", "64", "pid:[2]", "", 0},
		{"dockerd", "unlimited", "unlimited", "pid:[1]", "dockerd", math.MaxUint64},
		{"containerd", "1024", "524288", "pid:[1]", "containerd", 524288},
		{"dockerd", "20000", "20000", "pid:[1]", "containerd", 524288},
	} {
		run(fmt.Sprint(pid+1), step.comm, step.soft, step.hard, step.namespace)
		if program, limit, err := mayOpen(proc); program != step.program || limit != step.want || (err == nil) != (program != "") {
			t.Errorf("%s with %s: %s, %d, %v", step.comm, step.hard, program, limit, err)
		}
	}
}
