package warm

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/daycare-run/sandbox/internal/cgroup"
	"github.com/daycare-run/sandbox/internal/waittest"
)

const swapsHeading = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"

// hostMemory is a host with files of control groups, each with what is in it, and three devices of zram: one without a backing
// device, one of a kernel that knows none, and one that has one.
func hostMemory(t *testing.T, swaps string, files map[string]string) *cgroup.Host {
	t.Helper()
	h := &cgroup.Host{Swaps: filepath.Join(t.TempDir(), "swaps"), Blocks: t.TempDir(), ControlGroups: t.TempDir()}
	for name, backing := range map[string]string{"zram0": "none\n", "zram1": "", "zram2": "/dev/sda4\n"} {
		dir := filepath.Join(h.Blocks, name)
		err := os.Mkdir(dir, 0o700)
		if backing != "" {
			err = errors.Join(err, os.WriteFile(filepath.Join(dir, "backing_dev"), []byte(backing), 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
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

func textOf(h *cgroup.Host, name string) string {
	text, _ := os.ReadFile(filepath.Join(h.ControlGroups, name))
	return string(text)
}

// Memory is reclaimed only after a container was frozen for long enough, and only to compressed memory.
func TestOnlyCompressedSwapIsUsed(t *testing.T) {
	const zram, disk = "/dev/zram0 partition 1024 0 -2\n", "/swapfile file 1024 0 -3\n"
	const old, backed, unknown = "/dev/zram1 partition 1024 0 -4\n", "/dev/zram2 partition 1024 0 -5\n", "/dev/zram3 partition 1024 0 -6\n"
	for swaps, want := range map[string]string{
		"": "", disk: "", zram + disk: "", zram: "0", old: "0", zram + old: "0",
		backed: "", zram + backed: "", unknown: "", "/dev/zram0x partition 1024 0 -2\n": "",
	} {
		synctest.Test(t, func(t *testing.T) {
			engine := newLab(t)
			group := "memory/docker/" + firstID + "/"
			file, usage := group+"memory.force_empty", group+"memory.usage_in_bytes"
			engine.cgroups = hostMemory(t, swaps, map[string]string{file: "", usage: "4096\n"})
			e := engine.freezing()
			defer e.stop()
			engine.run(t, e, "alice")
			e.SetIdle(Idle{FreezeAfter: 30 * time.Second, ReclaimAfter: 5 * time.Minute, RemoveAfter: time.Hour})
			waittest.Pass(4 * time.Minute)
			if got := textOf(engine.cgroups, file); got != "" {
				t.Errorf("swap on %q: too early: %q", swaps, got)
			}
			waittest.Pass(2 * time.Minute)
			if got := textOf(engine.cgroups, file); got != want {
				t.Errorf("swap on %q: %q, not %q", swaps, got, want)
			}
			engine.run(t, e, "alice")
		})
	}
}

// If the kernel has given back too little it is asked again, a few times, and as often when the container is frozen again.
func TestMemoryIsAskedForAgain(t *testing.T) {
	for usage, want := range map[string]int{"4096\n": 1, "100000000\n": 8, "no number": 1} {
		synctest.Test(t, func(t *testing.T) {
			engine := newLab(t)
			group := "memory/docker/" + firstID + "/"
			engine.cgroups = hostMemory(t, "/dev/zram0 partition 1024 0 -2\n", map[string]string{group + "memory.force_empty": "", group + "memory.usage_in_bytes": usage})
			e := engine.freezing()
			defer e.stop()
			for round := range 2 {
				engine.run(t, e, "alice")
				e.SetIdle(Idle{FreezeAfter: 30 * time.Second, ReclaimAfter: time.Minute, RemoveAfter: time.Hour})
				asked := 0
				for range 20 * 60 {
					waittest.Pass(time.Second)
					if file := filepath.Join(engine.cgroups.ControlGroups, group, "memory.force_empty"); textOf(engine.cgroups, group+"memory.force_empty") != "" {
						asked++
						if err := os.Truncate(file, 0); err != nil {
							t.Fatal(err)
						}
					}
				}
				if asked != want {
					t.Errorf("with %q left, round %d: asked %d times, not %d", usage, round, asked, want)
				}
			}
		})
	}
}
