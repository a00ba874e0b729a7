//go:build linux

package agent

import (
	"bytes"
	"io"
	"testing"

	"golang.org/x/sys/unix"
)

// What is in the pipe when the command has ended is read to its end, whoever takes the pipe out of the poller first.
func TestOutputOfACommandThatHasEnded(t *testing.T) {
	end, file, err := pipe(1)
	if err != nil {
		t.Fatal(err)
	}
	text := bytes.Repeat([]byte("x"), 60<<10)
	if _, err := unix.Write(end, text); err != nil {
		t.Fatal(err)
	}
	o := &output{file: file}
	defer o.close()
	o.stopWaiting()
	first := make([]byte, 8<<10)
	n, err := o.Read(first)
	if err == nil {
		err = o.readInBulk() // as forward does with much output
	}
	rest, restErr := io.ReadAll(o)
	if err != nil || restErr != nil || n+len(rest) != len(text) {
		t.Errorf("%d bytes of %d: %v, %v", n+len(rest), len(text), err, restErr)
	}
	_ = unix.Close(end)
}
