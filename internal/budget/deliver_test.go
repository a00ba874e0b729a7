package budget

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"
)

// full is a connection of which the one end has written what the other has not taken.
func full(t *testing.T) (from, to *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialled, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = dialled.Close(), accepted.Close() })
	from, to = accepted.(*net.TCPConn), dialled.(*net.TCPConn)
	_ = from.SetWriteBuffer(128 << 10)
	raw, err := from.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for piece, taken, left := make([]byte, 1<<20), 1, 0; taken > 0 || left == 0; {
		_ = from.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
		taken, _ = from.Write(piece)
		_ = raw.Control(func(fd uintptr) { left = unsent(int(fd)) })
	}
	return from, to
}

// Written data is delivered to a peer that takes it, and a peer that takes nothing is reset.
func TestDeliver(t *testing.T) {
	from, to := full(t)
	ended := make(chan struct{})
	go func() {
		Deliver(t.Context(), from, time.Minute)
		_ = from.Close()
		close(ended)
	}()
	other, _ := full(t)
	Deliver(t.Context(), other, 20*time.Millisecond) // which ends when its time is up
	select {
	case <-ended:
		t.Error("it did not wait")
	default:
	}
	if _, err := io.Copy(io.Discard, to); err != nil {
		t.Errorf("who takes all got %v", err)
	}
	<-ended

	for what, wait := range map[string]func(*net.TCPConn){
		"late": func(c *net.TCPConn) { Deliver(t.Context(), c, time.Millisecond) },
		"ended": func(c *net.TCPConn) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			Deliver(ctx, c, time.Hour)
		},
	} {
		from, to := full(t)
		wait(from)
		_ = from.Close()
		if _, err := io.Copy(io.Discard, to); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: who takes nothing got %v", what, err)
		}
	}

	// One that was reset has nothing left.
	from, to = full(t)
	_ = to.SetLinger(0)
	_ = to.Close()
	Deliver(t.Context(), from, time.Hour)
}
