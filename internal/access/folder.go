package access

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// CheckFolder checks the folder in which a socket is to be created. If others can change what is in
// it, they could put their own socket in the service's place, which is an error. If others can look
// into it, open says what to do about it: the socket's own mode still keeps them out.
func CheckFolder(dir string) (open string, err error) {
	info, err := os.Stat(dir)
	if err != nil {
		return "", err
	}
	var stat unix.Stat_t
	if err := unix.Stat(dir, &stat); err != nil {
		return "", err
	}
	mode := info.Mode().Perm()
	switch {
	case mode&0o022 != 0:
		return "", fmt.Errorf(
			"others may write to the socket's folder %s, whose mode is %04o, and could put another socket there: chmod 700 %s, or set listen to a path in a folder of its own",
			dir, mode, dir)
	case stat.Uid != 0 && int(stat.Uid) != os.Geteuid():
		return "", fmt.Errorf(
			"the socket's folder %s belongs to uid %d, who could put another socket there: chown it, or set listen to a path in a folder of its own",
			dir, stat.Uid)
	case mode&0o077 != 0:
		return fmt.Sprintf(
			"others may look into the socket's folder %s, whose mode is %04o: chmod 700 %s", dir,
			mode, dir), nil
	}
	return "", nil
}
