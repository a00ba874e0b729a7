package dockerexec

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/docker/docker/api/types"
)

// dockerFrame is a piece of an attach stream.
func dockerFrame(stream byte, data string) []byte {
	frame := []byte{stream, 0, 0, 0}
	return append(binary.BigEndian.AppendUint32(frame, uint32(len(data))), data...)
}

func connOf(r io.Reader) *execConn {
	return newExecConn(types.HijackedResponse{Reader: bufio.NewReader(r)})
}

// TestFramesSplitAnywhere cuts a stream in two at every byte, and into single bytes.
func TestFramesSplitAnywhere(t *testing.T) {
	stream := bytes.Join([][]byte{
		dockerFrame(1, "one "), dockerFrame(2, "warning: "), dockerFrame(1, ""), dockerFrame(1, "two "),
		dockerFrame(2, ""), dockerFrame(2, "late\n"), dockerFrame(1, "three"),
	}, nil)
	check := func(how string, r io.Reader) {
		t.Helper()
		c := connOf(r)
		if got, err := io.ReadAll(c); err != nil || string(got) != "one two three" || c.complaint() != "warning: late" {
			t.Errorf("%s: %q, %q, %v", how, got, c.complaint(), err)
		}
	}
	for at := range stream {
		check("in two", io.MultiReader(bytes.NewReader(stream[:at]), bytes.NewReader(stream[at:])))
	}
	check("single bytes", iotest.OneByteReader(bytes.NewReader(stream)))
	check("an end with the data", iotest.DataErrReader(bytes.NewReader(stream)))
}

func TestReadsAreOfOneFrame(t *testing.T) {
	c := connOf(bytes.NewReader(append(dockerFrame(1, "abc"), dockerFrame(1, "d")...)))
	buffer := make([]byte, 2)
	var got []string
	for {
		n, err := c.Read(buffer)
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

func TestStderrIsBounded(t *testing.T) {
	var stream []byte
	for range 100 {
		stream = append(stream, dockerFrame(2, strings.Repeat("x", 1000))...)
	}
	c := connOf(bytes.NewReader(append(stream, dockerFrame(1, "after")...)))
	if got, err := io.ReadAll(c); err != nil || string(got) != "after" {
		t.Errorf("%q, %v", got, err)
	}
	if got := len(c.complaint()); got != maxStderr {
		t.Errorf("%d bytes kept", got)
	}
}

func TestStreamsThatAreWrong(t *testing.T) {
	for _, tt := range []struct {
		name, want string
		stream     []byte
	}{
		{"stdin", "stream 0", dockerFrame(0, "x")},
		{"unknown stream", "stream 3", dockerFrame(3, "x")},
		{"no frames at all", "stream 79", []byte("OCI runtime exec failed: no such file")},
		{"cut in a header", "unexpected EOF", dockerFrame(1, "x")[:5]},
	} {
		_, err := io.ReadAll(connOf(bytes.NewReader(tt.stream)))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
		}
	}
}
