package inet

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// DNS is what the DNS servers know and were asked. They have authority over every name: one that no
// Set method has made does not exist, and its SOA gives that a lifetime of 60 seconds. Names are
// given with or without the final dot and in any case. A change is there for the next question.
type DNS struct {
	asked journal[Question]

	mu      sync.RWMutex // guards what follows
	names   map[string]node
	faults  map[string]Fault
	servers map[netip.Addr]Fault
}

// A Question is one that arrived, whether it was answered or not.
type Question struct {
	Name   string // fully qualified, in the case in which it was asked
	Type   string // such as "AAAA"
	Proto  string // "udp" or "tcp"
	From   netip.AddrPort
	Server netip.Addr
	Time   time.Time
}

// A Fault is what a DNS server does instead of answering.
type Fault int

const (
	None     Fault = iota
	Silent         // nothing
	ServFail       // answer SERVFAIL
	Truncate       // over UDP, answer without records and with TC set; over TCP, answer
)

func newDNS() *DNS {
	return &DNS{names: map[string]node{}, faults: map[string]Fault{},
		servers: map[netip.Addr]Fault{}}
}

// Questions returns what was asked since New, in order.
func (d *DNS) Questions() []Question { return d.asked.all() }

// Asked returns how often a name was asked for, over all types and servers.
func (d *DNS) Asked(name string) (count int) {
	for _, q := range d.asked.all() {
		if strings.EqualFold(q.Name, dns.Fqdn(name)) {
			count++
		}
	}
	return count
}

// FailName sets what happens to questions for one name, which need not exist. It is not inherited
// by names below it.
func (d *DNS) FailName(name string, fault Fault) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults[dns.CanonicalName(name)] = fault
}

// FailServer sets what happens to all questions to one of the servers.
func (d *DNS) FailServer(server netip.Addr, fault Fault) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.servers[server] = fault
}

func (d *DNS) fault(name string, server netip.Addr) Fault {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if fault := d.servers[server]; fault != None {
		return fault
	}
	return d.faults[dns.CanonicalName(name)]
}

func (d *DNS) answer(w dns.ResponseWriter, q *dns.Msg) {
	question := q.Question[0]
	server := addrPort(w.LocalAddr()).Addr()
	udp := w.LocalAddr().Network() == "udp"
	d.asked.add(Question{
		Name: question.Name, Type: dns.TypeToString[question.Qtype], Proto: w.LocalAddr().Network(),
		From: addrPort(w.RemoteAddr()), Server: server, Time: time.Now(),
	})
	fault := d.fault(question.Name, server)
	reply := new(dns.Msg).SetReply(q)
	reply.Authoritative, reply.RecursionAvailable, reply.Compress = true, true, true
	size := dns.MinMsgSize
	if opt := q.IsEdns0(); opt != nil {
		reply.SetEdns0(dns.DefaultMsgSize, false)
		size = int(opt.UDPSize())
	}
	switch {
	case fault == Silent:
		return
	case fault == ServFail:
		reply.Rcode = dns.RcodeServerFailure
	case fault == Truncate && udp:
		reply.Truncated = true
	default:
		reply.Answer, reply.Rcode = d.lookup(question.Name, question.Qtype)
		if len(reply.Answer) == 0 {
			reply.Ns = []dns.RR{soa}
		}
		if udp {
			reply.Truncate(size)
		}
	}
	_ = w.WriteMsg(reply) // who has asked may be gone
}

// serveDNS starts a server on port 53 over UDP and TCP.
func (in *Inet) serveDNS(addr netip.Addr) error {
	at := netip.AddrPortFrom(addr, 53)
	packets, err := in.listenPacket(at)
	if err != nil {
		return err
	}
	listener, err := in.listen(at)
	if err != nil {
		_ = packets.Close()
		return err
	}
	for _, server := range []*dns.Server{{PacketConn: packets, UDPSize: dns.DefaultMsgSize},
		{Listener: listener}} {
		server.Handler = dns.HandlerFunc(in.DNS.answer)
		// It can be shut down only once it has started.
		started := make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		if err := in.own(&closerFunc{server.Shutdown}, func() {
			_ = server.ActivateAndServe()
		}); err != nil {
			return err
		}
		<-started
	}
	return nil
}

func addrPort(a net.Addr) netip.AddrPort {
	parsed, err := netip.ParseAddrPort(a.String())
	if err != nil {
		panic(fmt.Sprintf("%s is no address of TCP or UDP", a))
	}
	return netip.AddrPortFrom(parsed.Addr().Unmap(), parsed.Port())
}
