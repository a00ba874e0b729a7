package wire_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// maxStart and maxMessage are the protocol's bounds of JSON frames.
const (
	maxStart   = 14 << 20
	maxMessage = 16 << 10
)

func TestMessagesRoundTrip(t *testing.T) {
	for _, tt := range []struct {
		kind          wire.Kind
		message, into any
	}{
		{wire.KindHello, &wire.Hello{Version: 7}, &wire.Hello{}},
		{wire.KindStart, &wire.Start{
			Command: launch.Command{
				Process: specs.Process{Args: []string{"a", "", "é\n"}, Cwd: "/home", Env: []string{"A=\x01"}, Terminal: true, ConsoleSize: &specs.Box{Height: 1}},
				Shell:   "x", Login: true,
			},
			Stdin: true, MaxOutput: 1 << 40,
		}, &wire.Start{}},
		{wire.KindExit, &wire.Exit{Code: 255, Signal: 9, Truncated: true, Fault: wire.FaultCwd, Message: "x", InTime: true, Leftovers: []string{"a b"}, MoreLeftovers: 2}, &wire.Exit{}},
		{wire.KindControl, &wire.Control{Stream: 1<<32 - 1, Signal: 15, Terminate: true, Grace: 2000, Release: []int{0, 31}}, &wire.Control{}},
	} {
		var frame bytes.Buffer
		writes := 0
		if err := wire.WriteMessage(countingWriter{&frame, &writes}, tt.kind, tt.message); err != nil || writes != 1 {
			t.Fatalf("%d writes, %v", writes, err)
		}
		if err := wire.ReadMessage(iotest.OneByteReader(&frame), tt.kind, tt.into); err != nil {
			t.Errorf("kind %d: %v", tt.kind, err)
		}
		if diff := cmp.Diff(tt.message, tt.into); diff != "" || frame.Len() > 0 {
			t.Errorf("kind %d, %d bytes left: sent (-), got (+):\n%s", tt.kind, frame.Len(), diff)
		}
	}
}

type countingWriter struct {
	io.Writer
	writes *int
}

func (w countingWriter) Write(p []byte) (int, error) {
	*w.writes++
	return w.Writer.Write(p)
}

func TestHeaders(t *testing.T) {
	for _, tt := range []struct {
		name   string
		kind   wire.Kind
		length int
		want   string // a part of the error; empty for none
	}{
		{"empty output", wire.KindStdout, 0, ""},
		{"largest output", wire.KindStdout, wire.MaxData, ""},
		{"output too large", wire.KindStdout, wire.MaxData + 1, "more than"},
		{"largest stderr", wire.KindStderr, wire.MaxData, ""},
		{"stderr too large", wire.KindStderr, 1<<24 - 1, "more than"},
		{"largest message", wire.KindExit, maxMessage, ""},
		{"largest start", wire.KindStart, maxStart, ""},
		{"message too large", wire.KindExit, maxMessage + 1, "more than"},
		{"hello too large", wire.KindHello, maxMessage + 1, "more than"},
		{"start too large", wire.KindStart, maxStart + 1, "more than"},
		{"control too large", wire.KindControl, maxMessage + 1, "more than"},
		{"kind 0", 0, 0, "unknown"},
		{"unknown kind", 99, 0, "unknown"},
	} {
		h := wire.Header(tt.kind, tt.length)
		kind, length, err := wire.ReadHeader(bytes.NewReader(h[:]))
		switch {
		case tt.want == "" && (err != nil || kind != tt.kind || length != tt.length):
			t.Errorf("%s: kind %d, %d bytes, %v", tt.name, kind, length, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
		}
	}
}

func TestFramesThatAreCutShort(t *testing.T) {
	var whole bytes.Buffer
	if err := wire.WriteMessage(&whole, wire.KindExit, wire.Exit{Code: 1}); err != nil {
		t.Fatal(err)
	}
	for length := range whole.Len() {
		err := wire.ReadMessage(bytes.NewReader(whole.Bytes()[:length]), wire.KindExit, &wire.Exit{})
		if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut at %d: %v", length, err)
		}
	}
}

func TestMessagesThatAreRefused(t *testing.T) {
	frame := func(kind wire.Kind, payload string) []byte {
		h := wire.Header(kind, len(payload))
		return append(h[:], payload...)
	}
	for name, bad := range map[string][]byte{
		"another kind": frame(wire.KindControl, "{}"),
		"output":       frame(wire.KindStdout, "{}"),
		"no JSON":      frame(wire.KindExit, "hello"),
		"empty":        frame(wire.KindExit, ""),
		"wrong type":   frame(wire.KindExit, `{"code":"0"}`),
		"two values":   frame(wire.KindExit, `{}{}`),
	} {
		if err := wire.ReadMessage(bytes.NewReader(bad), wire.KindExit, &wire.Exit{}); err == nil {
			t.Errorf("%s: read", name)
		}
	}
	if err := wire.WriteMessage(io.Discard, wire.KindStart, wire.Start{Command: launch.Command{Shell: strings.Repeat("x", maxStart)}}); !errors.Is(err, syscall.EMSGSIZE) {
		t.Errorf("a message that is too large: %v", err)
	}
	for _, most := range []launch.Command{
		{Shell: strings.Repeat("<", 2<<20)}, {Shell: strings.Repeat("\xff", 2<<20)}, {Process: specs.Process{Args: make([]string, 2<<20)}},
	} {
		if err := wire.WriteMessage(io.Discard, wire.KindStart, wire.Start{Command: most}); err != nil {
			t.Errorf("a command of 2 MiB: %v", err)
		}
	}
	if err := wire.WriteMessage(io.Discard, wire.KindExit, wire.Exit{Message: strings.Repeat("\x01", 2<<10)}); err != nil {
		t.Errorf("the longest text: %v", err)
	}
}

func TestSpooledFrames(t *testing.T) {
	for _, tt := range []struct {
		name string
		at   wire.Spooled
		ok   bool
	}{
		{"first slot", wire.Spooled{Kind: wire.KindStdout, Slot: 0, Length: 1}, true},
		{"last slot, full", wire.Spooled{Kind: wire.KindStderr, Slot: wire.SpoolSlots - 1, Length: wire.MaxData}, true},
		{"a slot that there is not", wire.Spooled{Kind: wire.KindStdout, Slot: wire.SpoolSlots, Length: 1}, false},
		{"more than a slot holds", wire.Spooled{Kind: wire.KindStdout, Slot: 0, Length: wire.MaxData + 1}, false},
		{"a slot far out", wire.Spooled{Kind: wire.KindStdout, Slot: 1<<32 - 1, Length: 1}, false},
		{"a length far out", wire.Spooled{Kind: wire.KindStdout, Slot: 0, Length: 1<<32 - 1}, false},
		{"no output", wire.Spooled{Kind: wire.KindExit, Slot: 0, Length: 1}, false},
	} {
		r := bytes.NewReader(tt.at.Encode())
		kind, length, err := wire.ReadHeader(r)
		if err != nil || kind != wire.KindSpooled {
			t.Fatalf("%s: kind %d, %v", tt.name, kind, err)
		}
		if got, err := wire.ReadSpooled(r, length); (err == nil) != tt.ok || tt.ok && got != tt.at {
			t.Errorf("%s: %+v, %v", tt.name, got, err)
		}
	}
	if _, err := wire.ReadSpooled(strings.NewReader("123456789"), 8); err == nil {
		t.Error("a payload of another length is read")
	}
}

// FuzzReadHeader holds that a header which is taken is bounded, and the only one of its value.
func FuzzReadHeader(f *testing.F) {
	for _, seed := range []string{"", "\x01", "\x03\x00\x00\x00", "\x03\x01\xff\xfc", "\x03\x01\xff\xfd", "\x05\x40\x00\x00", "\x05\x40\x00\x01", "\xff\xff\xff\xff"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		kind, length, err := wire.ReadHeader(bytes.NewReader(data))
		if err != nil {
			return
		}
		if length < 0 || length > maxStart || kind == wire.KindExit && length > maxMessage || (kind == wire.KindStdout || kind == wire.KindStderr) && length > wire.MaxData {
			t.Fatalf("kind %d with %d bytes", kind, length)
		}
		if h := wire.Header(kind, length); !bytes.Equal(h[:], data[:wire.HeaderSize]) {
			t.Fatalf("%x is read as %x", data[:wire.HeaderSize], h)
		}
	})
}

// FuzzReadMessage holds that what is read can be written, and read as the same again.
func FuzzReadMessage(f *testing.F) {
	for _, exit := range []wire.Exit{{}, {Code: -1, Signal: 64}, {Fault: wire.FaultCwd, Message: "é\xff"}} {
		var frame bytes.Buffer
		if err := wire.WriteMessage(&frame, wire.KindExit, exit); err != nil {
			f.Fatal(err)
		}
		f.Add(frame.Bytes())
	}
	f.Add([]byte("\x05\x00\x00\x0d{\"CODE\":1e0}x"))
	f.Add([]byte("\x05\x40\x00\x00{"))
	f.Add([]byte("\x01\x00\x00\x02{}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var first, second wire.Exit
		if wire.ReadMessage(bytes.NewReader(data), wire.KindExit, &first) != nil {
			return
		}
		if !json.Valid(data[wire.HeaderSize : wire.HeaderSize+int(data[1])<<16+int(data[2])<<8+int(data[3])]) {
			t.Fatalf("%q is no JSON, but is read", data)
		}
		var frame bytes.Buffer
		if err := wire.WriteMessage(&frame, wire.KindExit, first); err != nil {
			t.Fatal(err)
		}
		if err := wire.ReadMessage(&frame, wire.KindExit, &second); err != nil || !cmp.Equal(first, second, cmpopts.EquateEmpty()) {
			t.Fatalf("%+v became %+v, %v", first, second, err)
		}
	})
}
