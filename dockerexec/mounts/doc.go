// Package mounts starts containers whose mounts lead through directories that hostile programs can
// change.
//
// # The attack
//
// A container gets some 25 mounts, and Docker takes their names: what to mount, and where. Many
// lead through the home of a tenant, whose programs run meanwhile in other containers. They can
// exchange a directory for a link between our look at a name and Docker's. Then the host's root
// mounts a file of the host's choice into the tenant's container, or makes a directory where the
// link leads, or lays a mask over the wrong place so that a secret is seen.
//
// # The rule
//
// While a container starts, nothing runs that could change where the names of its mounts lead, and
// afterwards it is verified that the files are mounted that were meant.
//
//   - [Guard.Start] pauses each neighbour that can write to a directory in which the runtime looks
//     a name up, checks each mount point and source by a descriptor that follows no link, and has
//     the engine start the container. The neighbours resume then. One in which no command has begun
//     is not paused: its first command waits. One that is frozen is paused already.
//   - [Guard.Verify] gives each source an access time that nobody can guess, and has the new
//     container's agent read it at the mount point: no command of the tenant has run there yet. The
//     time lies in the future, as only such marks do. So another service that verifies the same
//     file sees that, and waits. When programs keep changing access times, who can write there is
//     paused for the look.
//
// What a program of the host changes meanwhile is not prevented by the pauses, and is found by
// Verify.
//
// # The order of locks
//
//  1. The line of starts: of two that could disturb each other, the later waits until the earlier
//     has ended.
//  2. The holds of neighbours (package life), which wait while somebody is at the neighbour, except
//     in Verify, where the caller itself is at a container: there a neighbour that is used is left
//     alone, or each would wait for the other.
//  3. The files that are being verified, each with a lock, taken in the order of device and inode;
//     marks in the same order.
//
// A Start holds 1 and 2, a Verify 3 and then 2, and neither calls the other.
package mounts

import (
	"cmp"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec/life"
)

// File identifies a file on its host while it exists.
type File struct{ Dev, Ino uint64 }

func (f File) compare(other File) int {
	return cmp.Or(cmp.Compare(f.Dev, other.Dev), cmp.Compare(f.Ino, other.Ino))
}

// Mount is one that is verified: a tenant may have a say in what its source's name leads to.
type Mount struct {
	Source, Target string
	// File is what Source was when the mount was planned.
	File File
}

// Check makes sure that the source is the file that was planned.
func (m Mount) Check() error {
	fd, _, err := m.open()
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// Guard starts and verifies containers. Its fields must be set before use.
type Guard struct {
	// Neighbours returns all containers but one that may have programs which can write to what holds
	// one of the names on the host, or is it. It must not block.
	Neighbours func(of *life.Life, names []string) []*life.Life
	// Failed is told of a neighbour that could not be resumed: it is to be mended (Life.Mend), or
	// was ended.
	Failed func(*life.Life, error)

	starts    starts
	verifying fileLocks
}
