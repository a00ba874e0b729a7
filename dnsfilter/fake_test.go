package dnsfilter_test

import (
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"
)

// fake is an upstream resolver on loopback that keeps a log of what it was asked.
type fake struct {
	answer func(w dns.ResponseWriter, q *dns.Msg)
	addr   string

	mu  sync.Mutex
	log []string
}

// newFake starts an upstream by UDP and TCP. Without an answer func it has zone().
func newFake(t testing.TB, answer func(w dns.ResponseWriter, q *dns.Msg)) *fake {
	t.Helper()
	f := &fake{answer: answer}
	if answer == nil {
		f.answer = zone("")
	}
	var packets net.PacketConn
	var listener net.Listener
	var err error
	for range 20 {
		listener, err = net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		if packets, err = net.ListenPacket("udp", listener.Addr().String()); err == nil {
			break
		}
		listener.Close()
	}
	must(t, err)
	f.addr = packets.LocalAddr().String()
	f.serve(t, &dns.Server{PacketConn: packets})
	f.serve(t, &dns.Server{Listener: listener})
	return f
}

func (f *fake) serve(t testing.TB, server *dns.Server) {
	started, ended := make(chan struct{}), make(chan struct{})
	server.NotifyStartedFunc = func() { close(started) }
	server.Handler = dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		f.mu.Lock()
		f.log = append(f.log, strings.ToLower(q.Question[0].Name)+" "+dns.TypeToString[q.Question[0].Qtype])
		f.mu.Unlock()
		f.answer(w, q)
	})
	go func() {
		defer close(ended)
		_ = server.ActivateAndServe()
	}()
	<-started
	t.Cleanup(func() {
		_ = server.Shutdown()
		<-ended
	})
}

func (f *fake) asked() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.log)
}

// zone answers from records, one a line; a name without any does not exist. It gives only the records
// of the asked name, and an SOA with the lifetime 60 for what is not there.
func zone(records string) func(w dns.ResponseWriter, q *dns.Msg) {
	if records == "" {
		records = "example.org. 300 A 1.2.3.4\n www.example.org. 300 A 1.2.3.4\n example.org. 300 TXT hello\n" +
			"example.org. 300 AAAA 2606:4700::1\n example.org. 300 MX 5 mail.example.org.\n other.test. 300 A 5.6.7.8"
	}
	var rrs []dns.RR
	for _, line := range strings.Split(records, "\n") {
		rr, err := dns.NewRR(strings.TrimSpace(line))
		if err != nil {
			panic(err)
		}
		rrs = append(rrs, rr)
	}
	return func(w dns.ResponseWriter, q *dns.Msg) {
		reply := new(dns.Msg).SetReply(q)
		reply.Rcode = dns.RcodeNameError
		for _, rr := range rrs {
			if !strings.EqualFold(rr.Header().Name, q.Question[0].Name) {
				continue
			}
			reply.Rcode = dns.RcodeSuccess
			if t := rr.Header().Rrtype; t == q.Question[0].Qtype || t == dns.TypeCNAME {
				reply.Answer = append(reply.Answer, rr)
			}
		}
		if len(reply.Answer) == 0 {
			soa, _ := dns.NewRR(". 60 SOA . . 1 1 1 1 60")
			reply.Ns = append(reply.Ns, soa)
		}
		_ = w.WriteMsg(reply)
	}
}
