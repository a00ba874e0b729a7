package engine

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// process puts one into a /proc of a test's.
func process(t *testing.T, proc string, pid, parent int, name string, args ...string) {
	t.Helper()
	dir := filepath.Join(proc, fmt.Sprint(pid))
	if err := os.MkdirAll(filepath.Join(dir, "cwd"), 0o700); err != nil {
		t.Fatal(err)
	}
	for file, content := range map[string]string{
		"stat":    fmt.Sprintf("%d (%s) S %d 1 1 0", pid, name, parent),
		"cmdline": strings.Join(args, "\x00") + "\x00",
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestList(t *testing.T) {
	proc := t.TempDir()
	one, two := strings.Repeat("1", 64), strings.Repeat("2", 64)
	const shim = "/usr/bin/containerd-shim-runc-v2"
	process(t, proc, 10, 1, "containerd-shim",
		shim, "-namespace", "moby", "-id", one, "-address", "/x")
	process(t, proc, 11, 10, "a) S 99 (b", "sleep", "1")
	process(t, proc, 12, 10, "runc", "runc", "--root", "/r", "exec", "--process", "/tmp/p", one)
	process(t, proc, 13, 12, "runc:[2:INIT]", "runc", "init")
	process(t, proc, 14, 10, "runsc-sandbox", "runsc-sandbox", "boot", one)
	process(t, proc, 20, 1, "containerd-shim", shim, "-namespace", "moby", "-id", two)
	process(t, proc, 30, 1, "containerd-shim", shim, "-namespace", "k8s.io", "-id", two)
	process(t, proc, 31, 1, "x", "containerd-shim", "-namespace", "moby", "-id", "../../etc")
	process(t, proc, 32, 1, "x", "containerd-shim", "-namespace", "moby", "-id")
	process(t, proc, 33, 2, "kthread")
	bundle := `{"mounts":[{"source":"tmpfs"},{"source":"/data/agent/sandbox-agent-00"}]}`
	file := filepath.Join(proc, "20", "cwd", "config.json")
	if err := os.WriteFile(file, []byte(bundle), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := processes{proc, os.Getuid()}.list()
	if err != nil {
		t.Fatal(err)
	}
	want := []Shim{
		{PID: 10, Container: one, Children: []int{11, 12, 14}, Execs: []int{12}},
		{PID: 20, Container: two, Sources: []string{"tmpfs", "/data/agent/sandbox-agent-00"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
	if got, err := (processes{proc, os.Getuid() + 1}).list(); len(got) != 0 || err != nil {
		t.Errorf("what a tenant calls a shim: %v, %v", got, err)
	}
}

// A process that has another parent, or another id, by the time it is to be killed is not killed.
func TestOthersAreNotKilled(t *testing.T) {
	me := Shim{PID: os.Getpid(), Container: strings.Repeat("1", 64)}
	if err := me.Kill(); err != nil {
		t.Error(err)
	}
	Shim{PID: 1, Children: []int{os.Getpid()}}.KillAll()
}
