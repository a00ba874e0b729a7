// Package hostfs opens, reads, writes, lists, moves and removes files beneath a root directory, while
// the owner of these files, who is hostile, renames, exchanges, links and replaces them at any moment.
//
// Nothing is checked by name and then used by name. A name is resolved once, by openat2 from the
// root's descriptor, which refuses symbolic links, other mounts and every way out; what follows is
// done to the descriptor that came of it, or to a single component beneath a directory's descriptor.
// All of it is done with the owner's identity (see owner), so the owner's permissions and quotas
// count, and what is made belongs to the owner.
//
// A name is relative and clean, as pathmap's Locate gives it: "." is the root. Errors have a class of
// containerd/errdefs or errs.ErrNoSpace, name files as the caller named them, and never tell where the root
// is. What was to be done is for the caller to say in front.
//
// What this package cannot see is a directory that someone moves out of the root while a file in it is
// being used: the descriptor goes along. Inside a container, where the root is a mount, this is EXDEV.
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
	// UID and GID own the files: every operation is done with these, and without a capability, for
	// which the service must be root. When they are those of the service itself, nothing changes: root
	// that works for root keeps its capabilities.
	UID, GID uint32
	// Denied lists names beneath the root, files and directories. The regular files there are reached
	// by no other name: not by a hard link elsewhere, and not by moving them. The names themselves are
	// for the caller to refuse. An entry that does not exist, or is a symbolic link, denies nothing.
	Denied []string
	// Walks bounds the walks of this root's trees together with others of User. Nil is for no bound.
	Walks *Walks
	User  string
}

// Root is an open root directory. Any number of goroutines may use it. Whoever opened it closes it.
type Root struct {
	owner  owner
	denied []string
	walk   func() (end func()) // waits until a tree may be walked

	// mu guards dir: each operation holds it for reading, so that none meets a descriptor which Close
	// gave back and the kernel gave to somebody else.
	mu     sync.RWMutex
	dir    int
	closed bool
}

// Open opens the root. The error has all faults of cfg joined, of class ErrInvalidArgument; or says
// that the directory cannot be opened, or that the service may not act as its owner.
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
	walk := func() func() { return cfg.Walks.begin(cfg.User) }
	return &Root{owner: as, dir: dir, denied: slices.Clone(cfg.Denied), walk: walk}, nil
}

func (cfg Config) validate() error {
	var faults []error
	if !filepath.IsAbs(cfg.Dir) || filepath.Clean(cfg.Dir) != cfg.Dir || strings.Contains(cfg.Dir, "\x00") {
		faults = append(faults, errs.Invalid("the root directory is not an absolute, clean path"))
	}
	for _, name := range cfg.Denied {
		if err := checkEntry(name); err != nil {
			faults = append(faults, fmt.Errorf("denied name: %w", err))
		}
	}
	return errors.Join(faults...)
}

// Close waits for the operations that are under way. Files and Writers stay open; but a Writer that is
// not committed can then only be aborted. Operations after Close fail with os.ErrClosed.
func (r *Root) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return os.ErrClosed
	}
	r.closed = true
	return unix.Close(r.dir)
}

// asOwner does work with the owner's identity.
func (r *Root) asOwner(work func() error) error {
	return r.asService(func() error { return r.owner.do(work) })
}

// asService does work with the service's own identity, for what the owner may be unable to read.
func (r *Root) asService(work func() error) error {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.closed {
		return os.ErrClosed
	}
	return work()
}
