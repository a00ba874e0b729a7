package guard

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"
)

// load is a program that keeps streams busy: so many, from a server of its own at a port of 127.0.0.2, by way of
// an address. It says when all of them are.
func load(what string) error {
	var count int
	var port uint16
	var to string
	if _, err := fmt.Sscan(what, &count, &port, &to); err != nil {
		return err
	}
	other := net.IPv4(127, 0, 0, 2)
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: other, Port: int(port)})
	if err != nil {
		return err
	}
	hello := records(message(named("allowed.example")), recordMost)
	go endless(l, len(hello))
	for range count {
		c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: other}}).Dial("tcp", to)
		if err != nil {
			return err
		}
		_, _ = c.Write(hello)
		if _, err := io.ReadFull(c, make([]byte, 64<<10)); err != nil {
			return err
		}
		go func() { _, _ = io.CopyBuffer(struct{ io.Writer }{io.Discard}, c, make([]byte, 64<<10)) }()
	}
	fmt.Println("busy")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return nil
}

// endless sends without end to whoever has said hello.
func endless(l net.Listener, hello int) {
	block := append([]byte{21, 3, 3, 0, 2, 1, 0}, bytes.Repeat([]byte("x"), 64<<10)...)
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			_, _ = io.ReadFull(c, make([]byte, hello))
			for {
				if _, err := c.Write(block); err != nil {
					return
				}
			}
		}()
	}
}

func startLoad(b *testing.B, count int, port uint16, to string) {
	b.Helper()
	exe, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), fmt.Sprintf("GUARD_LOAD=%d %d %s", count, port, to))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	var said string
	if _, err := fmt.Fscan(out, &said); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkBesideStreams is a TLS handshake of one user through a guard: alone, while 200 streams of another user
// go past the guard, and while they go through it.
func BenchmarkBesideStreams(b *testing.B) {
	for _, where := range []string{"none", "past", "through"} {
		b.Run(where, func(b *testing.B) {
			o := newTLSOrigin(b, echo, nil)
			p := startAlone(b, o.port, o.port)
			switch where {
			case "past":
				startLoad(b, 200, o.port, fmt.Sprintf("127.0.0.2:%d", o.port))
			case "through":
				startLoad(b, 200, o.port, p.tls)
			}
			var took []time.Duration
			for b.Loop() {
				start := time.Now()
				c, err := tls.Dial("tcp", p.tls, &tls.Config{ServerName: "allowed.example", RootCAs: trust()})
				if err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(start))
				_ = c.Close()
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
		})
	}
}
