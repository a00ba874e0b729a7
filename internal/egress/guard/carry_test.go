package guard

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
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
	go func() { r.Carry(t.Context(), r.endpoint, near, far); close(done) }()
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

// A connection that is carried is a session of a loop, where it takes its user's turns, and no goroutine copies it. It ends
// with its context, and with the guard.
func TestCarriedInTurns(t *testing.T) {
	r := newRig(t, 0, 0, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cut := map[string]*net.TCPConn{}
	done := make(chan struct{}, 2)
	for what, ctx := range map[string]context.Context{"its context": ctx, "the guard": context.Background()} {
		client, near := pair(t)
		far, server := pair(t)
		go func() { r.Carry(ctx, r.endpoint, near, far); done <- struct{}{} }()
		_, _ = client.Write([]byte("x"))
		if _, err := io.ReadFull(server, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		cut[what] = client
	}
	count := make(chan int)
	carried := 0
	for _, l := range r.loops {
		l.Post(func() { count <- len(l.Sessions()) })
		carried += <-count
	}
	if carried != 2 {
		t.Errorf("%d are the loops', want 2", carried)
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
	far, _ := pair(t)
	r.Carry(context.Background(), r.endpoint, near, far)
	if _, err := io.Copy(io.Discard, client); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("too late: %v", err)
	}
}
