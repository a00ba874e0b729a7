// Package hostfs opens, reads, writes, lists, moves and removes files beneath a root directory
// whose files belong to a hostile owner, who may rename, exchange, link and replace them at any
// moment.
//
// Nothing is checked by name and then used by name. openat2 resolves a name once, starting at the
// root's descriptor, and refuses symbolic links, other mounts and every way out. Everything after
// that uses the resulting descriptor, or a single component beneath a directory's descriptor. All
// of it happens under the owner's identity (see owner), so the owner's permissions and quotas
// apply, and new files belong to the owner.
//
// A name is relative and clean, as pathmap's Locate returns it: "." is the root. Errors have a
// class of containerd/errdefs or errs.ErrNoSpace, name files as the caller named them, and never
// tell where the root is. The caller adds in front what could not be done.
//
// This package cannot see that someone moves a directory out of the root while a file in it is
// being used: the descriptor goes along. From inside a container, where the root is a mount, such a
// move fails with EXDEV.
package hostfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/errs"
)

// Config says what Open opens. No field has a default.
type Config struct {
	// Dir is the absolute, clean path of the root on the host. Its own components belong to the
	// operator and are trusted.
	Dir string
	// UID and GID own the files: every operation runs with these ids and without capabilities, so
	// the service must be root. When they are the service's own ids, nothing changes: root that
	// works for root keeps its capabilities.
	UID, GID uint32
	// Denied lists names beneath the root, files and directories. The regular files there cannot be
	// reached by another name: neither through a hard link elsewhere, nor by moving them. The
	// caller must refuse the names themselves. An entry that does not exist, or is a symbolic link,
	// denies nothing.
	Denied []string
	// Walks bounds the walks of this root's trees together with User's other walks.
	Walks *Walks
	User  string
}

// Root is an open root directory. It is safe for concurrent use. Whoever opened it closes it.
type Root struct {
	owner  owner
	denied []string
	walks  *Walks
	user   string

	// mu guards dir: each operation holds it for reading, so that none uses a descriptor that Close
	// has closed and the kernel has given to somebody else.
	mu     sync.RWMutex
	dir    int
	closed bool
}

// Open opens the root. The error joins all faults of cfg, of class ErrInvalidArgument, or says that
// the directory cannot be opened, or that the service may not act as its owner.
func Open(cfg Config) (*Root, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	as, err := newOwner(cfg.UID, cfg.GID)
	if err != nil {
		return nil, err
	}
	dir, err := unix.Open(cfg.Dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, classify(".", err)
	}
	return &Root{owner: as, dir: dir, denied: slices.Clone(cfg.Denied), walks: cfg.Walks,
		user: cfg.User}, nil
}

func (cfg Config) validate() error {
	var faults []error
	if !filepath.IsAbs(cfg.Dir) || filepath.Clean(cfg.Dir) != cfg.Dir ||
		strings.Contains(cfg.Dir, "\x00") {
		faults = append(faults, errs.Invalid("the root directory is not an absolute, clean path"))
	}
	if cfg.Walks == nil || cfg.Walks.held == nil || cfg.User == "" {
		faults = append(faults,
			errs.Invalid("nothing bounds the walks of the root: Walks or User is missing"))
	}
	for _, name := range cfg.Denied {
		if err := checkEntry(name); err != nil {
			faults = append(faults, fmt.Errorf("denied name: %w", err))
		}
	}
	return errors.Join(faults...)
}

// walk waits until one more of the user's trees may be walked; end ends that walk.
func (r *Root) walk() (end func()) { return r.walks.begin(r.user) }

// Close waits for the operations in progress. Files and Writers stay open, but a Writer that is not
// committed can then only be aborted. Operations after Close fail with os.ErrClosed.
func (r *Root) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return os.ErrClosed
	}
	r.closed = true
	return unix.Close(r.dir)
}

// asOwner runs work under the owner's identity.
func (r *Root) asOwner(work func() error) error {
	return r.asService(func() error { return r.owner.do(work) })
}

// asService runs work under the service's own identity, for what the owner may be unable to read.
func (r *Root) asService(work func() error) error {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.closed {
		return os.ErrClosed
	}
	return work()
}
