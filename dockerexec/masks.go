package dockerexec

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/daycare-run/sandbox/internal/durable"
)

// A mask is a read-only bind of something of the service's that has nothing in it. Under gVisor it has to be a
// bind: a process there may make a user namespace and in it an overlay of what is mounted, and an overlay
// shows what a tmpfs lies on. Binds are mounts of the gofer's as well, behind which there is no other view.

// What is mounted, below Platform.MaskDir: root's, and closed to everyone, or empty for everyone.
const (
	maskFile      = "file"
	maskClosed    = "closed"
	maskEmpty     = "empty"
	maskWithPlace = "places-" // then a hash of the names of the mount points in it
)

// hostsFile is in the same directory: /etc/hosts of containers without a network.
const (
	hostsFile = "hosts"
	hosts     = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
)

// installMasks makes what masks are below dataDir, and returns the directory that holds it.
func installMasks(dataDir string) (dir string, err error) {
	dir = filepath.Join(dataDir, "masks")
	err = errors.Join(makeMaskDir(dir, 0o755), makeMaskDir(filepath.Join(dir, maskClosed), 0), makeMaskDir(filepath.Join(dir, maskEmpty), 0o555),
		durable.Keep(filepath.Join(dir, hostsFile), []byte(hosts), 0o444))
	if err != nil {
		return "", fmt.Errorf("cannot make the directories that hide others: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(dir, maskFile), os.O_RDONLY|os.O_CREATE, 0)
	if err != nil {
		return "", fmt.Errorf("cannot make the file that hides others: %w", err)
	}
	return dir, errors.Join(file.Chmod(0), file.Close())
}

// makeMaskDir makes a directory, or takes the one that is there.
func makeMaskDir(name string, mode os.FileMode) error {
	if err := os.Mkdir(name, mode); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return os.Chmod(name, mode) // whatever the umask
}

// maskSource is what is mounted for a mask.
func (p Platform) maskSource(m Mask) string {
	switch {
	case m.File:
		return filepath.Join(p.MaskDir, maskFile)
	case len(m.Holds) > 0:
		sum := sha256.Sum256([]byte(strings.Join(m.Holds, "\x00")))
		return filepath.Join(p.MaskDir, maskWithPlace+hex.EncodeToString(sum[:8]))
	case m.Listable || m.Vacant:
		return filepath.Join(p.MaskDir, maskEmpty)
	default:
		return filepath.Join(p.MaskDir, maskClosed)
	}
}

// makeMasks makes what the Spec's masks are that hold mount points. It stays: masks with the same names share it.
func (s Spec) makeMasks() error {
	for _, m := range s.Masks {
		if len(m.Holds) == 0 {
			continue
		}
		dir := s.Platform.maskSource(m)
		err := makeMaskDir(dir, 0o555)
		for _, name := range m.Holds {
			err = errors.Join(err, os.MkdirAll(filepath.Join(dir, name), 0o555))
		}
		if err != nil {
			return fmt.Errorf("cannot make what hides %s: %w", m.Target, err)
		}
	}
	return nil
}
