package wire

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

// memory is a stream into a buffer and out of it.
type memory struct{ bytes.Buffer }

func (*memory) CloseWrite() error                { return nil }
func (*memory) SetWriteDeadline(time.Time) error { return nil }

func TestCarriedBytesArriveWhole(t *testing.T) {
	var m memory
	text := strings.Repeat("text", MaxData/2)
	c := Carry(&m)
	if n, err := io.WriteString(c, text); n != len(text) || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	whole := m.String()
	got, err := io.ReadAll(Carry(&m))
	if string(got) != text || err != nil {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	// Wherever it is cut, that is no end.
	for _, length := range []int{0, 1, HeaderSize, HeaderSize + 1, HeaderSize + MaxData, len(whole) - HeaderSize, len(whole) - 1} {
		m.Reset()
		m.WriteString(whole[:length])
		if _, err := io.ReadAll(Carry(&m)); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut after %d bytes: %v", length, err)
		}
	}
}

func TestCarryRefusesBadFrames(t *testing.T) {
	for name, frame := range map[string]string{
		"another kind":      string([]byte{byte(KindStdout), 0, 0, 1, 'x'}),
		"an unknown kind":   string([]byte{99, 0, 0, 1, 'x'}),
		"an end with more":  string([]byte{byte(kindEnd), 0, 0, 1, 'x'}),
		"more than may be":  string([]byte{byte(kindData), 0xff, 0xff, 0xff}),
		"no end after data": string([]byte{byte(kindData), 0, 0, 1, 'x'}),
	} {
		var m memory
		m.WriteString(frame)
		if _, err := io.ReadAll(Carry(&m)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
