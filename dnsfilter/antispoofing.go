package dnsfilter

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

// An attacker who cannot see a question may still guess its id and port, and answer before the
// upstream does. So a question by UDP carries more that an answer has to repeat: a case for each of
// its letters (0x20), and a cookie (RFC 7873), with the upstream's own once that has sent one. What
// an upstream does not repeat by TCP either, where nobody else can answer, is not asked of it by
// UDP for a while.

// antiSpoofing is what an upstream is known to repeat.
type antiSpoofing struct {
	clientCookie atomic.Pointer[string] // our cookie for it, in hex
	serverCookie atomic.Pointer[string] // its own, in hex; nil until it has sent one
	// plainCase and noCookie are until when it need not repeat the case and the cookie, in
	// nanoseconds since 1970.
	plainCase, noCookie atomic.Int64
}

// How long an upstream is not asked to repeat what it does not, in nanoseconds: plainFor where TCP
// has shown that, plainWithout where it takes no TCP.
const (
	plainFor     = int64(time.Hour)
	plainWithout = int64(time.Minute)
)

// errDoubt means that an answer may be forged: it does not repeat all that was asked.
var errDoubt = errors.New("the answer does not repeat the case or the cookie of its question")

const (
	ownCookie = 16      // of hex digits: 8 bytes
	maxCookie = 16 + 64 // with the server's, of 8 to 32 bytes
	minCookie = 16 + 16
)

// protect returns the question as it is to be asked by UDP now.
func (d *antiSpoofing) protect(query *dns.Msg, now int64) *dns.Msg {
	asked := query.Copy()
	if now >= d.plainCase.Load() {
		asked.Question[0].Name = mixCase(asked.Question[0].Name)
	}
	if opt := asked.IsEdns0(); opt != nil && now >= d.noCookie.Load() {
		cookie := d.ownCookie()
		if theirs := d.serverCookie.Load(); theirs != nil {
			cookie += *theirs
		}
		opt.Option = append(opt.Option, &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: cookie})
	}
	return asked
}

// ownCookie returns our cookie for this upstream; every upstream gets another one.
func (d *antiSpoofing) ownCookie() string {
	if mine := d.clientCookie.Load(); mine != nil {
		return *mine
	}
	var random [ownCookie / 2]byte
	_, _ = rand.Read(random[:]) // it never fails
	fresh := hex.EncodeToString(random[:])
	d.clientCookie.CompareAndSwap(nil, &fresh)
	return *d.clientCookie.Load()
}

// mixCase gives each letter a random case.
func mixCase(name string) string {
	mixed := []byte(name)
	var random [256 / 8]byte // a name has fewer letters
	_, _ = rand.Read(random[:])
	for i, c := range mixed {
		if ('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z') && random[i/8%len(random)]>>(i%8)&1 == 1 {
			mixed[i] ^= 'a' - 'A'
		}
	}
	return string(mixed)
}

// echoes reports whether an answer by UDP repeats all that it should.
func echoes(reply, asked *dns.Msg) bool {
	return echoesCase(reply, asked) && echoesCookie(reply, asked)
}

func echoesCase(reply, asked *dns.Msg) bool {
	return len(reply.Question) == 1 && reply.Question[0].Name == asked.Question[0].Name
}

func echoesCookie(reply, asked *dns.Msg) bool {
	sent, got := cookieOf(asked), cookieOf(reply)
	switch {
	case sent == "":
		return true
	case reply.Rcode == dns.RcodeFormatError: // it may not know what a cookie is
		return false
	case got == "": // it is required only if the upstream has sent one before
		return len(sent) == ownCookie
	}
	return strings.HasPrefix(got, sent[:ownCookie])
}

// giveUp has the upstream asked without what an answer by UDP does not repeat, for a while: by TCP,
// which could show whether it repeats that, it does not answer.
func (d *antiSpoofing) giveUp(reply, asked *dns.Msg, now int64) {
	if !echoesCase(reply, asked) {
		d.plainCase.Store(now + plainWithout)
	}
	if !echoesCookie(reply, asked) {
		d.noCookie.Store(now + plainWithout)
	}
}

// learn records what an answer shows about the upstream. An answer by stream is certainly the
// upstream's own.
func (d *antiSpoofing) learn(reply, asked *dns.Msg, stream bool, now int64) {
	sent, got := cookieOf(asked), cookieOf(reply)
	if sent != "" && minCookie <= len(got) && len(got) <= maxCookie &&
		strings.HasPrefix(got, sent[:ownCookie]) {
		theirs := got[ownCookie:]
		d.serverCookie.Store(&theirs)
	} else if stream && sent != "" {
		d.serverCookie.Store(nil)
		if reply.Rcode == dns.RcodeFormatError {
			d.noCookie.Store(now + plainFor)
		}
	}
	if stream && len(reply.Question) == 1 && reply.Question[0].Name != asked.Question[0].Name {
		d.plainCase.Store(now + plainFor)
	}
}

// cookieOf returns the cookie of a message, in hex; empty for none.
func cookieOf(m *dns.Msg) string {
	if opt := m.IsEdns0(); opt != nil {
		for _, option := range opt.Option {
			if c, is := option.(*dns.EDNS0_COOKIE); is {
				return c.Cookie
			}
		}
	}
	return ""
}
