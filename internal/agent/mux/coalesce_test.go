package mux

import (
	"bytes"
	"encoding/binary"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/daycare-run/sandbox/internal/waittest"
)

// recorder is a connection that keeps each write apart.
type recorder struct {
	net.Conn

	mu     sync.Mutex
	writes [][]byte
}

func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writes = append(r.writes, bytes.Clone(p))
	return len(p), nil
}

func (r *recorder) sent() [][]byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.writes
}

// muxFrame is a header of yamux, with a body of the given length for data.
func muxFrame(kind byte, flags uint16, length uint32, body int) []byte {
	frame := make([]byte, muxHeaderSize+body)
	frame[1] = kind
	binary.BigEndian.PutUint16(frame[2:], flags)
	binary.BigEndian.PutUint32(frame[8:], length)
	return frame
}

var (
	opening = muxFrame(muxWindowUpdate, 1, 0, 0)
	closing = muxFrame(muxWindowUpdate, 4, 0, 0)
	data    = muxFrame(0, 0, 5, 5)
)

func TestOnlyOpeningAndClosingWait(t *testing.T) {
	for name, c := range map[string]struct {
		frame []byte
		waits bool
	}{
		"opening":              {opening, true},
		"acknowledging":        {muxFrame(muxWindowUpdate, 2, 0, 0), true},
		"closing":              {closing, true},
		"reset":                {muxFrame(muxWindowUpdate, 8, 0, 0), false},
		"more window":          {muxFrame(muxWindowUpdate, 0, 1000, 0), false},
		"window and flag":      {muxFrame(muxWindowUpdate, 2, 1000, 0), false},
		"ping":                 {muxFrame(2, 1, 0, 0), false},
		"going away":           {muxFrame(3, 0, 0, 0), false},
		"data":                 {data, false},
		"data that is no more": {muxFrame(0, 4, 0, 0), false},
	} {
		if got := canWait(c.frame); got != c.waits {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestWaitingFramesGoOutWithTheNext(t *testing.T) {
	r := &recorder{}
	conn := Coalesce(r, 0)
	for _, frame := range [][]byte{closing, opening, data, data} {
		if n, err := conn.Write(frame); n != len(frame) || err != nil {
			t.Fatalf("wrote %d, %v", n, err)
		}
	}
	want := [][]byte{bytes.Join([][]byte{closing, opening, data}, nil), data}
	if len(r.writes) != 2 || !bytes.Equal(r.writes[0], want[0]) || !bytes.Equal(r.writes[1], want[1]) {
		t.Errorf("got %d writes: %x", len(r.writes), r.writes)
	}
}

func TestWaitingFramesGoOutAtTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		conn := Coalesce(r, time.Second)
		_, _ = conn.Write(closing)
		waittest.Pass(999 * time.Millisecond)
		if len(r.sent()) != 0 {
			t.Errorf("sent early: %x", r.sent())
		}
		waittest.Pass(time.Millisecond)
		if sent := r.sent(); len(sent) != 1 || !bytes.Equal(sent[0], closing) {
			t.Errorf("got %x", sent)
		}
	})
}

func TestNotTooMuchWaits(t *testing.T) {
	r := &recorder{}
	conn := Coalesce(r, 0)
	for range 10_000 {
		_, _ = conn.Write(closing)
	}
	if total := len(bytes.Join(r.writes, nil)); total < 10_000*len(closing)-maxWaiting {
		t.Errorf("only %d bytes were sent", total)
	}
}
