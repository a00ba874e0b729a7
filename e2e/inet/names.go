package inet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Namespaces have names as ip netns gives them: files here. A lock on the folder is held while
// names come and go, and a lock on a name while its process lives: what is not locked is a
// leftover.
const namesDir = "/run/netns"

var errInUse = errors.New("a process that is alive has one of this name")

// lockNames waits for others that make or remove a namespace, which takes milliseconds.
func lockNames(ctx context.Context) (unlock func(), err error) {
	if err := os.MkdirAll(namesDir, 0o755); err != nil {
		return nil, err
	}
	dir, err := os.Open(namesDir)
	if err != nil {
		return nil, err
	}
	if err := retry(ctx, func() (bool, error) {
		err := flock(dir)
		if errors.Is(err, unix.EWOULDBLOCK) {
			return false, nil
		}
		return true, err
	}); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot lock %s: %w", namesDir, err), dir.Close())
	}
	return func() { _ = dir.Close() }, nil
}

// retry calls f until it is done or fails.
func retry(ctx context.Context, f func() (done bool, err error)) error {
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for ctx.Err() == nil {
		if done, err := f(); done || err != nil {
			return err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// lockName fails with unix.EWOULDBLOCK when a process uses the namespace, and with fs.ErrNotExist
// when there is none. The lock ends with the file.
func lockName(name string) (*os.File, error) {
	f, err := os.Open(filepath.Join(namesDir, name))
	if err != nil {
		return nil, err
	}
	if err := flock(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func flock(f *os.File) error {
	for {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// removeStale removes what is left of the name, unless a process uses it.
func removeStale(host *netlink.Handle, name string) error {
	lock, err := lockName(name)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return errInUse
	case errors.Is(err, fs.ErrNotExist):
		return removeLink(host, name)
	case err != nil:
		return err
	}
	return errors.Join(lock.Close(), removeLink(host, name), removeName(name))
}

// removeLink removes a veth pair, and so its routes. The kernel removes a namespace, and a link in
// it, only after a while.
func removeLink(host *netlink.Handle, name string) error {
	link, err := host.LinkByName(name)
	if _, gone := errors.AsType[netlink.LinkNotFoundError](err); gone {
		return nil
	}
	if err != nil {
		return err
	}
	if link.Type() != "veth" {
		return fmt.Errorf("the link %q is a %s and not ours", name, link.Type())
	}
	return host.LinkDel(link)
}

func removeName(name string) error {
	path := filepath.Join(namesDir, name)
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("cannot unmount %s: %w", path, err)
	}
	return os.Remove(path)
}

// Sweep removes what runs that were killed have left under names that begin with prefix, which must
// not be empty: namespaces of such names, and links that an Inet has made. What a process that is
// alive uses stays. It may run beside New.
func Sweep(ctx context.Context, prefix string) error {
	if !names.MatchString(prefix) {
		return fmt.Errorf(
			"cannot sweep test internets: the prefix %q is not 1 to 15 letters, digits and hyphens",
			prefix)
	}
	if err := sweep(ctx, prefix); err != nil {
		return fmt.Errorf("cannot sweep test internets %q: %w", prefix, err)
	}
	return nil
}

func sweep(ctx context.Context, prefix string) error {
	unlock, err := lockNames(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	host, err := netlink.NewHandle()
	if err != nil {
		return err
	}
	defer host.Close()
	left := map[string]bool{}
	entries, err := os.ReadDir(namesDir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		left[entry.Name()] = true
	}
	links, err := dump(host.LinkList)
	if err != nil {
		return err
	}
	for _, link := range links {
		if link.Attrs().Alias == mark {
			left[link.Attrs().Name] = true
		}
	}
	var faults []error
	for name := range left {
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		if err := removeStale(host, name); !errors.Is(err, errInUse) {
			faults = append(faults, err)
		}
	}
	return errors.Join(faults...)
}
