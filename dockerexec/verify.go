package dockerexec

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	containertypes "github.com/docker/docker/api/types/container"
	"github.com/docker/docker/pkg/stdcopy"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/agent/launch"
)

// Prepared is what a container needs on the host beyond its Spec, as it is when the container is made.
type Prepared struct {
	Mounts []Mount
	Masks  []Mask
}

// MountPreparer makes mount points on the host.
type MountPreparer interface {
	// Prepare makes the mount points of a Spec and returns what else has to be mounted. Each Prepare that
	// succeeds is followed by one Release.
	Prepare(Spec) (Prepared, error)
	// Release removes what no other container needs.
	Release(Spec)
	// Rebind makes what was prepared for one Spec that of another, whose container and directories are the same and have
	// other names now. Also after an error it is the second one that is to be released.
	Rebind(from, to Spec) error
}

// verify makes sure that the container has mounted the files that were meant. Docker takes names,
// and a tenant may exchange a directory for a link to anywhere between our look at the name and
// Docker's. No command of the tenant's has run in this container yet, so its agent can be asked: each
// file is given an access time that nobody can guess, and the agent has to see it at the mount point.
// accessTimes asks the agent.
func (e *Executor) verify(c *container, accessTimes func(targets []string) ([]string, error)) error {
	var mounts []Mount
	for _, m := range slices.Concat(c.spec.Mounts, c.prepared.Mounts) {
		if m.Verify {
			mounts = append(mounts, m)
		}
	}
	defer e.verifying.lock(mounts)() // two containers may have one directory
	for try := 1; ; try++ {
		differs, err := verifyOnce(mounts, accessTimes)
		switch {
		case err != nil || differs == "":
			return err
		case try == verifyTries:
			return fmt.Errorf("what was mounted at %s is not what was meant: it was exchanged while the container was made", differs)
		}
	}
}

// verifyTries is how often a mount's access time is looked at. Another service, on this host or on another one with the same
// storage, may set that of the same file meanwhile; a file that was exchanged has none of the times that are asked for.
const verifyTries = 4

// verifyOnce returns the target of a mount that does not have the access time that its source was given, or "".
func verifyOnce(mounts []Mount, accessTimes func(targets []string) ([]string, error)) (differs string, err error) {
	var targets, want []string
	given := map[FileID]string{} // one directory may be mounted at two places
	for _, m := range mounts {
		file := FileID{Dev: m.ID.Dev, Ino: m.ID.Ino}
		if given[file] == "" {
			at, restore, err := setAccessTime(m)
			if err != nil {
				return "", err
			}
			if restore == nil {
				continue // nobody can have exchanged anything there
			}
			defer restore()
			given[file] = at
		}
		targets, want = append(targets, m.Target), append(want, given[file])
	}
	if len(want) == 0 {
		return "", nil
	}
	seen, err := accessTimes(targets)
	if err != nil {
		return "", fmt.Errorf("cannot verify the mounts: %w", err)
	}
	for i, at := range want {
		if i >= len(seen) || seen[i] != at {
			return targets[i], nil
		}
	}
	return "", nil
}

// openSource opens a mount's source, and checks that it is the file that was planned.
func openSource(m Mount) (fd int, st unix.Stat_t, err error) {
	fd, err = unix.Openat2(unix.AT_FDCWD, m.Source, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return -1, st, fmt.Errorf("cannot verify the mount at %s: %w", m.Target, err)
	}
	if err = unix.Fstat(fd, &st); err != nil {
		err = fmt.Errorf("cannot verify the mount at %s: %w", m.Target, err)
	} else if !m.ID.Same(FileID{Dev: uint64(st.Dev), Ino: st.Ino}) {
		err = fmt.Errorf("what is to be mounted at %s has been exchanged since the call began", m.Target)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, st, err
	}
	return fd, st, nil
}

// setAccessTime gives a mount's source an access time, and returns it and how to undo that. restore is nil
// where the file system is read-only.
func setAccessTime(m Mount) (text string, restore func(), err error) {
	fd, st, err := openSource(m)
	if err != nil {
		return "", nil, err
	}
	defer func() {
		if restore == nil {
			_ = unix.Close(fd)
		}
	}()
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	number := binary.LittleEndian.Uint64(random[:])
	// In the future: the kernel sets an access time that is older than a change or than a day.
	at := unix.Timespec{Sec: time.Now().Unix() + 3600 + int64(number>>32%3600), Nsec: int64(number & 0xffffffff % 1e9)}
	name := fmt.Sprintf("/proc/self/fd/%d", fd)
	set := func(at unix.Timespec) error {
		return unix.UtimesNanoAt(unix.AT_FDCWD, name, []unix.Timespec{at, {Nsec: unix.UTIME_OMIT}}, 0)
	}
	if err := set(at); errors.Is(err, unix.EROFS) {
		return "", nil, nil
	} else if err != nil {
		return "", nil, fmt.Errorf("cannot verify the mount at %s: %w", m.Target, err)
	}
	before := st.Atim
	if now := time.Now().Unix(); before.Sec > now { // another's of this kind
		before = unix.Timespec{Sec: now}
	}
	return fmt.Sprintf("%d.%09d", at.Sec, at.Nsec), func() {
		_ = set(before)
		_ = unix.Close(fd)
	}, nil
}

// verifyLimit is how long a container may take to say what it has mounted.
const verifyLimit = 15 * time.Second

// accessTimesCommand is what the agent is started with to say what is mounted.
func accessTimesCommand(targets []string) []string {
	return append([]string{agentPath, "access-times"}, targets...)
}

// accessTimes asks the agent for the access times of paths. One that does not answer in time has lost its session.
func (s *session) accessTimes(ctx context.Context, targets []string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, verifyLimit)
	defer cancel()
	defer context.AfterFunc(ctx, s.close)()
	var outputs [2]bytes.Buffer
	command := Command{
		Command: launch.Command{Process: specs.Process{Args: accessTimesCommand(targets), Cwd: "/"}},
		Timeout: verifyLimit, MaxOutput: 1 << 20,
	}
	result, err := s.run(ctx, command, func(stream Stream, data []byte) error {
		outputs[stream].Write(data)
		return nil
	})
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("the agent does not answer: %w", context.Cause(ctx))
	case err != nil:
		return nil, err
	case result.ExitCode != 0 || result.Signal != 0:
		return nil, errors.New(result.CommandFault + outputs[Stderr].String())
	}
	return strings.Fields(outputs[Stdout].String()), nil
}

// accessTimesByExec is that in a container without a session, in which no command has begun.
func (e *Executor) accessTimesByExec(ctx context.Context, c *container, targets []string) (_ []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, verifyLimit)
	defer cancel()
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
	}()
	created, err := e.docker.ContainerExecCreate(ctx, c.id, containertypes.ExecOptions{
		User: c.spec.user(), Cmd: accessTimesCommand(targets), AttachStdout: true, AttachStderr: true,
	})
	if err != nil {
		return nil, err
	}
	attached, err := e.docker.ContainerExecAttach(ctx, created.ID, containertypes.ExecAttachOptions{})
	if err != nil {
		return nil, err
	}
	defer attached.Close()
	defer context.AfterFunc(ctx, attached.Close)()
	var stdout, stderr bytes.Buffer
	if _, err := stdcopy.StdCopy(&stdout, &stderr, attached.Reader); err != nil {
		return nil, err
	}
	if stderr.Len() > 0 {
		return nil, errors.New(strings.TrimSpace(stderr.String()))
	}
	ended, err := e.docker.ContainerExecInspect(ctx, created.ID)
	if err == nil && ended.ExitCode != 0 { // then Docker may have written its own error to stdout
		err = fmt.Errorf("it failed with %d: %.1000q", ended.ExitCode, strings.TrimSpace(stdout.String()))
	}
	return strings.Fields(stdout.String()), err
}
