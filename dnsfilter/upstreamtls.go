package dnsfilter

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// idleConns are connections that wait for the next question. Each carries one question at a time,
// so that a late answer is not taken for another question's.
type idleConns struct {
	mu     sync.Mutex
	conns  []idleConn
	closed bool
}

type idleConn struct {
	net.Conn
	since time.Time
}

const (
	maxIdle = 8                // connections to one upstream
	idleFor = 10 * time.Second // servers close after about this time
)

// take returns the connection that was used last, or nil.
func (i *idleConns) take() net.Conn {
	i.mu.Lock()
	defer i.mu.Unlock()
	for len(i.conns) > 0 {
		last := i.conns[len(i.conns)-1]
		i.conns = i.conns[:len(i.conns)-1]
		if time.Since(last.since) < idleFor {
			return last.Conn
		}
		last.Close()
	}
	return nil
}

func (i *idleConns) put(conn net.Conn) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed || len(i.conns) == maxIdle {
		conn.Close()
		return
	}
	i.conns = append(i.conns, idleConn{conn, time.Now()})
}

func (i *idleConns) close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed = true
	for _, conn := range i.conns {
		conn.Close()
	}
	i.conns = nil
}

// exchangeTLS asks over an idle connection, if one still works, else over a new one. A name in the
// upstream's address is found with the host's resolver: whoever could lie there does not have the
// certificate.
func (u *upstream) exchangeTLS(ctx context.Context, query *dns.Msg,
	packed []byte) (*dns.Msg, error) {
	if conn := u.idle.take(); conn != nil {
		if reply, err := u.exchangeOn(ctx, conn, query, packed); err == nil || ctx.Err() != nil {
			return reply, err
		}
	}
	dialer := tls.Dialer{Config: u.tls}
	conn, err := dialer.DialContext(ctx, "tcp", u.address)
	if err != nil {
		return nil, err
	}
	return u.exchangeOn(ctx, conn, query, packed)
}

// exchangeOn keeps the connection if the exchange went well and closes it otherwise.
func (u *upstream) exchangeOn(ctx context.Context, conn net.Conn, query *dns.Msg,
	packed []byte) (*dns.Msg, error) {
	stop := hangUp(ctx, conn)
	reply, err := exchangeStream(conn, query, packed)
	if !stop() || err != nil {
		conn.Close()
		return reply, err
	}
	u.idle.put(conn)
	return reply, nil
}
