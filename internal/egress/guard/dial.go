package guard

import (
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// connect connects to the next address that may be, or gives up.
func (l *link) connect() {
	for len(l.addrs) > 0 && l.poller.now.Before(l.connectBy) {
		addr := l.addrs[0].Unmap()
		l.addrs = l.addrs[1:]
		if !l.flow.mayConnect(addr) {
			continue
		}
		if err := l.dial(netip.AddrPortFrom(addr, l.flow.port)); err != nil {
			l.failed(err)
			continue
		}
		l.next = (*link).connecting
		limit := min(l.flow.guard.cfg.Limits.ConnectTimeout, l.connectBy.Sub(l.poller.now))
		l.poller.within(l, limit, func(l *link) { l.failed(syscall.ETIMEDOUT); l.connect() })
		return
	}
	l.flow.decide(l.name, l.last)
	if l.last.verdict == Denied {
		l.alert(alertAccessDenied)
	} else {
		// What the program would have seen without the guard.
		l.reset()
	}
}

func (l *link) dial(to netip.AddrPort) error {
	if !l.flow.guard.budget.Ports.Take(l.flow.client.User(), to) {
		return errPorts
	}
	l.to = to
	family := unix.AF_INET
	if to.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	speakFirst(fd)
	boundOrigin(fd, l.flow.buffers)
	if err := rawConnect(fd, to); err != nil && err != unix.EINPROGRESS {
		rawClose(fd)
		return err
	}
	return l.poller.join(l, &l.origin, fd)
}

// partOrigin closes the connection to the origin, if there is one, and gives its port back.
func (l *link) partOrigin(how func(fd int)) {
	l.poller.part(&l.origin, how)
	if l.to.IsValid() {
		l.flow.guard.budget.Ports.Give(l.flow.client.User(), l.to, l.endedFirst)
		l.to = netip.AddrPort{}
	}
}

func (l *link) failed(err error) {
	l.partOrigin(rawClose)
	l.last = unreachable(err)
}

func (l *link) connecting() {
	if l.left() || !l.origin.writable {
		return
	}
	if err := rawError(l.origin.fd); err != nil {
		l.failed(err)
		l.connect()
		return
	}
	l.introduce()
}
