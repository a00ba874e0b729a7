package engine

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/docker/docker/api/types"
)

func streamOf(r io.Reader) *stream {
	return newStream(types.HijackedResponse{Reader: bufio.NewReader(r)})
}

// A stream is cut in two at every byte, and into single bytes.
func TestFramesSplitAnywhere(t *testing.T) {
	sent := []byte(frame(1, "one ") + frame(2, "warning: ") + frame(1, "") + frame(1, "two ") +
		frame(2, "") + frame(2, "late\n") + frame(1, "three"))
	check := func(how string, r io.Reader) {
		t.Helper()
		s := streamOf(r)
		got, err := io.ReadAll(s)
		if err != nil || string(got) != "one two three" || s.Stderr() != "warning: late" {
			t.Errorf("%s: %q, %q, %v", how, got, s.Stderr(), err)
		}
	}
	for at := range sent {
		check("in two", io.MultiReader(bytes.NewReader(sent[:at]), bytes.NewReader(sent[at:])))
	}
	check("single bytes", iotest.OneByteReader(bytes.NewReader(sent)))
	check("an end with the data", iotest.DataErrReader(bytes.NewReader(sent)))
}

func TestReadsAreOfOneFrame(t *testing.T) {
	s := streamOf(strings.NewReader(frame(1, "abc") + frame(1, "d")))
	buffer := make([]byte, 2)
	var got []string
	for {
		n, err := s.Read(buffer)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, string(buffer[:n]))
	}
	if strings.Join(got, "|") != "ab|c|d" {
		t.Errorf("%q", got)
	}
}

func TestStreamsThatAreWrong(t *testing.T) {
	for _, tt := range []struct{ name, want, sent string }{
		{"stdin", "stream 0", frame(0, "x")},
		{"unknown stream", "stream 3", frame(3, "x")},
		{"no frames at all", "stream 79", "OCI runtime exec failed: no such file"},
		{"cut in a header", "unexpected EOF", frame(1, "x")[:5]},
	} {
		_, err := io.ReadAll(streamOf(strings.NewReader(tt.sent)))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
		}
	}
}
