package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/api/types"
)

// zram has the machine swap to compressed memory, unless it swaps already.
func zram(t *testing.T) {
	t.Helper()
	if swaps, err := os.ReadFile("/proc/swaps"); err != nil || strings.Count(string(swaps), "\n") > 1 {
		return
	}
	number, err := os.ReadFile("/sys/class/zram-control/hot_add")
	if err != nil {
		t.Fatalf("this test needs zram, or a machine that swaps: modprobe zram: %v", err)
	}
	n := strings.TrimSpace(string(number))
	device := "/dev/zram" + n
	t.Cleanup(func() {
		_ = exec.Command("swapoff", device).Run()
		if err := os.WriteFile("/sys/class/zram-control/hot_remove", []byte(n), 0o200); err != nil {
			t.Errorf("%s stays: %v", device, err)
		}
	})
	if err := os.WriteFile("/sys/block/zram"+n+"/disksize", []byte("2G"), 0o200); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(device); err != nil {
		numbers, _ := os.ReadFile("/sys/block/zram" + n + "/dev")
		var major, minor uint32
		_, _ = fmt.Sscanf(string(numbers), "%d:%d", &major, &minor)
		if err := unix.Mknod(device, unix.S_IFBLK|0o600, int(unix.Mkdev(major, minor))); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Remove(device) })
	}
	for _, argv := range [][]string{{"mkswap", device}, {"swapon", device}} {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", argv, err, out)
		}
	}
}

// A frozen container gives all but 15 MiB of its memory back, and has it again when it is used. So it does where the service
// runs in a container that may write to control groups.
func TestAFrozenContainerGivesItsMemoryBack(t *testing.T) {
	begin(t)
	zram(t)
	for _, runtime := range runtimes {
		t.Run(runtime, func(t *testing.T) {
			givesBack(t, newLab(t, runtime, freezesSoon, "SANDBOXD_IDLE_RECLAIM_AFTER=2s"))
		})
	}
	t.Run("compose", func(t *testing.T) {
		d := newDeployment(t, openWorld(t), "docker-compose.isolated.yml", "docker-compose.frozen.yml", "../docker-compose.memory.yml")
		d.up(t)
		givesBack(t, d.lab)
	})
}

func givesBack(t *testing.T, l *lab) {
	t.Helper()
	const user = "large"
	l.register(t, user)
	l.sh(t, user, "head -c 67108864 /dev/zero | tail -c 67108864 | wc -c; head -c 33554432 /dev/urandom > /dev/shm/kept; sha256sum < /dev/shm/kept > /home/sum")
	id := l.warmID(t, user)
	used := func() int {
		for _, name := range []string{"memory/docker/%s/memory.usage_in_bytes", "memory/system.slice/docker-%s.scope/memory.usage_in_bytes", "docker/%s/memory.current", "system.slice/docker-%s.scope/memory.current"} {
			if text, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", fmt.Sprintf(name, id))); err == nil {
				n, err := strconv.Atoi(strings.TrimSpace(string(text)))
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
		}
		t.Fatal("its control group is not where Docker has it by default")
		return 0
	}
	before := used()
	eventually(t, "its memory is given back", func() bool { return used() <= 15<<20 })
	if l.state(t, user) != "frozen" {
		t.Errorf("it is %s", l.state(t, user))
	}
	after := used()
	begun := time.Now()
	l.warmly(t, user)
	t.Logf("%d MiB before, %.1f MiB frozen; the first call took %v", before>>20, float64(after)/(1<<20), time.Since(begun))
	if out := l.run(t, user, types.Exec{Command: "sha256sum < /dev/shm/kept | cmp - /home/sum && echo same"}); out.Stdout != "same\n" {
		t.Errorf("%+v", out)
	}
}
