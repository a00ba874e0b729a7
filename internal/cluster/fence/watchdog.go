package fence

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// resetAfter is how long a watchdog is without food before it resets the host. It gets none after the lease's deadline, so all that
// the host ran has ended before another takes over, whatever keeps the fence from killing.
const resetAfter = TTL - Limit - time.Second

// watchdog is an open one. The kernel resets the host if it is closed because this process dies, and nobody opens it in time.
type watchdog struct {
	fd      int
	refuses bool // to be fed
}

// arm has the watchdog count, where there is one. It does so while the host has a lease.
func (f *Fence) arm() error {
	if f.cfg.Watchdog == "" || f.watchdog != nil {
		return nil
	}
	// Without a wait: a pipe that nobody reads is none, and one whose reader hangs must not keep the fence.
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

// setReset sets the time of a watchdog. Whoever reads a pipe has one of its own.
func setReset(fd int) error {
	var is unix.Stat_t
	if err := unix.Fstat(fd, &is); err != nil || is.Mode&unix.S_IFMT == unix.S_IFIFO {
		return err
	}
	const want = int(resetAfter / time.Second)
	if err := unix.IoctlSetPointerInt(fd, unix.WDIOC_SETTIMEOUT, want); err != nil {
		return fmt.Errorf("it is no watchdog, or none whose time can be set: %w", err)
	}
	if has, err := unix.IoctlGetInt(fd, unix.WDIOC_GETTIMEOUT); err != nil || has > want {
		return fmt.Errorf("it resets the host after %d s, and has to after %d (%v)", has, want, err)
	}
	return nil
}

// feed is called while the lease lives.
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

// disarm has the watchdog count no more: nothing runs, or another fence goes on.
func (f *Fence) disarm() {
	if f.watchdog == nil {
		return
	}
	_, err := unix.Write(f.watchdog.fd, []byte{'V'}) // what the kernel has for that
	if err = errors.Join(err, unix.Close(f.watchdog.fd)); err != nil {
		f.cfg.Log.Error().Err(err).Msg("cannot disarm cluster.watchdog, which may reset this host")
	}
	f.watchdog = nil
}
