//go:build linux

package agent

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/waittest"
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
	o.readInBulk() // as forward does with much output
	rest, restErr := io.ReadAll(o)
	if err != nil || restErr != nil || n+len(rest) != len(text) {
		t.Errorf("%d bytes of %d: %v, %v", n+len(rest), len(text), err, restErr)
	}
	_ = unix.Close(end)
}

// Those who are left behind print on, wherever their pipe is read.
func TestOutputOfThoseLeftBehind(t *testing.T) {
	files, err := openPipes(false, -1)
	if err != nil {
		t.Fatal(err)
	}
	polled := files.outputs[0].file
	files.outputs[1].readInBulk()
	files.stopWaiting()
	for i, o := range files.outputs {
		if n, err := o.Read(make([]byte, 8)); n != 0 || err != io.EOF {
			t.Fatalf("output %d: %d bytes, %v", i, n, err)
		}
	}
	(&persistentCommand{pipes: files}).drain()
	text := make([]byte, 2*maxPipe) // so that it must be read
	for i, end := range files.child[1:] {
		if n, err := unix.Write(end, text); n != len(text) || err != nil {
			t.Errorf("output %d: %d bytes of %d, %v", i, n, len(text), err)
		}
	}
	files.closeChildEnds()
	waittest.Until(t, "the poll is closed", func() bool { _, err := polled.Stat(); return errors.Is(err, os.ErrClosed) })
}

// An output whose end has been seen is closed at once.
func TestOutputThatNobodyHas(t *testing.T) {
	files, err := openPipes(false, -1)
	if err != nil {
		t.Fatal(err)
	}
	files.closeChildEnds()
	polled := files.outputs[0].file
	files.outputs[1].readInBulk()
	files.stopWaiting()
	for i, o := range files.outputs {
		if n, err := o.Read(make([]byte, 8)); n != 0 || err != io.EOF || !o.ended {
			t.Errorf("output %d: %d bytes, %v, ended %v", i, n, err, o.ended)
		}
	}
	(&persistentCommand{pipes: files}).drain()
	if _, err := polled.Stat(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("it is open still: %v", err)
	}
}

// What prints much is read on where no descriptor is left to read it in bulk.
func TestOutputWithoutADescriptorLeft(t *testing.T) {
	end, file, err := pipe(1)
	if err != nil {
		t.Fatal(err)
	}
	o := &output{file: file}
	defer o.close()
	if _, err := unix.Write(end, []byte("text")); err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(end)
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	o.readInBulk()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(o); string(text) != "text" || err != nil || o.file == nil {
		t.Errorf("%q, %v, in the poller: %v", text, err, o.file != nil)
	}
}
