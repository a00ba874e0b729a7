//go:build linux

package agent

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// written returns how many bytes the root filesystem has taken beside the image, where that is known at once: gVisor puts
// them into a file system of its own. Elsewhere it is 0.
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

// hasOwnLayer reports whether the root is an overlay of gVisor's own, which names no layers. To ask the kernel about one of
// Docker's is to ask about the host's disk.
func hasOwnLayer(mounts string) bool {
	for line := range strings.Lines(mounts) {
		if f := strings.Fields(line); len(f) > 3 && f[1] == "/" {
			return f[2] == "overlay" && !strings.Contains(f[3], "lowerdir=")
		}
	}
	return false
}
