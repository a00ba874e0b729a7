package session

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/agent/creds"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// spool is the service's end of a container's spool file. The content of the file comes from a
// container: it is read, never mapped, and only where a frame says, within bounds.
type spool struct {
	file *os.File
	tell func(wire.Control) error

	mu       sync.Mutex
	released []int // read, and not yet given back
}

// releaseBatch is how many slots are given back with one message. Each message wakes the agent.
const releaseBatch = wire.SpoolSlots / 4

// CreateSpool makes a spool file of wire.SpoolSize bytes for a container that is about to be
// created, and returns its path. Its name is made from the pattern, as os.CreateTemp does. It
// belongs to the agent of the tenant with that user id, and to the group. The caller removes it,
// with the container.
func CreateSpool(dir, pattern string, uid, gid uint32) (path string, err error) {
	if !filepath.IsAbs(dir) {
		return "", fmt.Errorf("cannot make the spool: %q is not an absolute path", dir)
	}
	file, err := os.CreateTemp(dir, pattern)
	if err != nil {
		return "", fmt.Errorf("cannot make the spool: %w", err)
	}
	err = errors.Join(
		file.Chown(int(creds.Agent(uid)), int(gid)), file.Truncate(wire.SpoolSize), file.Close())
	if err != nil {
		return "", errors.Join(fmt.Errorf("cannot make the spool: %w", err), os.Remove(file.Name()))
	}
	return file.Name(), nil
}

// openSpool opens the spool file of an existing container.
func openSpool(path string) (*spool, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open the spool: %w", err)
	}
	return &spool{file: file}, nil
}

// read reads a slot's bytes into p. The slot stays taken until release.
func (s *spool) read(at wire.Spooled, p []byte) ([]byte, error) {
	if s == nil {
		return nil, errors.New("a spooled frame came, but there is no spool")
	}
	if _, err := s.file.ReadAt(p[:at.Length], int64(at.Slot)*wire.SpoolSlotSize); err != nil {
		// Leave out the file's name, which is the host's.
		if named := (*fs.PathError)(nil); errors.As(err, &named) {
			err = named.Err
		}
		return nil, fmt.Errorf("cannot read the spool: %w", err)
	}
	return p[:at.Length], nil
}

// release gives a slot back to the agent, together with others: fewer than a batch may stay behind,
// and are given back with the next ones.
func (s *spool) release(slot int) {
	s.mu.Lock()
	s.released = append(s.released, slot)
	batch := s.released
	if len(batch) < releaseBatch {
		s.mu.Unlock()
		return
	}
	s.released = nil
	s.mu.Unlock()
	_ = s.tell(wire.Control{Release: batch}) // a broken session is found by its reader
}

func (s *spool) close() { _ = s.file.Close() }
