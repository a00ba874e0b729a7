package dnsfilter

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/miekg/dns"

	"github.com/daycare-run/sandbox/internal/budget"
)

// serveTCP accepts connections until the listener is closed.
func (s *Server) serveTCP(ctx context.Context, listener *net.TCPListener) {
	for {
		conn, err := listener.AcceptTCP()
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			s.config.Log.Warn().Err(err).Msg("cannot accept a DNS connection")
			pause(ctx)
			continue
		}
		source := conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
		who := s.config.Client(source)
		// An unknown source gets no connection: by UDP it is told why.
		if who == nil || !s.conns.Take(who.User, 1) {
			conn.Close()
			continue
		}
		s.wg.Go(func() {
			defer s.conns.Give(who.User, 1)
			defer conn.Close()
			defer hangUp(ctx, conn)()
			_ = conn.SetWriteBuffer(dns.MaxMsgSize)
			s.serveConn(ctx, conn, source, who)
			budget.Deliver(ctx, conn, s.config.IdleTimeout)
		})
	}
}

// serveConn answers one question after the other until the client closes, is idle, sends something
// else, or has asked too many: what it sends on an open connection costs it next to nothing, and
// further connections have a rate of their own. It ends with the registration of its client: what
// waits in it is not from the next client that has the address.
func (s *Server) serveConn(ctx context.Context, conn net.Conn, source netip.Addr, who *Client) {
	var q question
	packet := make([]byte, maxQuery)
	var out []byte
	for {
		_ = conn.SetDeadline(time.Now().Add(s.config.IdleTimeout))
		if _, err := io.ReadFull(conn, packet[:2]); err != nil {
			return
		}
		size := int(binary.BigEndian.Uint16(packet))
		if size > len(packet) {
			return
		}
		if _, err := io.ReadFull(conn, packet[:size]); err != nil {
			return
		}
		if s.config.Client(source) != who {
			return
		}
		reply, ask := s.handle(&q, who, packet[:size], out, true)
		if ask != nil && s.lookups.Take(ask.who.User, 1) {
			reply = s.resolve(ctx, &q, ask, out)
		} else if ask != nil {
			reply = s.report(&answerBusy, ask.who, ask.name, s.config.Now(), &q, out)
		}
		if len(reply) == 0 {
			return
		}
		out = reply[:0]
		framed := net.Buffers{binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply}
		_ = conn.SetWriteDeadline(time.Now().Add(s.config.IdleTimeout))
		if _, err := framed.WriteTo(conn); err != nil || q.last {
			return
		}
	}
}
