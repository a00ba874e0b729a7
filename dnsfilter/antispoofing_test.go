package dnsfilter_test

import (
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"
)

// asks notes the names that came, in their case, and the cookies.
type asks struct {
	mu      sync.Mutex
	names   []string // by UDP
	cookies []string
	streams int
}

func (a *asks) note(w dns.ResponseWriter, q *dns.Msg) (cookie string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if w.RemoteAddr().Network() == "tcp" {
		a.streams++
	} else {
		a.names = append(a.names, q.Question[0].Name)
	}
	if opt := q.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if c, is := o.(*dns.EDNS0_COOKIE); is {
				cookie = c.Cookie
			}
		}
	}
	a.cookies = append(a.cookies, cookie)
	return cookie
}

func withCookie(reply *dns.Msg, cookie string) *dns.Msg {
	reply.SetEdns0(1232, false)
	opt := reply.IsEdns0()
	opt.Option = append(opt.Option, &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: cookie})
	return reply
}

const long = "abcdefghijklmnopqrstuvwxyz.abcdefghijklmnopqrstuvwxyz.example.org."

func name(i int) string { return string(rune('a'+i)) + long }

// TestCaseOfQuestions has an upstream that repeats what it is asked, in random case.
func TestCaseOfQuestions(t *testing.T) {
	var a asks
	l := newLab(t, nil, newFake(t, func(w dns.ResponseWriter, q *dns.Msg) {
		a.note(w, q)
		_ = w.WriteMsg(good(q))
	}).addr)
	for i := range 5 {
		l.wantSaid(filtered, name(i), dns.TypeA, "NOERROR 1.2.3.4")
	}
	seen := map[string]bool{}
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, asked := range a.names {
		if strings.ToLower(asked) == asked || strings.ToLower(asked) != name(i) || seen[asked[1:]] {
			t.Errorf("asked for %s", asked)
		}
		seen[asked[1:]] = true
	}
	if len(a.names) != 5 || a.streams != 0 {
		t.Errorf("%d by UDP, %d by TCP", len(a.names), a.streams)
	}
}

// TestAGuessOfIDAndPort makes a forged answer come first, by somebody who knows all but the case.
func TestAGuessOfIDAndPort(t *testing.T) {
	l := newLab(t, nil, newFake(t, func(w dns.ResponseWriter, q *dns.Msg) {
		if w.RemoteAddr().Network() == "udp" {
			forged := good(q)
			forged.Question[0].Name = strings.ToLower(forged.Question[0].Name)
			forged.Answer[0].(*dns.A).A = net.IPv4(6, 6, 6, 6)
			_ = w.WriteMsg(forged)
		}
		_ = w.WriteMsg(good(q))
	}).addr)
	for i := range 5 {
		l.wantSaid(filtered, name(i), dns.TypeA, "NOERROR 1.2.3.4")
	}
}

// TestUpstreamsThatDoNotRepeatTheCase are found out by TCP, once.
func TestUpstreamsThatDoNotRepeatTheCase(t *testing.T) {
	var a asks
	l := newLab(t, nil, newFake(t, func(w dns.ResponseWriter, q *dns.Msg) {
		a.note(w, q)
		reply := good(q)
		reply.Question[0].Name = strings.ToLower(reply.Question[0].Name)
		_ = w.WriteMsg(reply)
	}).addr)
	for i := range 5 {
		l.wantSaid(filtered, name(i), dns.TypeA, "NOERROR 1.2.3.4")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.streams != 1 || len(a.names) != 5 || a.names[4] != name(4) {
		t.Errorf("%d by TCP, by UDP %q", a.streams, a.names)
	}
}

// TestCookies has an upstream that gives cookies, and an answer that comes without one.
func TestCookies(t *testing.T) {
	var a asks
	const theirs = "0102030405060708"
	l := newLab(t, nil, newFake(t, func(w dns.ResponseWriter, q *dns.Msg) {
		cookie := a.note(w, q)
		if len(cookie) > 16 && w.RemoteAddr().Network() == "udp" {
			forged := good(q)
			forged.Answer[0].(*dns.A).A = net.IPv4(6, 6, 6, 6)
			_ = w.WriteMsg(forged) // its case is right, by chance
		}
		_ = w.WriteMsg(withCookie(good(q), cookie[:16]+theirs))
	}).addr)
	for i := range 3 {
		l.wantSaid(filtered, name(i), dns.TypeA, "NOERROR 1.2.3.4")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.cookies[0]) != 16 || a.cookies[1] != a.cookies[0]+theirs || a.streams != 2 {
		t.Errorf("%d by TCP, cookies %q", a.streams, a.cookies)
	}
}

// TestACookieThatIsOld is taken back by the upstream, which gives another.
func TestACookieThatIsOld(t *testing.T) {
	var a asks
	l := newLab(t, nil, newFake(t, func(w dns.ResponseWriter, q *dns.Msg) {
		cookie, fresh := a.note(w, q), "1112131415161718"
		reply := withCookie(good(q), cookie[:16]+fresh)
		if cookie[16:] != fresh {
			reply.Rcode, reply.Answer = dns.RcodeBadCookie, nil
		}
		_ = w.WriteMsg(reply)
	}).addr)
	l.wantSaid(filtered, name(0), dns.TypeA, "NOERROR 1.2.3.4")
	l.wantSaid(filtered, name(1), dns.TypeA, "NOERROR 1.2.3.4")
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.streams != 0 || len(a.names) != 3 {
		t.Errorf("%d by TCP, %d by UDP", a.streams, len(a.names))
	}
}

// TestUpstreamsThatRefuseCookies are asked without.
func TestUpstreamsThatRefuseCookies(t *testing.T) {
	var a asks
	l := newLab(t, nil, newFake(t, func(w dns.ResponseWriter, q *dns.Msg) {
		reply := good(q)
		if a.note(w, q) != "" {
			reply.Rcode, reply.Answer, reply.Question = dns.RcodeFormatError, nil, nil
		}
		_ = w.WriteMsg(reply)
	}).addr)
	l.wantSaid(filtered, name(0), dns.TypeA, "NOERROR 1.2.3.4")
	l.wantSaid(filtered, name(1), dns.TypeA, "NOERROR 1.2.3.4")
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.streams != 1 || len(a.names) != 3 {
		t.Errorf("%d by TCP, %d by UDP", a.streams, len(a.names))
	}
}

// TestUpstreamsWithoutTCP are asked on with what they repeat, and without what they do not.
func TestUpstreamsWithoutTCP(t *testing.T) {
	const theirs = "0102030405060708"
	for _, c := range []struct {
		name                  string
		repeatsCase, gives    bool // gives a cookie each time, not only the first time
		wantsCase, wantsGiven bool // what it is still asked with in the end
	}{
		{"that does not repeat the case", false, true, false, true},
		{"that gives one cookie only", true, false, true, false},
		{"that does neither", false, false, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var a asks
			l := newLab(t, nil, newFake(t, func(w dns.ResponseWriter, q *dns.Msg) {
				cookie := a.note(w, q)
				if w.RemoteAddr().Network() == "tcp" {
					_ = w.Close()
					return
				}
				reply := good(q)
				if cookie != "" && (c.gives || len(cookie) == 16) {
					withCookie(reply, cookie[:16]+theirs)
				}
				if !c.repeatsCase {
					reply.Question[0].Name = strings.ToLower(reply.Question[0].Name)
				}
				_ = w.WriteMsg(reply)
			}).addr)
			for i := range 5 {
				l.wantSaid(filtered, name(i), dns.TypeA, "NOERROR 1.2.3.4")
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			last, cookie := a.names[len(a.names)-1], a.cookies[len(a.cookies)-1]
			if (last != name(4)) != c.wantsCase || (cookie != "") != c.wantsGiven {
				t.Errorf("in the end it is asked for %s, with cookie %q, after %d tries by TCP", last, cookie, a.streams)
			}
		})
	}
}
