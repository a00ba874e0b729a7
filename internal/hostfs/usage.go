package hostfs

import (
	"os"

	"golang.org/x/sys/unix"
)

// maxCounted bounds the entries that Usage counts.
const maxCounted = 50_000

// Usage returns, in bytes, the disk space that the files in a root take, and the space that its
// file system has free for users other than the host's root. A file with several names counts in
// parts. With more than 50,000 entries, or entries nested deeper than 512, used covers only those
// that were visited.
func (r *Root) Usage() (used, free int64, err error) {
	defer r.walk()()
	err = r.asService(func() error {
		var st unix.Statfs_t
		if err := retry(func() error { return unix.Fstatfs(r.dir, &st) }); err != nil {
			return os.NewSyscallError("statfs", err)
		}
		free = int64(st.Bavail) * st.Frsize
		_ = r.visitAll(".", maxCounted, nil, func(_ string, info Info) error {
			used += info.Blocks / int64(max(info.Nlink, 1))
			return nil
		})
		return nil
	})
	return used, free, err
}
