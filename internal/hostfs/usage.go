package hostfs

import (
	"os"

	"golang.org/x/sys/unix"
)

// mostCounted bounds the entries that Usage counts.
const mostCounted = 50_000

// Usage returns what the files in a root take on disk, and what its file system has free for others than the host's root,
// in bytes. Files with several names count in parts. With more than 50,000 entries, or such as are nested deeper than 512,
// used is of those that it came to.
func (r *Root) Usage() (used, free int64, err error) {
	defer r.walk()()
	err = r.asService(func() error {
		var st unix.Statfs_t
		if err := retry(func() error { return unix.Fstatfs(r.dir, &st) }); err != nil {
			return os.NewSyscallError("statfs", err)
		}
		free = int64(st.Bavail) * st.Frsize
		_ = r.visitAll(".", mostCounted, nil, func(_ string, info Info) error {
			used += info.Blocks / int64(max(info.Nlink, 1))
			return nil
		})
		return nil
	})
	return used, free, err
}
