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
}

// verify makes sure that the container has mounted the files that were meant. The engine takes names,
// and a tenant may exchange a directory for a link to anywhere between our look at the name and the
// engine's. No command of the tenant's has run in this container yet, so its agent can be asked: each
// file is given an access time that nobody can guess, and the agent has to see it at the mount's place.
func (e *Executor) verify(w *warm, witness func(argv []string) ([]string, error)) error {
	var mounts []Mount
	for _, m := range slices.Concat(w.spec.Mounts, w.prepared.Mounts) {
		if m.Verify {
			mounts = append(mounts, m)
		}
	}
	if len(mounts) == 0 {
		return nil
	}
	defer e.verifying.lock(mounts)() // two containers may have one directory
	argv := []string{AgentPath, "witness"}
	want := []string{}
	given := map[FileID]string{} // one directory may be mounted at two places
	for _, m := range mounts {
		file := FileID{Dev: m.ID.Dev, Ino: m.ID.Ino}
		if secret, ok := given[file]; ok {
			argv, want = append(argv, m.Target), append(want, secret)
			continue
		}
		secret, restore, err := challenge(m)
		if err != nil {
			return err
		}
		if restore == nil {
			continue // nobody can have exchanged anything there
		}
		defer restore()
		given[file] = secret
		argv, want = append(argv, m.Target), append(want, secret)
	}
	if len(want) == 0 {
		return nil
	}
	seen, err := witness(argv)
	if err != nil {
		return err
	}
	for i, secret := range want {
		if i >= len(seen) || seen[i] != secret {
			return fmt.Errorf("what was mounted at %s is not what was meant: it was exchanged while the container was made", argv[i+2])
		}
	}
	return nil
}

// openMeant opens a mount's source, if that is what was meant.
func openMeant(m Mount) (fd int, st unix.Stat_t, err error) {
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

// challenge gives a mount's source an access time, and returns it and how to undo that. restore is nil
// where the file system is read-only.
func challenge(m Mount) (secret string, restore func(), err error) {
	fd, st, err := openMeant(m)
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
	return fmt.Sprintf("%d.%09d", at.Sec, at.Nsec), func() {
		_ = set(st.Atim)
		_ = unix.Close(fd)
	}, nil
}

// witnessLimit is how long a container may take to say what it has mounted.
const witnessLimit = 15 * time.Second

// witness asks the agent for the access times of paths. One that does not answer in time has lost its session.
func witness(ctx context.Context, s *session, argv []string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, witnessLimit)
	defer cancel()
	defer context.AfterFunc(ctx, s.close)()
	var stdout, stderr bytes.Buffer
	result, err := s.run(ctx, Command{Command: launch.Command{Process: specs.Process{Args: argv, Cwd: "/"}}, Timeout: witnessLimit, MaxOutput: 1 << 20}, func(stream Stream, data []byte) error {
		if stream == Stdout {
			stdout.Write(data)
		} else {
			stderr.Write(data)
		}
		return nil
	})
	if ctx.Err() != nil {
		err = fmt.Errorf("the agent does not answer: %w", context.Cause(ctx))
	}
	if err != nil {
		return nil, fmt.Errorf("cannot verify the mounts: %w", err)
	}
	if result.ExitCode != 0 || result.Signal != 0 {
		return nil, fmt.Errorf("cannot verify the mounts: %s%s", result.CommandFault, stderr.String())
	}
	return strings.Fields(stdout.String()), nil
}
