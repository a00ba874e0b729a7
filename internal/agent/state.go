//go:build linux

package agent

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/agent/launch"
)

// stateFile replaces launch.StateFile as a whole. The file that will take its place is kept ready
// at its full size, so that the end of a process can be recorded even on a full disk. If there was
// no room for that file, the new state is written over the old one.
//
// It is not synced: after a crash of the host the process is gone, whatever its state says.
type stateFile struct {
	name, next string
	fd         int // of next, or -1
}

// newStateFile removes the state of an earlier run.
func newStateFile(dir string) (*stateFile, error) {
	name := filepath.Join(dir, launch.StateFile)
	s := &stateFile{name: name, next: name + ".next", fd: -1}
	if err := os.RemoveAll(name); err != nil {
		return nil, err
	}
	_ = s.reserve()
	return s, nil
}

// reserve makes the file that will be the next state.
func (s *stateFile) reserve() error {
	if err := os.RemoveAll(s.next); err != nil {
		return err
	}
	fd, err := unix.Open(s.next,
		unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	_, _ = unix.Pwrite(fd, bytes.Repeat([]byte{' '}, launch.MaxStateSize), 0)
	s.fd = fd
	return nil
}

// write writes the state and, unless it is the last one, makes the next file ready.
func (s *stateFile) write(state launch.State, last bool) error {
	data := state.Encode()
	err := s.replace(data)
	if err != nil {
		// No usable file was ready.
		if err = s.reserve(); err == nil {
			err = s.replace(data)
		}
	}
	if err != nil {
		err = s.overwrite(data)
	}
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", s.name, err)
	}
	if !last {
		_ = s.reserve()
	}
	return nil
}

// overwrite needs no room on the disk. If the old state was longer, blanks follow: a reader never
// sees a mixture.
func (s *stateFile) overwrite(data []byte) error {
	_ = os.RemoveAll(s.next)
	fd, err := unix.Open(s.name, unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	var old unix.Stat_t
	if err := unix.Fstat(fd, &old); err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	rest := min(old.Size, launch.MaxStateSize) - int64(len(data))
	return finishState(fd, append(data, bytes.Repeat([]byte{' '}, int(max(rest, 0)))...))
}

func (s *stateFile) replace(data []byte) error {
	if s.fd < 0 {
		return errors.New("no file was kept ready")
	}
	err := finishState(s.fd, data)
	s.fd = -1
	if err != nil {
		return err
	}
	return os.Rename(s.next, s.name)
}

// finishState makes data the whole content of a file and closes the file.
func finishState(fd int, data []byte) error {
	n, err := unix.Pwrite(fd, data, 0)
	if err == nil && n < len(data) {
		err = unix.ENOSPC
	}
	return errors.Join(err, unix.Ftruncate(fd, int64(n)), unix.Close(fd))
}
