package guard

import (
	"context"
	"errors"
	"net"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/egress/nonblock"
)

// Carry passes bytes between an endpoint and a server, taking turns with the TLS connections of all users. It returns when
// both sides have ended, or ctx has, and closes the two connections.
func (g *Guard) Carry(ctx context.Context, ep Endpoint, near, far *net.TCPConn) {
	client, origin, err := detach(near, far)
	if err != nil {
		g.cfg.Logger.Error().Err(err).Msg("cannot carry a connection")
		return
	}
	ended := make(chan struct{})
	s := &session{
		flow: &flow{guard: g, endpoint: ep}, life: ctx, next: (*session).relay, leave: func() { close(ended) },
	}
	l := g.loops[int(g.carried.Add(1))%len(g.loops)]
	s.AtOnce = true
	s.Init(l, client, s)
	s.Begin(origin)
	defer context.AfterFunc(ctx, func() { l.Post(s.Reset) })()
	<-ended
}

// detach returns descriptors of two connections that Go's poller does not watch, and closes the connections.
func detach(near, far *net.TCPConn) (client, origin int, err error) {
	if client, err = detachOne(near); err != nil {
		return -1, -1, errors.Join(err, far.Close())
	}
	if origin, err = detachOne(far); err != nil {
		nonblock.Reset(client)
		return -1, -1, err
	}
	return client, origin, nil
}

func detachOne(c *net.TCPConn) (fd int, err error) {
	defer c.Close() // of two descriptors
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	var failed error
	err = raw.Control(func(of uintptr) { fd, failed = unix.FcntlInt(of, unix.F_DUPFD_CLOEXEC, 0) })
	return fd, errors.Join(err, failed)
}
