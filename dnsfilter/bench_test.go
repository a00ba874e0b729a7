package dnsfilter

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/miekg/dns"
)

// crowd gives a server so many clients with so many names each.
func crowd(s *Server, clients, names int) {
	registered := map[netip.Addr]*Client{}
	for i := range clients {
		allowed := map[string]bool{"www.example.org": true}
		for len(allowed) < names {
			allowed[fmt.Sprintf("host%d.example.org", len(allowed))] = true
		}
		addr := netip.AddrFrom4([4]byte{127, 0, byte(i >> 8), byte(i) + 1})
		registered[addr] = &Client{ID: fmt.Sprint(i), User: fmt.Sprint(i), Allows: func(n string) bool { return allowed[n] }}
	}
	s.config.Client = func(a netip.Addr) *Client { return registered[a] }
}

func benchmarkHandle(b *testing.B, name string, clients, names int) {
	s := offline(b)
	crowd(s, clients, names)
	asked, out := packet(b, name, dns.TypeA), make([]byte, 0, maxPayload)
	s.config.QueriesPerSecond, s.interval = 1e9, 1
	var q question
	b.ReportAllocs()
	for b.Loop() {
		if out, _ = s.handle(&q, s.config.Client(fromFiltered), asked, out, false); len(out) == 0 {
			b.Fatal("dropped")
		}
	}
}

func BenchmarkCached(b *testing.B) {
	for _, size := range [][2]int{{1, 1}, {1000, 1}, {1, 1000}, {1000, 1000}} {
		b.Run(fmt.Sprintf("clients=%d/names=%d", size[0], size[1]), func(b *testing.B) {
			benchmarkHandle(b, "www.example.org.", size[0], size[1])
		})
	}
}

func BenchmarkDenied(b *testing.B) {
	for _, size := range [][2]int{{1, 1}, {1000, 1000}} {
		b.Run(fmt.Sprintf("clients=%d/names=%d", size[0], size[1]), func(b *testing.B) {
			benchmarkHandle(b, "www.elsewhere.test.", size[0], size[1])
		})
	}
}

// BenchmarkLoopback has a client that keeps window questions under way.
func BenchmarkLoopback(b *testing.B) {
	for _, window := range []int{1, 64} {
		for _, name := range []string{"www.example.org.", "www.elsewhere.test."} {
			b.Run(fmt.Sprintf("%s/window=%d", name, window), func(b *testing.B) { benchmarkLoopback(b, name, window) })
		}
	}
}

func benchmarkLoopback(b *testing.B, name string, window int) {
	s := offline(b)
	crowd(s, 1000, 1000)
	s.config.QueriesPerSecond, s.interval = 1e9, 1
	bound, err := Listen(b.Context(), netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		b.Fatal(err)
	}
	s.config.Sockets = []Socket{bound}
	if err := s.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	defer s.Shutdown(context.Background())
	conn, err := net.DialUDP("udp", nil, bound.UDP[0].LocalAddr().(*net.UDPAddr))
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	asked, answered := packet(b, name, dns.TypeA), make([]byte, maxPayload)
	sent := 0
	for i := 0; b.Loop(); i++ {
		for ; sent < i+window; sent++ {
			binary.BigEndian.PutUint16(asked, uint16(sent))
			if _, err := conn.Write(asked); err != nil {
				b.Fatal(err)
			}
		}
		if _, err := conn.Read(answered); err != nil {
			b.Fatal(err)
		}
	}
}
