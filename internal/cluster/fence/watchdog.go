package fence

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// resetAfter is how long a watchdog goes unfed before it resets the host. It is not fed after the
// lease's deadline, so everything that the host ran has ended before another host takes over,
// whatever keeps the fence from killing.
const resetAfter = TTL - Limit - time.Second

// watchdog is an open watchdog. If this process dies and nobody opens the device in time, the
// kernel resets the host.
type watchdog struct {
	fd      int
	refuses bool // to be fed
}

// arm starts the watchdog, if there is one. It is armed while the host has a lease.
func (f *Fence) arm() error {
	if f.cfg.Watchdog == "" || f.watchdog != nil {
		return nil
	}
	// Non-blocking: a pipe without a reader is no watchdog, and a pipe whose reader hangs must not
	// block the fence.
	fd, err := unix.Open(f.cfg.Watchdog, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == nil {
		if err = setReset(fd); err != nil {
			_ = unix.Close(fd)
		}
	}
	if err != nil {
		return fmt.Errorf("cannot hold cluster.watchdog %s: %w", f.cfg.Watchdog, err)
	}
	f.watchdog = &watchdog{fd: fd}
	f.feed()
	return nil
}

// setReset sets the timeout of a watchdog. The reader of a pipe has its own.
func setReset(fd int) error {
	var is unix.Stat_t
	if err := unix.Fstat(fd, &is); err != nil || is.Mode&unix.S_IFMT == unix.S_IFIFO {
		return err
	}
	const want = int(resetAfter / time.Second)
	if err := unix.IoctlSetPointerInt(fd, unix.WDIOC_SETTIMEOUT, want); err != nil {
		return fmt.Errorf("it is not a watchdog, or its timeout cannot be set: %w", err)
	}
	if has, err := unix.IoctlGetInt(fd, unix.WDIOC_GETTIMEOUT); err != nil || has > want {
		return fmt.Errorf("it resets the host after %d s instead of at most %d s (%v)", has, want,
			err)
	}
	return nil
}

// feed resets the watchdog's timer. It is called while the lease lives.
func (f *Fence) feed() {
	if f.watchdog == nil {
		return
	}
	_, err := unix.Write(f.watchdog.fd, []byte{'\n'})
	if err != nil && !f.watchdog.refuses {
		f.cfg.Log.Error().Err(err).Msg("cannot feed cluster.watchdog, which may reset this host")
	}
	f.watchdog.refuses = err != nil
}

// disarm stops the watchdog: nothing runs, or another fence goes on.
func (f *Fence) disarm() {
	if f.watchdog == nil {
		return
	}
	_, err := unix.Write(f.watchdog.fd, []byte{'V'}) // the kernel's magic close
	if err = errors.Join(err, unix.Close(f.watchdog.fd)); err != nil {
		f.cfg.Log.Error().Err(err).Msg("cannot disarm cluster.watchdog, which may reset this host")
	}
	f.watchdog = nil
}
