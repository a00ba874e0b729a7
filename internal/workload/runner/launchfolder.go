package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/agent/creds"
	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/rootfs"
	"github.com/daycare-run/sandbox/internal/workload/process"
)

// dropLaunch removes launch.json from a process's folder below users, without following a link. If
// a tenant has put a directory there instead, it is left.
func dropLaunch(users, folder string) error {
	fd, err := rootfs.OpenBelow(users, folder)
	if err != nil {
		return nil // not a process's folder
	}
	defer unix.Close(fd)
	err = unix.Unlinkat(fd, launch.File, 0)
	if err == nil || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EISDIR) {
		return nil
	}
	return fmt.Errorf("cannot remove the launch file of a process: %w", err)
}

// writeLaunch makes the folder of a process, which belongs to its agent, and writes what is to be
// run into it.
func (r *Runner) writeLaunch(ctx context.Context, p process.Record, uid, gid uint32,
	l launch.Launch) error {
	if err := l.Validate(); err != nil {
		return errs.Invalid("cannot run the process: %v", err)
	}
	text, err := json.Marshal(l)
	if err != nil {
		return errs.Invalid("cannot run the process: %v", err)
	}
	if len(text) > launch.MaxSize {
		return errs.Invalid(
			"cannot run the process: its command and environment are larger than %d bytes",
			launch.MaxSize)
	}
	if err := writeLaunchFile(r.Dir(p), uid, int(creds.Agent(uid)), int(gid), text,
		l.Log.Files); err != nil {
		return errs.Redact(ctx, r.log, "cannot make the folder of the process", err)
	}
	return nil
}

// writeLaunchFile writes launch.json into a process's folder, for its agent alone. The folder's
// content comes from a container: nothing in it is reached through a name that could be a link.
func writeLaunchFile(dir string, tenant uint32, agent, gid int, text []byte, olderLogs int) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o711); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := errors.Join(unix.Fchown(fd, agent, gid),
		takeLogs(fd, tenant, agent, olderLogs)); err != nil {
		return err
	}
	for _, name := range []string{launch.File, launch.StateFile} {
		if err := unix.Unlinkat(fd, name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	to, err := unix.Openat(fd, launch.File,
		unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o400)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(to), launch.File)
	_, err = file.Write(text)
	if err = errors.Join(err, file.Chown(agent, gid), file.Close()); err != nil {
		return errors.Join(err, unix.Unlinkat(fd, launch.File, 0))
	}
	return nil
}

// takeLogs gives a process's log to its agent, which continues it, if it belongs to the tenant:
// that is so in folders that an earlier version has made.
func takeLogs(dir int, tenant uint32, agent, older int) error {
	for n := range older + 1 {
		name := launch.LogFile
		if n > 0 {
			name = launch.OldLog(n)
		}
		var st unix.Stat_t
		err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if errors.Is(err, unix.ENOENT) ||
			err == nil && (st.Uid != tenant || st.Mode&unix.S_IFMT != unix.S_IFREG ||
				st.Nlink != 1) {
			continue
		}
		if err == nil {
			err = unix.Fchownat(dir, name, agent, -1, unix.AT_SYMLINK_NOFOLLOW)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// noteInLog ends a process's log with a line of the service's own, as its agent writes them. The
// file comes from a container: no link is followed, and what is no file is left.
func noteInLog(dir, text string) error {
	const flags = unix.O_RDWR | unix.O_APPEND | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY |
		unix.O_CLOEXEC
	file, err := openIn(dir, launch.LogFile, flags)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Sys().(*syscall.Stat_t).Nlink != 1 {
		return fmt.Errorf("%s is no file of its own", launch.LogFile)
	}
	line, last := "[sandbox: "+text+"]\n", []byte{'\n'}
	if _, err := file.ReadAt(last, max(info.Size()-1, 0)); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if last[0] != '\n' {
		line = "\n" + line
	}
	_, err = file.WriteString(line)
	return err
}

// openIn opens a file of a process's folder. The folder may be a container's to exchange, so no link
// is followed in its place either.
func openIn(dir, name string, flags int) (*os.File, error) {
	folder, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_PATH, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(folder)
	fd, err := unix.Openat(folder, name, flags, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

func removeIfThere(name string) error {
	if err := os.Remove(name); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// readState reads what a process's first program has left.
func readState(dir string) (launch.State, error) {
	file, err := openIn(dir, launch.StateFile,
		unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC)
	if err != nil {
		return launch.State{}, err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return launch.State{}, fmt.Errorf("%s is no file", launch.StateFile)
	}
	text, err := io.ReadAll(io.LimitReader(file, launch.MaxStateSize+1))
	if err != nil {
		return launch.State{}, err
	}
	return launch.ParseState(text)
}
