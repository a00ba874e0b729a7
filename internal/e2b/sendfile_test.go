package e2b

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/daycare-run/sandbox/internal/waittest"
)

// descriptors counts the bytes that connections are given as descriptors, which the kernel sends by itself.
type descriptors struct {
	net.Listener
	bytes atomic.Int64
}

func (d *descriptors) Accept() (net.Conn, error) {
	c, err := d.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &descriptorConn{c.(*net.TCPConn), d}, nil
}

type descriptorConn struct {
	*net.TCPConn
	of *descriptors
}

func (c *descriptorConn) ReadFrom(from io.Reader) (int64, error) {
	n, err := c.TCPConn.ReadFrom(from)
	if limited, is := from.(*io.LimitedReader); is {
		if _, is := limited.R.(syscall.Conn); is {
			c.of.bytes.Add(n)
		}
	}
	return n, err
}

// TestTheKernelSendsFiles from the home, but for the piece by which net/http might guess a file's kind.
func TestTheKernelSendsFiles(t *testing.T) {
	const size, guessed = 1 << 20, 512
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	sent := &descriptors{Listener: plain}
	l := newLab(t)
	server := httptest.NewUnstartedServer(l.surface)
	_ = server.Listener.Close()
	server.Listener = sent
	server.Start()
	t.Cleanup(server.Close)
	l.url = server.URL
	b := l.create(`{}`)
	text := strings.Repeat("x", size)
	if status, answer := put(b, "large", text); status != http.StatusOK {
		t.Fatalf("%d %s", status, answer)
	}
	header := b.header()
	header.Set("Accept-Encoding", "identity") // Go's own client asks for gzip alone
	if status, got, _ := b.send("GET", "/files?path=large", "", header); status != http.StatusOK || got != text {
		t.Errorf("%d, %d bytes", status, len(got))
	}
	waittest.Until(t, "the bytes are counted", func() bool { return sent.bytes.Load() >= size-guessed }) // they are counted once the client may have them
}
