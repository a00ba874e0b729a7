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
	hello := records(message(named("allowed.example")), maxRecord)
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

// BenchmarkProcessor is what a guard alone in its process runs for a TLS connection, and for a gibibyte of it.
func BenchmarkProcessor(b *testing.B) {
	port, origin := rawOrigin(b)
	go func() {
		block := make([]byte, 64<<10)
		for c := range origin {
			go func() {
				_, _ = c.Read(make([]byte, 4<<10))
				_, _ = c.Write([]byte{21, 3, 3, 0, 2, 1, 0})
				wants := make([]byte, 1)
				if _, err := c.Read(wants); err == nil {
					for range int64(wants[0]) << 30 / int64(len(block)) {
						_, _ = c.Write(block)
					}
				}
				_ = c.Close()
			}()
		}
	}()
	hello := records(message(named("allowed.example")), maxRecord)
	for _, c := range []struct {
		what      string
		gibibytes byte
	}{{"connection", 0}, {"gibibyte", 1}} {
		b.Run(c.what, func(b *testing.B) {
			p := startAlone(b, port, port)
			once := func() {
				conn := dial(b, p.tls)
				_ = conn.SetDeadline(time.Time{})
				_, _ = conn.Write(hello)
				if _, err := io.ReadFull(conn, make([]byte, 7)); err != nil {
					b.Fatal(err)
				}
				_, _ = conn.Write([]byte{c.gibibytes})
				if n, err := io.Copy(io.Discard, conn); n != int64(c.gibibytes)<<30 || err != nil {
					b.Fatal(n, err)
				}
				_ = conn.Close()
			}
			once()
			before := p.processor(b)
			n := 0
			for b.Loop() {
				once()
				n++
			}
			b.ReportMetric(float64((p.processor(b)-before).Microseconds())/float64(n), "processor-µs/op")
		})
	}
}

// processor is how long the process has run.
func (p process) processor(t testing.TB) (ran time.Duration) {
	t.Helper()
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", p.pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/schedstat", p.pid, thread.Name()))
		if err != nil {
			t.Fatal(err)
		}
		var ns int64
		if _, err := fmt.Sscan(string(stat), &ns); err != nil {
			t.Fatal(err)
		}
		ran += time.Duration(ns)
	}
	return ran
}
