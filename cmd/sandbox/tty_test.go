package main

import (
	"io"
	"os"
	"strings"
	"testing"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/client"
)

// Keys that are passed on make no signals here, and others do. Nothing that is printed is changed.
func TestPassedKeysMakeNoSignals(t *testing.T) {
	near, far, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	defer far.Close()
	for _, passed := range []bool{true, false} {
		var streams client.Streams
		if passed {
			streams.Stdin = strings.NewReader("")
		}
		leave, err := sitDown(t.Context(), far, &streams)
		if err != nil {
			t.Fatal(err)
		}
		<-streams.Resizes // the first, after which only a signal has the terminal looked at
		mode, err := unix.IoctlGetTermios(int(far.Fd()), unix.TCGETS)
		if err != nil || mode.Lflag&unix.ISIG != 0 == passed || mode.Oflag&unix.OPOST != 0 {
			t.Errorf("keys are passed on: %v; the mode is %+v, %v", passed, mode, err)
		}
		leave()
		if mode, err = unix.IoctlGetTermios(int(far.Fd()), unix.TCGETS); err != nil || mode.Lflag&unix.ISIG == 0 || mode.Oflag&unix.OPOST == 0 {
			t.Errorf("left with %+v, %v", mode, err)
		}
	}
}

// Where there is no input, the command gets none to wait for or to search: at a terminal, the wrapper's does not either.
func TestNoInput(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	defer write.Close()
	near, far, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	defer far.Close()
	for name, tt := range map[string]struct {
		in            io.Reader
		passed, piped bool
	}{
		"/dev/null": {in: null}, "only written to": {in: write}, "pipe": {read, true, true}, "terminal": {far, true, false},
	} {
		if in := input(tt.in); (in != nil) != tt.passed {
			t.Errorf("%s: -i passes on %v", name, in)
		}
		if in := pipedInput(tt.in); (in != nil) != tt.piped {
			t.Errorf("%s: the wrapper passes on %v", name, in)
		}
	}
}

// A terminal that is gone while a command reads lines of it has ended; a file that cannot be read has not.
func TestInputOfATerminalThatIsGone(t *testing.T) {
	near, far, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	if err := far.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := input(near).Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("%d, %v", n, err)
	}
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if _, err := input(dir).Read(make([]byte, 1)); err == nil || err == io.EOF {
		t.Errorf("a folder: %v", err)
	}
}
