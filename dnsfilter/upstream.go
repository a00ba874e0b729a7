package dnsfilter

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

// upstream is a resolver that questions are forwarded to.
type upstream struct {
	spec     string
	address  string // host:port
	tls      *tls.Config
	idle     idleConns    // over TLS, kept for the next question
	spoofing antiSpoofing // by UDP

	retry atomic.Int64 // 0, or after a failure when it is probed again, as Server.since
}

// parseUpstream reads address, address:port or tls://host[:port].
func parseUpstream(spec string) (*upstream, error) {
	rest, secure := strings.CutPrefix(spec, "tls://")
	port := uint16(53)
	if secure {
		port = 853
	}
	if addr, err := netip.ParseAddr(rest); err == nil {
		return newUpstream(spec, addr.String(), port, secure)
	}
	if pair, err := netip.ParseAddrPort(rest); err == nil {
		return newUpstream(spec, pair.Addr().String(), pair.Port(), secure)
	}
	host, number, found := strings.Cut(rest, ":")
	if found {
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("upstream %q has no port after its colon", spec)
		}
		port = uint16(n)
	}
	_, isName := dns.IsDomainName(host)
	if !secure || !isName || strings.Trim(host, "0123456789.") == "" ||
		strings.ContainsAny(host, "/[]@ ") {
		return nil, fmt.Errorf(
			"upstream %q: want address, address:port, [IPv6]:port or tls://host[:port]", spec)
	}
	return newUpstream(spec, host, port, secure)
}

func newUpstream(spec, host string, port uint16, secure bool) (*upstream, error) {
	if addr, err := netip.ParseAddr(host); port == 0 ||
		err == nil && (addr.IsUnspecified() || addr.IsMulticast()) {
		return nil, fmt.Errorf("upstream %q has an address or port that no resolver can have", spec)
	}
	u := &upstream{spec: spec, address: net.JoinHostPort(host, strconv.Itoa(int(port)))}
	if secure {
		u.tls = &tls.Config{
			ServerName:         strings.TrimSuffix(host, "."),
			MinVersion:         tls.VersionTLS12,
			ClientSessionCache: tls.NewLRUClientSessionCache(0),
		}
	}
	return u, nil
}

// exchange asks one question. The answer is one to this question, with this id, from this upstream.
func (u *upstream) exchange(ctx context.Context, query *dns.Msg) (*dns.Msg, error) {
	if u.tls != nil {
		packed, err := query.Pack()
		if err != nil {
			return nil, fmt.Errorf("cannot pack the question: %w", err)
		}
		return u.exchangeTLS(ctx, query, packed)
	}
	reply, again, err := u.exchangeProtected(ctx, query)
	if again {
		reply, _, err = u.exchangeProtected(ctx, query)
	}
	return reply, err
}

// exchangeProtected asks by UDP, and by TCP where that is not enough: for an answer that is too
// large, or that may be forged. again says that more is known of the upstream now and it is to be
// asked once more.
func (u *upstream) exchangeProtected(ctx context.Context,
	query *dns.Msg) (reply *dns.Msg, again bool, err error) {
	now := time.Now().UnixNano()
	asked := u.spoofing.protect(query, now)
	asked.Id = dns.Id()
	packed, err := asked.Pack()
	if err != nil {
		return nil, false, fmt.Errorf("cannot pack the question: %w", err)
	}
	reply, err = u.exchangeUDP(ctx, asked, packed)
	doubt := errors.Is(err, errDoubt)
	if err == nil && !reply.Truncated {
		u.spoofing.learn(reply, asked, false, now)
		return reply, reply.Rcode == dns.RcodeBadCookie, nil
	}
	if err != nil && !doubt {
		return nil, false, err
	}
	doubtful := reply
	reply, err = u.exchangeTCP(ctx, asked, packed)
	if err != nil && doubt && ctx.Err() == nil {
		u.spoofing.giveUp(doubtful, asked, now)
		return nil, true, err
	}
	if err != nil {
		return nil, false, err
	}
	u.spoofing.learn(reply, asked, true, now)
	return reply, reply.Rcode == dns.RcodeFormatError && cookieOf(asked) != "", nil
}

func (u *upstream) exchangeTCP(ctx context.Context, query *dns.Msg,
	packed []byte) (*dns.Msg, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", u.address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer hangUp(ctx, conn)()
	return exchangeStream(conn, query, packed)
}

// exchangeUDP uses a connected socket of its own: another port for each question, and datagrams
// from elsewhere are not received. What comes with another id or question is not the answer, which
// may still come. An answer with errDoubt may be forged.
func (u *upstream) exchangeUDP(ctx context.Context, query *dns.Msg,
	packed []byte) (*dns.Msg, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "udp", u.address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer hangUp(ctx, conn)()
	if _, err := conn.Write(packed); err != nil {
		return nil, err
	}
	buffer := make([]byte, 4096) // more than the question said may come
	for {
		n, err := conn.Read(buffer)
		if err != nil {
			return nil, err
		}
		reply, err := unpack(buffer[:n], query)
		if errors.Is(err, errOther) {
			continue
		}
		if err == nil && !echoes(reply, query) {
			return reply, errDoubt
		}
		return reply, err
	}
}

// exchangeStream asks over TCP or TLS.
func exchangeStream(conn net.Conn, query *dns.Msg, packed []byte) (*dns.Msg, error) {
	framed := &dns.Conn{Conn: conn}
	if _, err := framed.Write(packed); err != nil {
		return nil, err
	}
	message, err := framed.ReadMsgHeader(nil)
	if err != nil {
		return nil, err
	}
	reply, err := unpack(message, query)
	if err == nil && reply.Truncated {
		return nil, errBroken
	}
	return reply, err
}

var (
	errOther  = errors.New("an answer to another question")
	errBroken = errors.New("a malformed answer")
)

// unpack reads an answer to query. The library bounds names and does not follow loops in them.
func unpack(message []byte, query *dns.Msg) (*dns.Msg, error) {
	if len(message) < headerSize || binary.BigEndian.Uint16(message) != query.Id {
		return nil, errOther
	}
	reply := new(dns.Msg)
	// What was cut off in the middle of a record is asked for again over TCP.
	if err := reply.Unpack(message); err != nil && !reply.Truncated {
		return nil, fmt.Errorf("%w: %w", errBroken, err)
	}
	if !reply.Response || reply.Opcode != dns.OpcodeQuery {
		return nil, errOther
	}
	asked := query.Question[0]
	// A server that does not like the question may leave it out.
	if len(reply.Question) == 0 && reply.Rcode != dns.RcodeSuccess &&
		reply.Rcode != dns.RcodeNameError {
		return reply, nil
	}
	if len(reply.Question) != 1 || reply.Question[0].Qtype != asked.Qtype ||
		reply.Question[0].Qclass != asked.Qclass ||
		!strings.EqualFold(reply.Question[0].Name, asked.Name) {
		return nil, errOther
	}
	return reply, nil
}

// hangUp closes conn when ctx ends, unless the function that it returns is called before.
func hangUp(ctx context.Context, conn net.Conn) (stop func() bool) {
	return context.AfterFunc(ctx, func() { conn.Close() })
}
