package agent

import (
	"bufio"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// Witness prints the access time of each path, in seconds and nanoseconds, a line each: by it the
// service knows that the path is the file that it meant to mount.
func Witness(out io.Writer, paths []string) error {
	lines := bufio.NewWriter(out)
	for _, path := range paths {
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return fmt.Errorf("cannot look at %s: %w", path, err)
		}
		fmt.Fprintf(lines, "%d.%09d\n", st.Atim.Sec, st.Atim.Nsec)
	}
	return lines.Flush()
}
