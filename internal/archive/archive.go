// Package archive writes and reads directories as tar streams whose other end may be hostile: what
// is in a sandbox may have any names, and who sends an archive may have made it by hand.
//
// An archive has directories, regular files and symbolic links, and no more of each than this
// package allows. A directory comes before what is in it; "." is the directory itself. Permission
// bits are kept; owners and times mean nothing here. Whoever makes files of an archive's entries
// must still not follow a symbolic link, whether an earlier entry has made it or somebody else.
package archive

import (
	"io/fs"
	"strings"
	"time"

	"github.com/daycare-run/sandbox/internal/errs"
)

// The bounds of an archive. A file may have any size.
const (
	// MaxEntries is how many entries there may be.
	MaxEntries = 1_000_000
	// MaxDepth is how many components a name may have.
	MaxDepth = 128
	// maxName and maxPart are the most bytes of a name and of one component, as in Linux.
	maxName = 4095
	maxPart = 255
)

// Kind is what an entry is.
type Kind int

// The kinds.
const (
	Directory Kind = iota + 1
	File
	Link // a symbolic link
)

// Entry is one of an archive's entries.
type Entry struct {
	// Name is relative and clean, without "..": "." is the directory that the archive is of.
	Name string
	Kind Kind
	// Mode is the permission bits; those of links mean nothing.
	Mode fs.FileMode
	// Size is that of a file.
	Size int64
	// Text is what a link says, wherever it leads.
	Text string
	// ModTime is written and not read.
	ModTime time.Time
}

// LeftOut counts what an archive does not have, though it is in the directory.
type LeftOut struct {
	Hidden     int64 // what its reader may not see
	Unreadable int64 // what its owner has closed to itself
	Mounts     int64 // what is in another mount
	Special    int64 // FIFOs, sockets and devices
}

// String returns the counts for a person; "" if nothing was left out.
func (l LeftOut) String() string {
	var parts []string
	for _, part := range l.counts() {
		if *part.count > 0 {
			parts = append(parts, plural(*part.count, part.one, part.many))
		}
	}
	return strings.Join(parts, ", ")
}

// count is one of the counts, with its key in an archive.
type count struct {
	key, one, many string
	count          *int64
}

func (l *LeftOut) counts() []count {
	return []count{
		{"DAYCARE.hidden", "hidden entry", "hidden entries", &l.Hidden},
		{"DAYCARE.unreadable", "entry that its owner may not read",
			"entries that their owner may not read", &l.Unreadable},
		{"DAYCARE.mounts", "entry in another mount", "entries in other mounts", &l.Mounts},
		{"DAYCARE.special", "FIFO, socket or device", "FIFOs, sockets and devices", &l.Special},
	}
}

// failed is the key of why an archive ends early.
const failed = "DAYCARE.failed"

// Check returns an error of class ErrInvalidArgument if an archive cannot have the name.
func Check(name string) error {
	if name == "." {
		return nil
	}
	switch {
	case name == "":
		return errs.Invalid("an entry of the archive has no name")
	case len(name) > maxName:
		return errs.Invalid("the name %s has %d bytes, more than %d", quoted(name), len(name),
			maxName)
	case strings.Contains(name, "\x00"):
		return errs.Invalid("the name %s has a NUL byte", quoted(name))
	case name[0] == '/':
		return errs.Invalid("the name %s is absolute; the names of an archive are relative",
			quoted(name))
	}
	depth := 0
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "..":
			return errs.Invalid(`the name %s has the component ".."`, quoted(name))
		case part == "" || part == ".":
			return errs.Invalid(`the name %s has a component that is empty or "."`, quoted(name))
		case len(part) > maxPart:
			return errs.Invalid("the name %s has a component of %d bytes, more than %d",
				quoted(name), len(part), maxPart)
		}
		if depth++; depth > MaxDepth {
			return errs.Invalid("the name %s is nested deeper than %d directories", quoted(name),
				MaxDepth)
		}
	}
	return nil
}
