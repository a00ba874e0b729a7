package guard

import (
	"context"
	"io"

	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestNoDescriptorStays(t *testing.T) {
	port, origin := rawOrigin(t)
	descriptors := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	before := descriptors()
	r := newRig(t, port, 0, nil)
	var mine []*net.TCPConn
	for i := range 20 {
		c, o := established(r, origin)
		switch {
		case i == 0:
			stuffed(t, c) // its pipe is full when it ends
		case i == 1:
			stuffed(t, o)
		default:
			_, _ = c.Write([]byte("ping"))
			if _, err := io.ReadFull(o, make([]byte, 4)); err != nil {
				t.Fatal(err)
			}
		}
		mine = append(mine, c, o, dial(t, r.tls))
	}
	close(r.client.done)
	eventually(t, "connections stay", func() bool { return r.Open() == 0 })
	for _, c := range mine {
		_ = c.Close()
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := r.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, "descriptors stay", func() bool { return descriptors() <= before })
}

// TestOutOfDescriptors: a client that waits for descriptors is served once there are some again.
func TestOutOfDescriptors(t *testing.T) {
	port, origin := rawOrigin(t)
	p := startAlone(t, port, port)
	var usual unix.Rlimit
	if err := unix.Prlimit(p.pid, unix.RLIMIT_NOFILE, nil, &usual); err != nil {
		t.Fatal(err)
	}
	limit := func(most uint64) {
		t.Helper()
		if err := unix.Prlimit(p.pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: usual.Max}, nil); err != nil {
			t.Fatal(err)
		}
	}
	limit(3) // those that it has beyond that it may keep
	c := dial(t, p.tls)
	_, _ = c.Write(records(message(named("allowed.example")), maxRecord))
	for line := ""; !strings.Contains(line, "too many open files"); {
		var err error
		if line, err = p.said.ReadString('\n'); err != nil {
			t.Fatalf("it did not say that it cannot accept: %v", err)
		}
	}
	if len(origin) > 0 {
		t.Error("it could")
	}
	limit(usual.Cur)
	o := take(t, origin)
	_, _ = o.Write([]byte{21, 3, 3, 0, 2, 1, 0})
	if _, err := io.ReadFull(c, make([]byte, 7)); err != nil {
		t.Error(err)
	}
}
