package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"
)

// Rights returns the check that says whether doctor is run by root.
func Rights(uid int) Check {
	return Check{"rights", func(context.Context) Finding {
		if uid != 0 {
			return warning("sudo sandbox doctor",
				"run by uid %d: checks that need root are skipped", uid)
		}
		return ok("root")
	}}
}

// Place is a file or folder on the host.
type Place struct {
	Mode fs.FileMode
	UID  uint32
	// Unwritable is why the service, as root, could not write there; nil if it could, or if doctor
	// is not run by root.
	Unwritable error
}

// openToOthers are the mode bits that let users other than the owner put files into a folder.
const openToOthers = 0o022

// Folder checks one of the service's folders, which the service makes when it starts.
func Folder(key, path string, look func(path string) (Place, error)) Check {
	return Check{key, func(context.Context) Finding {
		p, err := look(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return ok("%s is made when the service starts", path)
		case errors.Is(err, fs.ErrPermission):
			return skipped("only root may look at %s", path)
		case err != nil:
			return wrong("set "+key+" to a folder that the service can use", "%v", err)
		case !p.Mode.IsDir():
			return wrong("remove it, or set "+key, "%s is not a folder", path)
		case p.Mode.Perm()&openToOthers != 0:
			return wrong("chmod go-w "+path, "others may write to %s (mode %04o)", path,
				p.Mode.Perm())
		case p.Unwritable != nil:
			return wrong("mount it writable, or set "+key, "cannot write to %s: %v", path,
				p.Unwritable)
		case p.UID != 0:
			return warning("chown root "+path, "%s belongs to uid %d", path, p.UID)
		default:
			return ok("%s", path)
		}
	}}
}

// Socket checks the service's socket, which should have the mode, and its folder.
func Socket(path, folder string, mode fs.FileMode, look func(path string) (Place, error)) Check {
	return Check{"socket", func(context.Context) Finding {
		in, err := look(folder)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return ok("%s is made when the service starts", path)
		case err != nil:
			return skipped("%v", err)
		case in.Mode.Perm()&openToOthers != 0:
			return wrong("chmod go-w "+folder+", or set listen to a folder of its own",
				"others may put their own socket into %s (mode %04o)", folder, in.Mode.Perm())
		}
		s, err := look(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return ok("%s is made when the service starts", path)
		case err != nil:
			return skipped("%v", err)
		case s.Mode.Type() != fs.ModeSocket:
			return wrong("remove it, or set listen to another path", "%s is not a socket", path)
		case s.Mode.Perm()&^mode&0o007 != 0:
			return wrong("start the service again", "everybody may connect to %s (mode %04o)", path,
				s.Mode.Perm())
		case mode&0o007 != 0 && in.Mode.Perm()&0o001 == 0:
			return warning("chmod 711 "+folder+", or RuntimeDirectoryMode=0711 in the unit",
				"users whom access.peers names cannot reach %s, because its folder has the mode %04o",
				path, in.Mode.Perm())
		default:
			return ok("%s, mode %04o", path, s.Mode.Perm())
		}
	}}
}

// Memory says what happens to the memory of containers in which nothing runs.
type Memory struct {
	Wanted     bool  // the settings say to give it back
	Compressed bool  // there is zram that writes to no disk
	Disk       bool  // there is other swap
	Fault      error // why control groups cannot be written; nil if they can
}

const makeZram = "swap on zram: modprobe zram && zramctl --find --size 50% of the memory, mkswap and swapon it; see docs/idle.md"

// IdleMemory reports whether frozen containers can give their memory back.
func IdleMemory(look func() (Memory, error)) Check {
	return Check{"idle memory", func(context.Context) Finding {
		m, err := look()
		switch {
		case err != nil:
			return skipped("%v", err)
		case !m.Wanted:
			return ok("frozen containers keep their memory (idle.reclaimAfter)")
		case m.Disk:
			return ok("frozen containers keep their memory: there is swap on a disk, or zram with a backing device, where secrets would be written")
		case !m.Compressed:
			return ok("frozen containers keep their memory: there is no %s", makeZram)
		case m.Fault != nil:
			return warning(
				"let the service write to control groups, with Linux 5.19 or newer if they are of version 2: see docs/idle.md",
				"there is zram, but frozen containers keep their memory: %v", m.Fault)
		default:
			return ok("frozen containers give their memory to zram")
		}
	}}
}

// Space is the size of a filesystem, and how much of it root may still use.
type Space struct {
	Bytes, FreeBytes, Files, FreeFiles uint64
	// NoJournal says that it is an ext4 without a journal.
	NoJournal bool
}

// The least part of all bytes and of all inodes that must be free; a GiB must be free in any case.
const (
	gib             = 1 << 30
	faultAt, warnAt = 0.02, 0.10
)

const makeRoom = "make room, or move it to a larger disk: a disk that is full ends the writes of all users"

// Disk reports whether there is room on the disk of one of the service's folders.
func Disk(what, path string, look func(path string) (Space, error)) Check {
	return Check{"disk of " + what, func(context.Context) Finding {
		s, err := look(path)
		if err != nil {
			return skipped("%v", err)
		}
		bytes, files := part(s.FreeBytes, s.Bytes), part(s.FreeFiles, s.Files)
		says := fmt.Sprintf("%.1f of %.1f GiB free at %s", float64(s.FreeBytes)/gib,
			float64(s.Bytes)/gib, path)
		inodes := fmt.Sprintf("%d of %d inodes free at %s", s.FreeFiles, s.Files, path)
		switch {
		case s.FreeBytes < gib || bytes < faultAt:
			return wrong(makeRoom, "%s", says)
		case files < faultAt:
			return wrong(makeRoom, "%s", inodes)
		case bytes < warnAt:
			return warning(makeRoom, "%s", says)
		case files < warnAt:
			return warning(makeRoom, "%s", inodes)
		case s.NoJournal:
			return warning("give the file system a journal while it is not mounted (tune2fs -O has_journal)",
				"%s, an ext4 without a journal: after many files were deleted there, making others takes ten times as long", says)
		default:
			return ok("%s", says)
		}
	}}
}

// part returns free as a part of all; 1 if the filesystem does not count.
func part(free, all uint64) float64 {
	if all == 0 {
		return 1
	}
	return float64(free) / float64(all)
}

// Clocks are the clocks that must agree.
type Clocks struct {
	Now time.Time
	// Built is when this build was made; zero if that is not known.
	Built time.Time
	// Synced asks the kernel whether something keeps its clock right. It is a function, because the
	// check asks when it runs.
	Synced func() (bool, error)
}

// skew is by how much Docker's clock may differ.
const skew = 10 * time.Second

// Right reports whether the host's clock is right, as far as can be told: certificates, timeouts
// and logs depend on it.
func (c Clocks) Right(ask AskDocker) Check {
	return Check{"clock", func(ctx context.Context) Finding {
		const set = "set the clock, and let chrony or systemd-timesyncd keep it right"
		if now := c.Now; now.Before(c.Built) {
			return wrong(set, "it is %s here, before this build was made (%s)",
				now.UTC().Format(time.RFC3339), c.Built.UTC().Format(time.RFC3339))
		}
		if e, err := ask(ctx); err == nil && e.Ahead.Abs() > skew {
			return wrong(set, "Docker's clock differs by %v", e.Ahead.Abs().Round(time.Second))
		}
		synced, err := c.Synced()
		switch {
		case err != nil:
			return skipped("%v", err)
		case !synced:
			return warning(set, "according to the kernel, nothing keeps the clock right")
		default:
			return ok("right, according to the kernel")
		}
	}}
}
