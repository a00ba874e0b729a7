package guard

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"slices"
	"testing"
	"time"
)

// BenchmarkSetUp is a TCP connection with a TLS handshake, guarded and direct by turns, so that
// what else the machine does hits both.
func BenchmarkSetUp(b *testing.B) {
	o := newTLSOrigin(b, echo, nil)
	r := newRig(b, o.port, 0, nil)
	roots := trust()
	direct := (&net.TCPAddr{IP: loopback.AsSlice(), Port: int(o.port)}).String()
	once := func(addr string) time.Duration {
		start := time.Now()
		c, err := tls.Dial("tcp", addr, &tls.Config{ServerName: "allowed.example", RootCAs: roots})
		if err != nil {
			b.Fatal(err)
		}
		took := time.Since(start)
		_ = c.Close()
		return took
	}
	var times [2][]time.Duration
	for b.Loop() {
		times[0] = append(times[0], once(direct))
		times[1] = append(times[1], once(r.tls))
	}
	median := func(d []time.Duration) float64 {
		slices.Sort(d)
		return float64(d[len(d)/2].Microseconds())
	}
	b.ReportMetric(median(times[0]), "direct-p50-µs")
	b.ReportMetric(median(times[1]), "guarded-p50-µs")
	b.ReportMetric(median(times[1])-median(times[0]), "added-p50-µs")
}

// BenchmarkTLSStream is one stream of TLS records from an origin, 16 MiB for each round.
func BenchmarkTLSStream(b *testing.B) {
	const size = 16 << 20
	block := bytes.Repeat([]byte("x"), 64<<10)
	o := newTLSOrigin(b, func(c *tls.Conn) {
		for {
			if _, err := c.Read(make([]byte, 1)); err != nil {
				return
			}
			for range size / len(block) {
				_, _ = c.Write(block)
			}
		}
	}, nil)
	r := newRig(b, o.port, 0, nil)
	direct := (&net.TCPAddr{IP: loopback.AsSlice(), Port: int(o.port)}).String()
	for name, addr := range map[string]string{"direct": direct, "guarded": r.tls} {
		b.Run(name, func(b *testing.B) {
			c, err := tls.Dial("tcp", addr, &tls.Config{ServerName: "allowed.example", RootCAs: trust()})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = c.Close() }()
			b.SetBytes(size)
			for b.Loop() {
				_, _ = c.Write([]byte{1})
				if _, err := io.CopyN(io.Discard, c, size); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkHTTP is one request on a kept connection.
func BenchmarkHTTP(b *testing.B) {
	port := httpOriginText(b, "hello")
	r := newRig(b, 0, port, nil)
	direct := (&net.TCPAddr{IP: loopback.AsSlice(), Port: int(port)}).String()
	for name, addr := range map[string]string{"direct": direct, "guarded": r.http} {
		b.Run(name, func(b *testing.B) {
			client := &http.Client{Transport: &http.Transport{DialContext: dialing(addr)}}
			defer client.CloseIdleConnections()
			for b.Loop() {
				a, err := client.Get("http://allowed.example/")
				if err != nil {
					b.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, a.Body)
				_ = a.Body.Close()
			}
		})
	}
}
