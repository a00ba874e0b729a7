//go:build linux

package agent

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/agent/spawn"
)

// fromFile is the command line of a shell that reads a longer one from descriptor 3, which that one
// does not see. Without a cat it exits with 126.
const fromFile = `eval "$(PATH=$PATH:/usr/bin:/bin cat <&3 || echo exit 126)" 3<&-`

// shorten gives a shell whose command line is longer than an argument may be the line in a file. It
// returns the process to start, and what closes the file then.
func shorten(p spawn.Process) (_ spawn.Process, done func(), err error) {
	done = func() {}
	last := len(p.Args) - 1
	if last < 0 || len(p.Args[last]) <= launch.MaxString || len(p.Programs) == 0 ||
		len(p.Files) != 3 ||
		!launch.IsLine(append([]string{p.Programs[0].Name}, p.Args...)) {
		return p, done, nil
	}
	fd, err := unix.MemfdCreate("command", unix.MFD_CLOEXEC)
	if err != nil {
		return p, done, fmt.Errorf("cannot make a file for the command: %w", err)
	}
	done = func() { _ = unix.Close(fd) }
	if err := writeAll(fd, p.Args[last]); err != nil {
		done()
		return p, func() {}, fmt.Errorf("cannot write the command to a file: %w", err)
	}
	p.Args = append(slices.Clone(p.Args[:last]), fromFile)
	p.Files = append(slices.Clone(p.Files), fd)
	return p, done, nil
}

// writeAll writes a file from its beginning. It leaves the position there.
func writeAll(fd int, text string) error {
	for at := 0; at < len(text); {
		n, err := unix.Pwrite(fd, []byte(text[at:]), int64(at))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		at += max(n, 0)
	}
	return nil
}
