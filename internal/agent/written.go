//go:build linux

package agent

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// written returns how many bytes the root filesystem takes up beyond the image, if that is known at
// once, as under gVisor, which puts them into a filesystem of its own. Otherwise it returns 0.
func written() int64 {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil || !hasOwnLayer(string(mounts)) {
		return 0
	}
	var st unix.Statfs_t
	if err := unix.Statfs("/", &st); err != nil || st.Bfree > st.Blocks {
		return 0
	}
	return int64(st.Blocks-st.Bfree) * st.Bsize
}

// hasOwnLayer reports whether the root is an overlay of gVisor's own, which names no layers. About
// one of Docker's, the kernel would give the figures of the host's disk.
func hasOwnLayer(mounts string) bool {
	for line := range strings.Lines(mounts) {
		if f := strings.Fields(line); len(f) > 3 && f[1] == "/" {
			return f[2] == "overlay" && !strings.Contains(f[3], "lowerdir=")
		}
	}
	return false
}
