package dockerexec

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/dockerexec/networks"
	"github.com/daycare-run/sandbox/internal/durable"
	"github.com/daycare-run/sandbox/internal/engine"
)

// A mask is a read-only bind of something of the service's own that is empty. Under gVisor it must
// be a bind: a process there may make a user namespace and in it an overlay of what is mounted, and
// an overlay shows what a tmpfs covers. Binds are mounts of the gofer's as well, behind which there
// is no other view.

// The sources of masks, below Platform.MaskDir. They are root's, and empty: what is hidden looks
// empty to programs, not broken. A file that a program may misread if it is empty is closed.
const (
	maskClosedFile = "file"
	maskFile       = "empty-file"
	maskDir        = "empty"
	maskWithPlace  = "places-" // then a hash of the names of the mount points in it
)

// The files of names, in the same directory. They are ours in every container: in Docker's,
// localhost is also ::1, which containers on a network cannot bind, and the servers of a container
// without a network are the host's.
const (
	hostsFile        = "hosts"
	offlineHostsFile = "hosts-offline" // where the runtime makes the loopback, it has ::1
	noResolversFile  = "resolv.conf"

	hosts        = "127.0.0.1\tlocalhost " + networks.HostName + "\n"
	offlineHosts = hosts + "::1\tip6-localhost ip6-loopback\n"
)

// nameFiles returns what is mounted at /etc/hosts and /etc/resolv.conf.
func (s Spec) nameFiles(net networks.Wiring) []specs.Mount {
	known, resolvers := hostsFile, net.ResolvConf
	if s.isOffline() {
		known = offlineHostsFile
	}
	if net.Network == "" {
		resolvers = filepath.Join(s.Platform.MaskDir, noResolversFile)
	}
	return []specs.Mount{
		engine.BindMount(filepath.Join(s.Platform.MaskDir, known), "/etc/hosts", true),
		engine.BindMount(resolvers, "/etc/resolv.conf", true),
	}
}

// installMasks makes the sources of masks below dataDir, and returns their directory.
func installMasks(dataDir string) (dir string, err error) {
	dir = filepath.Join(dataDir, "masks")
	err = errors.Join(makeMaskDir(dir, 0o755), makeMaskDir(filepath.Join(dir, maskDir), 0o555),
		durable.Keep(filepath.Join(dir, maskFile), nil, 0o444),
		durable.Keep(filepath.Join(dir, hostsFile), []byte(hosts), 0o444),
		durable.Keep(filepath.Join(dir, offlineHostsFile), []byte(offlineHosts), 0o444),
		durable.Keep(filepath.Join(dir, noResolversFile), nil, 0o444))
	if err != nil {
		return "", fmt.Errorf("cannot make the directories that hide others: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(dir, maskClosedFile), os.O_RDONLY|os.O_CREATE, 0)
	if err != nil {
		return "", fmt.Errorf("cannot make the file that hides others: %w", err)
	}
	return dir, errors.Join(file.Chmod(0), file.Close())
}

// makeMaskDir makes a directory, or uses the existing one.
func makeMaskDir(name string, mode os.FileMode) error {
	if err := os.Mkdir(name, mode); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return os.Chmod(name, mode) // whatever the umask
}

// maskSource returns the path of what is mounted for a mask.
func (p Platform) maskSource(m Mask) string {
	switch {
	case m.File && m.Listable:
		return filepath.Join(p.MaskDir, maskFile)
	case m.File:
		return filepath.Join(p.MaskDir, maskClosedFile)
	case len(m.Holds) > 0:
		sum := sha256.Sum256([]byte(strings.Join(m.Holds, "\x00")))
		return filepath.Join(p.MaskDir, maskWithPlace+hex.EncodeToString(sum[:8]))
	default:
		return filepath.Join(p.MaskDir, maskDir)
	}
}

// makeMasks makes the sources of the Spec's masks that hold mount points. They stay: masks with the
// same names share them.
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
