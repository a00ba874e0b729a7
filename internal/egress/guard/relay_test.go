package guard

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/fair"
)

// pair is a connection.
func pair(t *testing.T) (near, far *net.TCPConn) {
	t.Helper()
	l := listen(t)
	near = dial(t, l.Addr().String())
	far, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = far.Close() })
	return near, far
}

// Bytes go both ways, and either end may finish before the other.
func TestCarry(t *testing.T) {
	r := newRig(t, 0, 0, nil)
	client, near := pair(t)
	far, server := pair(t)
	done := make(chan struct{})
	go func() { r.Carry(t.Context(), r.client, near, far); close(done) }()
	_, _ = client.Write([]byte("question"))
	_ = client.CloseWrite()
	if said, err := io.ReadAll(server); err != nil || string(said) != "question" {
		t.Errorf("%q, %v", said, err)
	}
	_, _ = server.Write([]byte("answer"))
	_ = server.Close()
	if said, err := io.ReadAll(client); err != nil || string(said) != "answer" {
		t.Errorf("%q, %v", said, err)
	}
	<-done
}

// A connection that is carried ends with its context, and with the guard.
func TestCarryEnds(t *testing.T) {
	r := newRig(t, 0, 0, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cut := map[string]*net.TCPConn{}
	done := make(chan struct{}, 2)
	for what, ctx := range map[string]context.Context{"its context": ctx, "the guard": context.Background()} {
		client, near := pair(t)
		far, server := pair(t)
		go func() { r.Carry(ctx, r.client, near, far); done <- struct{}{} }()
		_, _ = client.Write([]byte("x"))
		if _, err := io.ReadFull(server, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		cut[what] = client
	}
	ends := func(what string) {
		t.Helper()
		<-done
		if _, err := io.Copy(io.Discard, cut[what]); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("after the end of %s: %v", what, err)
		}
	}
	cancel()
	ends("its context")
	if err := r.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	ends("the guard")
	// One that comes too late is ended.
	client, near := pair(t)
	far, server := pair(t)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	r.Carry(over, r.client, near, far)
	for what, end := range map[string]*net.TCPConn{"client": client, "server": server} {
		_ = end.SetDeadline(time.Now().Add(patience))
		if _, err := io.Copy(io.Discard, end); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("too late for the %s: %v", what, err)
		}
	}
}

// TestEverythingCopiedTakesTurns: nothing is copied for a user while others have all turns, whatever the protocol.
func TestEverythingCopiedTakesTurns(t *testing.T) {
	port, origin := rawOrigin(t)
	r := newRig(t, port, port, nil)
	secure, secureOrigin := established(r, origin)
	client, near := pair(t)
	far, server := pair(t)
	go r.Carry(t.Context(), r.client, near, far)
	ping := func(from, to net.Conn) {
		t.Helper()
		_, _ = from.Write([]byte("x"))
		if _, err := io.ReadFull(to, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	ping(client, server) // it is carried
	plain := dial(t, r.http)
	eventually(t, "two are not open", func() bool { return r.Open() == 2 })

	for range max(1, runtime.GOMAXPROCS(0)/2) {
		r.turns.Begin("others", nil)
	}
	_, _ = io.WriteString(plain, "GET / HTTP/1.1\r\nHost: allowed.example\r\n\r\n")
	_, _ = secure.Write([]byte("x"))
	_, _ = secureOrigin.Write([]byte("x"))
	_, _ = client.Write([]byte("x"))
	_, _ = server.Write([]byte("x"))
	eventually(t, "not all five wait for their turns", func() bool {
		_, waiting := r.turns.Count()
		return waiting == 5
	})
	for range max(1, runtime.GOMAXPROCS(0)/2) {
		r.turns.End("others")
	}
	for what, end := range map[string]net.Conn{"TLS": secure, "TLS's origin": secureOrigin, "carried": client, "carried server": server, "HTTP": take(t, origin)} {
		if _, err := io.ReadFull(end, make([]byte, 1)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestAStreamHasItsTurn: one that always has more to move stops after its share, with a pipe and without.
func TestAStreamHasItsTurn(t *testing.T) {
	r := newRig(t, 0, 0, nil)
	for what, most := range map[string]int{"pipe": maxPipes, "copy": 0} {
		client, near := pair(t)
		far, server := pair(t)
		_ = near.SetReadBuffer(4 << 20)
		_ = far.SetWriteBuffer(4 << 20)
		stuffed(t, client)
		d := direction{from: r.newEnd(near, "anna", &owned{}), to: r.newEnd(far, "anna", &owned{}), pipes: &pipes{inUse: fair.NewPool(most, 0)}}
		if err := d.move(); err != nil {
			t.Fatal(err)
		}
		d.done()
		d.pipes.close()
		_ = far.CloseWrite()
		if n, err := io.Copy(io.Discard, server); n == 0 || n > turnShare || err != nil {
			t.Errorf("%s: %d bytes in one turn of at most %d, %v", what, n, turnShare, err)
		}
	}
}

// A server that has ended is told that its client has, too, though the client does not take what the kernel still has for it.
func TestUntakenAnswerDoesNotHoldTheServer(t *testing.T) {
	port, origin := rawOrigin(t)
	r := newRig(t, port, 0, nil)
	c, o := established(r, origin)
	_ = c.SetReadBuffer(4 << 10)
	_, _ = o.Write(make([]byte, 48<<10))
	_, _ = c.SetReadDeadline(time.Now().Add(patience)), c.CloseWrite()
	_ = o.CloseWrite()
	if _, err := io.Copy(io.Discard, o); err != nil {
		t.Errorf("the server waits for its client's end: %v", err)
	}
	if n := r.Open(); n != 1 {
		t.Errorf("%d count while the kernel holds the answer", n)
	}
	if n, err := io.Copy(io.Discard, c); n != 48<<10 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// TestHeldBytesGoFirst: nothing is added to it, and nothing of it is left behind for whoever has the pipe next.
func TestHeldBytesGoFirst(t *testing.T) {
	r := newRig(t, 0, 0, nil)
	client, near := pair(t)
	far, server := pair(t)
	d := direction{from: r.newEnd(near, "anna", &owned{}), to: r.newEnd(far, "anna", &owned{}), pipes: r.pipes}
	d.pipe = d.pipes.take("anna")
	if _, err := unix.Write(d.pipe.w, []byte("first ")); err != nil {
		t.Fatal(err)
	}
	d.pipe.held = len("first ")
	_, _ = client.Write([]byte("second"))
	_, _ = near.SetDeadline(time.Now().Add(patience)), server.SetDeadline(time.Now().Add(patience))
	for range 2 {
		if err := d.move(); err != nil {
			t.Fatal(err)
		}
	}
	if d.pipe != nil {
		t.Errorf("the pipe stays, with %d bytes", d.pipe.held)
	}
	d.done()
	got := make([]byte, len("first second"))
	if n, err := io.ReadFull(server, got); string(got) != "first second" {
		t.Errorf("%q, %v", got[:n], err)
	}
}

// TestInterruptedCall: the call alone is made again.
func TestInterruptedCall(t *testing.T) {
	calls := 0
	n, err := again(func() (uintptr, uintptr, syscall.Errno) {
		if calls++; calls < 3 {
			return math.MaxUint, 0, unix.EINTR
		}
		return 7, 0, 0
	})
	if calls != 3 || n != 7 || err != nil {
		t.Errorf("after %d calls: %d, %v", calls, n, err)
	}
}

// TestRevocationComesBeforeTheNextTurn: who waits for its turn when it is revoked does nothing with it.
func TestRevocationComesBeforeTheNextTurn(t *testing.T) {
	r := newRig(t, 0, 0, nil)
	client, near := pair(t)
	o := &owned{}
	o.own(near)
	e := r.newEnd(near, "anna", o)
	all := max(1, runtime.GOMAXPROCS(0)/2)
	for range all {
		r.turns.Begin("others", nil)
	}
	_, _ = client.Write([]byte("x"))
	read := make(chan error, 1)
	go func() {
		_, err := e.Read(make([]byte, 1))
		read <- err
	}()
	waits := func() bool {
		_, waiting := r.turns.Count()
		return waiting == 1
	}
	eventually(t, "it does not wait for its turn", waits)
	go o.abort()
	eventually(t, "it has not ended before its turn", o.ended.Load)
	for range all {
		r.turns.End("others")
	}
	if err := <-read; !errors.Is(err, net.ErrClosed) {
		t.Errorf("it read: %v", err)
	}
}

// TestAPartOfAPipeIsProgress: a receiver that takes a part of what a pipe holds is not idle.
func TestAPartOfAPipeIsProgress(t *testing.T) {
	r := newRig(t, 0, 0, nil)
	client, near := pair(t)
	far, server := pair(t)
	_ = near.SetReadBuffer(4 << 20)
	_, _ = far.SetWriteBuffer(8<<10), server.SetReadBuffer(8<<10)
	stuffed(t, client)
	d := direction{from: r.newEnd(near, "anna", &owned{}), to: r.newEnd(far, "anna", &owned{}), pipes: r.pipes}
	defer d.done()
	for !d.full {
		if err := d.move(); err != nil {
			t.Fatal(err)
		}
	}
	held := d.pipe.held
	var moved atomic.Bool
	go func() {
		for !moved.Load() {
			_, _ = server.Read(make([]byte, 1<<10))
		}
	}()
	_ = far.SetWriteDeadline(time.Now().Add(patience))
	err := d.move()
	moved.Store(true)
	if err != nil {
		t.Fatalf("it waits for the rest to be taken: %v", err)
	}
	if !d.full || d.pipe == nil || d.pipe.held >= held {
		t.Errorf("nothing of the pipe was taken, or everything")
	}
}

// TestAResetIsNoEnd: a server's reset is told once, and the other direction may be told; an end stays an end.
func TestAResetIsNoEnd(t *testing.T) {
	r := newRig(t, 0, 0, nil)
	for what, most := range map[string]int{"pipe": maxPipes, "copy": 0} {
		for _, c := range []struct {
			how   string
			leave func(us *end, server *net.TCPConn)
			want  error
		}{
			{"reset", func(us *end, server *net.TCPConn) {
				_ = server.SetLinger(0)
				_ = server.Close()
				eventually(t, "no reset comes", func() bool { return us.onControl(broken) })
				us.onControl(func(fd int) bool { _, _ = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); return true })
			}, unix.ECONNRESET},
			{"end, and then a reset", func(us *end, server *net.TCPConn) {
				_ = server.Close()
				eventually(t, "no end comes", func() bool { return us.onControl(gone) })
				_, _ = us.Write([]byte("x"))
				eventually(t, "no reset comes", func() bool { return us.onControl(broken) })
			}, io.EOF},
			{"end of both", func(us *end, server *net.TCPConn) {
				_ = us.CloseWrite()
				_ = server.Close()
				eventually(t, "no end comes", func() bool { return us.onControl(broken) })
			}, io.EOF},
		} {
			near, server := pair(t)
			far, _ := pair(t)
			us := r.newEnd(near, "anna", &owned{})
			c.leave(us, server)
			d := direction{from: us, to: r.newEnd(far, "anna", &owned{}), pipes: &pipes{inUse: fair.NewPool(most, 0)}}
			if err := d.move(); !errors.Is(err, c.want) {
				t.Errorf("%s: %s: %v", what, c.how, err)
			}
			d.done()
			d.pipes.close()
		}
	}
}

// onControl asks a socket at once.
func (e *end) onControl(is func(fd int) bool) (yes bool) {
	_ = e.raw.Control(func(fd uintptr) { yes = is(int(fd)) })
	return yes
}

// TestAClientThatBreaksIsNoticed: also while the server takes nothing.
func TestAClientThatBreaksIsNoticed(t *testing.T) {
	port, origin := rawOrigin(t)
	r := newRig(t, port, 0, nil)
	c, _ := established(r, origin)
	stuffed(t, c)
	_ = c.SetLinger(0)
	_ = c.Close()
	eventually(t, "the connection stays", func() bool { return r.Open() == 0 })
}
