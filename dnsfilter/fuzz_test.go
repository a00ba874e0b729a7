package dnsfilter

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/rs/zerolog"
)

var (
	fromFiltered = netip.MustParseAddr("127.0.0.1")
	fromOpen     = netip.MustParseAddr("127.0.0.2")
	fromStranger = netip.MustParseAddr("127.0.0.3")
)

// offline returns a server that is not started, with www.example.org in its cache.
func offline(t testing.TB) *Server {
	clients := map[netip.Addr]*Client{
		fromFiltered: {ID: "filtered", Allows: underExample},
		fromOpen:     {ID: "open", Open: true},
	}
	s, err := New(Config{
		Sockets:          make([]Socket, 1),
		Upstreams:        []string{"127.0.0.1:1"},
		Admits:           func(netip.Addr) bool { return true },
		Client:           func(a netip.Addr) *Client { return clients[a] },
		QueriesPerSecond: 1e6,
		Log:              zerolog.Nop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	keep(t, s, "www.example.org", "www.example.org. 300 A 1.2.3.4")
	return s
}

func underExample(name string) bool { return strings.HasSuffix(name, ".example.org") }

func keep(t testing.TB, s *Server, name, record string) {
	rr, err := dns.NewRR(record)
	if err != nil {
		t.Fatal(err)
	}
	records, err := pack([]dns.RR{rr})
	if err != nil {
		t.Fatal(err)
	}
	q, err := questionFor(name, dns.TypeA)
	if err != nil {
		t.Fatal(err)
	}
	s.resolver.Load().cache.put(&entry{
		key: string(q.setKey()), owner: "filtered", records: records, count: 1,
		addrs: []netip.Addr{netip.MustParseAddr("1.2.3.4")}, expires: int64(time.Hour),
	})
}

func packet(t testing.TB, name string, qtype uint16) []byte {
	packed, err := new(dns.Msg).SetQuestion(name, qtype).SetEdns0(1232, false).Pack()
	if err != nil {
		t.Fatal(err)
	}
	return packed
}

// FuzzPacket checks that whatever a client sends, the answer is well formed and what goes on to an
// upstream is an allowed name: the one that another parser reads in the packet.
func FuzzPacket(f *testing.F) {
	for _, name := range []string{"www.example.org.", "new.example.org.", "secret.other.test.", `evil\.example.org.`, "."} {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeHTTPS, dns.TypeANY} {
			f.Add(packet(f, name, qtype), byte(0))
		}
	}
	f.Add([]byte{0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 12, 0, 1, 0, 1}, byte(1))
	s := offline(f)
	f.Fuzz(func(t *testing.T, packet []byte, how byte) {
		from := []netip.Addr{fromFiltered, fromOpen, fromStranger}[how%3]
		stream := how&4 != 0
		sent := bytes.Clone(packet)
		var q question
		reply, ask := s.handle(&q, s.config.Client(from), packet, nil, stream)
		if !bytes.Equal(packet, sent) {
			t.Fatal("the packet was changed")
		}
		asked := new(dns.Msg)
		readable := asked.Unpack(packet) == nil && len(asked.Question) == 1
		if ask != nil {
			checkForwarded(t, from, &q, ask, asked, readable)
			a := answer{rcode: dns.RcodeNameError, ttl: 1}
			reply = a.appendTo(nil, &q)
		}
		if len(reply) == 0 {
			return
		}
		answered := new(dns.Msg)
		if err := answered.Unpack(reply); err != nil {
			t.Fatalf("the answer is malformed: %v\n%x", err, reply)
		}
		if !answered.Response || !bytes.Equal(reply[:2], packet[:2]) || !stream && len(reply) > maxPayload {
			t.Fatalf("the answer is no answer to that:\n%s", answered)
		}
		if readable && len(answered.Question) == 1 && answered.Question[0] != asked.Question[0] {
			t.Fatalf("asked %v, answered %v", asked.Question, answered.Question)
		}
		if len(answered.Answer) > 0 && (from == fromStranger || q.qtype != dns.TypeA || string(q.text()) != "www.example.org") {
			t.Fatalf("answered with what was not allowed:\n%s", answered)
		}
	})
}

func checkForwarded(t *testing.T, from netip.Addr, q *question, ask *pending, asked *dns.Msg, readable bool) {
	t.Helper()
	if from == fromStranger || from == fromFiltered && (!underExample(ask.name) || q.qtype != dns.TypeA) {
		t.Fatalf("%q of type %d is forwarded for %s", ask.name, q.qtype, from)
	}
	if q.qtype == dns.TypeAAAA || q.qtype == dns.TypeHTTPS || q.qtype == dns.TypeSVCB || q.qtype == dns.TypeANY {
		t.Fatalf("type %d is forwarded", q.qtype)
	}
	if readable && strings.ToLower(asked.Question[0].Name) != dns.Fqdn(ask.name) {
		t.Fatalf("%q is asked, %q is forwarded", asked.Question[0].Name, ask.name)
	}
	if strings.Trim(ask.name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" {
		t.Fatalf("%q is forwarded", ask.name)
	}
}

// FuzzUpstream checks that whatever an upstream says, nothing that is not admitted and no malformed
// message comes out.
func FuzzUpstream(f *testing.F) {
	query := new(dns.Msg).SetQuestion("www.example.org.", dns.TypeA)
	query.Id = 7
	for _, records := range []string{"www.example.org. 9 A 1.2.3.4", "www.example.org. 9 CNAME a.test.", "a.test. 9 A 10.0.0.1"} {
		rr, _ := dns.NewRR(records)
		reply := new(dns.Msg).SetReply(query)
		reply.Answer = []dns.RR{rr, rr}
		packed, _ := reply.Pack()
		f.Add(packed)
	}
	forbidden := netip.MustParsePrefix("10.0.0.0/8")
	r := &resolver{config: &Config{Admits: func(a netip.Addr) bool { return a.IsValid() && !forbidden.Contains(a) }}}
	q := &question{}
	if err := q.parse(packet(f, "WWW.example.org.", dns.TypeA)); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		reply, err := unpack(message, query)
		if err != nil {
			return
		}
		aliasOf(reply, "www.example.org.")
		found := r.collect(reply, "www.example.org.", dns.TypeA, 100)
		records, err := pack(found.records)
		if err != nil {
			return
		}
		a := (&entry{rcode: found.rcode, records: records, count: len(found.records), struck: found.struck}).answer(0)
		q.limit = dns.MaxMsgSize
		answered := new(dns.Msg)
		if err := answered.Unpack(a.appendTo(nil, q)); err != nil {
			t.Fatalf("the answer is malformed: %v", err)
		}
		for _, rr := range answered.Answer {
			if addr, isAddr := addrOf(rr); !isAddr || !r.config.Admits(addr) || rr.Header().Name != "WWW.example.org." {
				t.Fatalf("answered %s", rr)
			}
		}
	})
}
