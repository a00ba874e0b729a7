package dnsfilter_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/daycare-run/sandbox/dnsfilter"
	"github.com/daycare-run/sandbox/internal/waittest"
)

func TestRate(t *testing.T) {
	l := newLab(t, func(c *dnsfilter.Config) { c.QueriesPerSecond = 2 }, newFake(t, nil).addr)
	patient, impatient := l.client(filtered, "udp"), l.client(filtered, "udp")
	impatient.Timeout = 50 * time.Millisecond
	answered := func(client *dns.Client) bool {
		reply, _, err := client.Exchange(new(dns.Msg).SetQuestion("example.org.", dns.TypeA), l.addr)
		if err != nil && !isTimeout(err) {
			t.Fatal(err)
		}
		if err == nil && reply.Rcode != dns.RcodeSuccess {
			t.Errorf("by UDP it is told:\n%s", reply)
		}
		return err == nil && reply.Rcode == dns.RcodeSuccess
	}
	for i, step := range []struct {
		pass time.Duration
		want bool
	}{
		{0, true}, {0, true}, {0, true}, {0, true}, {0, false}, {499 * time.Millisecond, false}, {time.Millisecond, true}, {0, false},
		{time.Hour, true}, {0, true}, {0, true}, {0, true}, {0, false},
	} {
		l.clock.advance(step.pass)
		client := impatient
		if step.want {
			client = patient
		}
		before := l.limited()
		got := answered(client)
		if got != step.want {
			t.Errorf("step %d: answered %t", i, got)
		}
		if !got { // it must not be looked at only when time has passed again
			waittest.Until(t, "a question that is one too many", func() bool { return l.limited() > before })
		}
	}
	if d := l.lastDecision(); d.Verdict != dnsfilter.Limited || d.Reason != "too many questions in a second" || d.Client.ID != "filtered" {
		t.Errorf("decided %+v", d)
	}
	// By TCP it is told, and others have a rate of their own.
	reply, _, err := l.client(filtered, "tcp").Exchange(new(dns.Msg).SetQuestion("example.org.", dns.TypeA), l.addr)
	must(t, err)
	if reply.Rcode != dns.RcodeRefused {
		t.Errorf("by TCP:\n%s", reply)
	}
	l.wantSaid(other, "example.org.", dns.TypeA, "NOERROR 1.2.3.4")
	if n := l.count(dnsfilter.Limited); n != 5 {
		t.Errorf("%d were limited", n)
	}
}

// When the host's clock is set back, nobody waits for it to catch up, and no answer lives longer.
func TestTheHostsClockIsSetBack(t *testing.T) {
	begun := time.Now()
	var now atomic.Pointer[time.Time]
	now.Store(&begun)
	l := newLab(t, func(c *dnsfilter.Config) {
		c.QueriesPerSecond = 2
		c.Now = func() time.Time { return *now.Load() }
	}, newFake(t, zone("example.org. 10 A 1.2.3.4")).addr)
	answered := func() bool {
		reply, _, err := l.client(filtered, "tcp").Exchange(new(dns.Msg).SetQuestion("example.org.", dns.TypeA), l.addr)
		must(t, err)
		return reply.Rcode == dns.RcodeSuccess
	}
	for i, want := range []bool{true, true, true, true, false} {
		if answered() != want {
			t.Errorf("question %d", i)
		}
	}
	later := setBack(t, begun.Add(9*time.Second), time.Hour)
	now.Store(&later)
	if !answered() {
		t.Error("there is no answer")
	}
	if _, known := l.Known("example.org"); !known {
		t.Error("an answer is forgotten")
	}
	later = setBack(t, begun.Add(10*time.Second), time.Hour)
	now.Store(&later)
	if _, known := l.Known("example.org"); known {
		t.Error("an answer is kept longer")
	}
}

// A connection ends with the first question too many, whatever else has been sent on it.
func TestRateOfAStream(t *testing.T) {
	for name, ask := range map[string]func() ([]byte, error){
		"questions": new(dns.Msg).SetQuestion("example.org.", dns.TypeA).Pack,
		"garbage":   func() ([]byte, error) { return make([]byte, 12), nil }, // a question without one
	} {
		l := newLab(t, func(c *dnsfilter.Config) { c.QueriesPerSecond = 2 }, newFake(t, nil).addr)
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(filtered)}}
		conn, err := dialer.Dial("tcp", l.addr)
		must(t, err)
		packed, err := ask()
		must(t, err)
		packed = append(binary.BigEndian.AppendUint16(nil, uint16(len(packed))), packed...)
		_, err = conn.Write(bytes.Repeat(packed, 100))
		must(t, err)
		answers := 0
		for {
			answer := make([]byte, 2)
			if _, err := io.ReadFull(conn, answer); err != nil {
				break
			}
			if _, err := io.CopyN(io.Discard, conn, int64(binary.BigEndian.Uint16(answer))); err != nil {
				break
			}
			answers++
		}
		_ = conn.Close()
		if answers > 5 { // fewer, where the end of what was not read overtook them
			t.Errorf("%s: %d answers", name, answers)
		}
		if n := l.count(dnsfilter.Limited); n > 1 {
			t.Errorf("%s: %d were limited", name, n)
		}
	}
}

func TestStrangersAreToldSeldom(t *testing.T) {
	l := newLab(t, nil, newFake(t, nil).addr)
	dialer := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(stranger)}}
	conn, err := dialer.Dial("udp", l.addr)
	must(t, err)
	defer conn.Close()
	packed, _ := new(dns.Msg).SetQuestion("example.org.", dns.TypeA).Pack()
	for range 30 {
		_, err := conn.Write(packed)
		must(t, err)
	}
	for range 10 {
		_, err := conn.Read(make([]byte, 512))
		must(t, err)
	}
	waittest.Until(t, "all of a stranger's questions", func() bool { return l.count(dnsfilter.Denied) == 30 })
	must(t, conn.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
	if _, err := conn.Read(make([]byte, 512)); !isTimeout(err) {
		t.Errorf("an eleventh answer came: %v", err)
	}
	// A stranger's connection is closed at once.
	tcp := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(stranger)}}
	stream, err := tcp.Dial("tcp", l.addr)
	must(t, err)
	defer stream.Close()
	if _, err := stream.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("a stranger's connection: %v", err)
	}
}

// TestCoalescing has many ask the same at once; the upstream answers when all of them have asked.
func TestCoalescing(t *testing.T) {
	const askers = 20
	gate := make(chan struct{})
	upstream := newFake(t, func(w dns.ResponseWriter, q *dns.Msg) {
		<-gate
		_ = w.WriteMsg(good(q))
	})
	var asked atomic.Int64
	l := newLab(t, func(c *dnsfilter.Config) {
		client := c.Client
		c.Client = func(a netip.Addr) *dnsfilter.Client {
			if asked.Add(1) == askers {
				close(gate)
			}
			return client(a)
		}
	}, upstream.addr)
	var wg sync.WaitGroup
	for range askers {
		wg.Go(func() { l.wantSaid(filtered, "example.org.", dns.TypeA, "NOERROR 1.2.3.4") })
	}
	wg.Wait()
	if got := upstream.asked(); len(got) != 1 {
		t.Errorf("the upstream was asked %d times", len(got))
	}
}

// TestLookupsAreBounded has one user with two of eight lookups, which is a quarter.
func TestLookupsAreBounded(t *testing.T) {
	gate, asked := make(chan struct{}), make(chan struct{}, 9)
	upstream := newFake(t, func(w dns.ResponseWriter, q *dns.Msg) {
		asked <- struct{}{}
		<-gate
		_ = w.WriteMsg(good(q))
	})
	l := newLab(t, func(c *dnsfilter.Config) { c.MaxLookups = 8 }, upstream.addr)
	var first sync.WaitGroup
	first.Go(func() { l.wantSaid(filtered, "a.example.org.", dns.TypeA, "NOERROR 1.2.3.4") })
	<-asked
	first.Go(func() { l.wantSaid(filtered, "c.example.org.", dns.TypeA, "NOERROR 1.2.3.4") })
	<-asked
	l.wantSaid(filtered, "b.example.org.", dns.TypeA, "SERVFAIL")
	if d := l.lastDecision(); d.Verdict != dnsfilter.Limited || d.Reason != "too many questions wait for an answer" {
		t.Errorf("decided %+v", d)
	}
	first.Go(func() { l.wantSaid(other, "b.example.org.", dns.TypeA, "NOERROR 1.2.3.4") })
	<-asked
	close(gate)
	first.Wait()
	l.wantSaid(filtered, "b.example.org.", dns.TypeA, "NOERROR 1.2.3.4")
}

// What a container asked over a connection, without an answer yet, is not asked for the next one with its address.
func TestAConnectionIsItsEndpoints(t *testing.T) {
	asked, say := make(chan struct{}, 10), make(chan struct{})
	upstream := newFake(t, func(w dns.ResponseWriter, q *dns.Msg) {
		asked <- struct{}{}
		<-say
		_ = w.WriteMsg(good(q))
	})
	var next atomic.Pointer[dnsfilter.Client]
	l := newLab(t, func(c *dnsfilter.Config) {
		first := c.Client
		c.Client = func(a netip.Addr) *dnsfilter.Client {
			if now := next.Load(); now != nil {
				return now
			}
			return first(a)
		}
	}, upstream.addr)
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(filtered)}}
	raw, err := dialer.Dial("tcp", l.addr)
	must(t, err)
	conn := &dns.Conn{Conn: raw}
	defer conn.Close()
	for _, name := range []string{"example.org.", "other.test."} {
		must(t, conn.WriteMsg(new(dns.Msg).SetQuestion(name, dns.TypeA)))
	}
	<-asked
	next.Store(&dnsfilter.Client{ID: "next", User: "next", Open: true})
	close(say)
	must(t, conn.SetReadDeadline(time.Now().Add(patience)))
	if reply, err := conn.ReadMsg(); err != nil || reply.Question[0].Name != "example.org." {
		t.Errorf("%v, %v", reply, err)
	}
	if reply, err := conn.ReadMsg(); err == nil || isTimeout(err) {
		t.Errorf("then %v, %v", reply, err)
	}
	if n := len(upstream.asked()); n != 1 {
		t.Errorf("the upstream was asked %d times", n)
	}
}
