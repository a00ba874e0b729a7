package dnsfilter

import (
	"context"
	"net"
	"net/netip"
	"time"
)

// maxQuery is more than a query can have with one question and the options that clients send.
const maxQuery = 4096

// serveUDP answers the datagrams of one socket until it is closed. What is known is answered in the
// loop; a goroutine waits for what is not.
func (s *Server) serveUDP(ctx context.Context, conn *net.UDPConn) {
	var q question
	packet := make([]byte, maxQuery)
	out := make([]byte, 0, maxPayload)
	for {
		n, source, err := conn.ReadFromUDPAddrPort(packet)
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			s.config.Log.Warn().Err(err).Msg("cannot receive a DNS question")
			pause(ctx)
			continue
		}
		reply, ask := s.handle(&q, s.config.Client(source.Addr().Unmap()), packet[:n], out, false)
		switch {
		case ask != nil && s.lookups.Take(ask.who.User, 1):
			s.forwardUDP(ctx, conn, source, &q, ask)
		case ask != nil:
			reply = s.report(&answerBusy, ask.who, ask.name, s.config.Now(), &q, out)
		}
		if len(reply) > 0 {
			// A client that cannot be reached asks again or not; there is nobody else to tell.
			_, _ = conn.WriteToUDPAddrPort(reply, source)
		}
	}
}

// forwardUDP answers once an upstream has. There are as many goroutines as lookups are taken.
func (s *Server) forwardUDP(ctx context.Context, conn *net.UDPConn, source netip.AddrPort,
	q *question, ask *pending) {
	own := q.detach()
	s.wg.Go(func() {
		if reply := s.resolve(ctx, own, ask, nil); len(reply) > 0 {
			_, _ = conn.WriteToUDPAddrPort(reply, source)
		}
	})
}

// pause keeps a loop whose socket fails from spinning.
func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(100 * time.Millisecond):
	}
}
