package cgroup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const swapsHeading = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"

// hostMemory is a host with files of control groups, each with what is in it.
func hostMemory(t *testing.T, swaps string, files map[string]string) *Host {
	t.Helper()
	h := &Host{Swaps: filepath.Join(t.TempDir(), "swaps"), ControlGroups: t.TempDir()}
	if err := os.WriteFile(h.Swaps, []byte(swapsHeading+swaps), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		name = filepath.Join(h.ControlGroups, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

func (h *Host) text(name string) string {
	text, _ := os.ReadFile(filepath.Join(h.ControlGroups, name))
	return string(text)
}

func TestMemoryIsGivenBack(t *testing.T) {
	first := hostMemory(t, "", map[string]string{"memory/docker/c/memory.force_empty": "", "memory/docker/c/memory.usage_in_bytes": "8192\n"})
	if left, err := first.Reclaim("c"); err != nil || left != 8192 || first.text("memory/docker/c/memory.force_empty") != "0" {
		t.Errorf("version 1: %v", err)
	}
	first.ForbidSwap("c") // has nothing to do
	const group = "system.slice/docker-c.scope/"
	second := hostMemory(t, "", map[string]string{group + "memory.reclaim": "", group + "memory.current": "4096\n", group + "memory.swap.max": "0"})
	if left, err := second.Reclaim("c"); err != nil || left != 4096 || second.text(group+"memory.reclaim") != "4096" || second.text(group+"memory.swap.max") != "max" {
		t.Errorf("version 2: %v", err)
	}
	if second.ForbidSwap("c"); second.text(group + "memory.swap.max")[0] != '0' { // a kernel's file has no former end
		t.Error("it may swap on")
	}
	if _, err := second.Reclaim("another"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of one that is not there: %v", err)
	}
}

// Before it is asked for memory, the kernel is known to take such a wish, and whoever looks after the host is told if it does not.
func TestReclaimNeedsKernelSupport(t *testing.T) {
	const group = "system.slice/docker-c.scope/"
	for name, tt := range map[string]struct {
		files map[string]string
		want  string // part of the error; empty for none
	}{
		"no control groups":     {nil, "there are no control groups"},
		"version 1":             {map[string]string{"memory/cgroup.procs": ""}, ""},
		"version 2":             {map[string]string{"cgroup.procs": "", "memory.reclaim": ""}, ""},
		"version 2, old kernel": {map[string]string{"cgroup.procs": "", group + "memory.current": "4096", group + "memory.swap.max": "0"}, "from Linux 5.19 on"},
	} {
		h := hostMemory(t, "", tt.files)
		if err := h.MayReclaim(); (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := h.Reclaim("c"); err == nil || tt.files[group+"memory.current"] != "" && !strings.Contains(err.Error(), tt.want) || h.text(group+"memory.swap.max") == "max" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestHostMemoryIsRead(t *testing.T) {
	if _, err := (&Host{Swaps: "/nowhere"}).Swap(); err == nil {
		t.Error("nobody can tell")
	}
	if _, err := ThisHost().Swap(); err != nil {
		t.Error(err)
	}
	if n := AvailableMemory(); n < 1<<20 || n > 1<<50 {
		t.Errorf("the host has %d bytes", n)
	}
}
