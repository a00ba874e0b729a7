package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/agent/launch"
)

// openLog is the log in dir, of a process that ends when the test says so.
func openLog(t *testing.T, dir string) (l *Log, finish func()) {
	t.Helper()
	opened, err := openLogDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	finished := make(chan struct{})
	l = &Log{dir: opened, clock: &fakeClock{time: monday}, watch: &dirWatch{}, finished: finished, closing: make(chan struct{})}
	t.Cleanup(func() { _ = l.Close() })
	return l, func() { close(finished) }
}

// logOf is a directory with files of a log, the newest first.
func logOf(t *testing.T, texts ...string) string {
	t.Helper()
	dir := t.TempDir()
	for n, text := range texts {
		name := logName
		if n > 0 {
			name = fmt.Sprintf("%s.%d", logName, n)
		}
		file := filepath.Join(dir, name)
		at := time.Now().Add(-time.Duration(n+1) * time.Hour) // the older file was written earlier
		if err := errors.Join(os.WriteFile(file, []byte(text), 0o600), os.Chtimes(file, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func appendTo(t *testing.T, dir, text string) {
	t.Helper()
	file, err := os.OpenFile(filepath.Join(dir, logName), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err == nil {
		_, err = file.WriteString(text)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestRead(t *testing.T) {
	const all = 1 << 20 // lines
	long := strings.Repeat("x", 100<<10)
	for name, test := range map[string]struct {
		files []string
		lines int
		size  int64
		want  string
	}{
		"none":                    {nil, 10, 0, ""},
		"all":                     {[]string{"c\nd\n", "b\n", "a\n"}, all, 0, "a\nb\nc\nd\n"},
		"one":                     {[]string{"a\nb\n"}, 1, 0, "b\n"},
		"one that goes on":        {[]string{"a\nb"}, 1, 0, "b"},
		"two, one goes on":        {[]string{"a\nb\nc"}, 2, 0, "b\nc"},
		"over the boundary":       {[]string{"c\nd\n", "a\nb\n"}, 3, 0, "b\nc\nd\n"},
		"up to the boundary":      {[]string{"c\nd\n", "a\nb\n"}, 2, 0, "c\nd\n"},
		"a line over it":          {[]string{"c\nd\n", "a\nb"}, 2, 0, "bc\nd\n"},
		"newest is empty":         {[]string{"", "a\nb\n"}, 1, 0, "b\n"},
		"more than there are":     {[]string{"b\n", "a\n"}, 9, 0, "a\nb\n"},
		"bytes":                   {[]string{"cd\n", "ab\n"}, all, 5, "b\ncd\n"},
		"bytes before lines":      {[]string{"abcdef\n"}, 1, 3, "ef\n"},
		"empty lines":             {[]string{"\n\n\n"}, 2, 0, "\n\n"},
		"long lines":              {[]string{long + "1\n" + long + "2\n", long + "0\n"}, 2, 0, long + "1\n" + long + "2\n"},
		"long lines, fewer":       {[]string{long + "1\n" + long + "2\n"}, all, 4, "xx2\n"},
		"only what is contiguous": {[]string{"a\n", "", "b\n"}, all, 0, "b\na\n"},
	} {
		l, _ := openLog(t, logOf(t, test.files...))
		if got, err := l.Read(LogQuery{Lines: test.lines, Bytes: test.size}); err != nil || string(got.Data) != test.want {
			t.Errorf("%s: %.40q (%d bytes), %v", name, got.Data, len(got.Data), err)
		}
	}
	if text := bytes.Repeat([]byte("y"), maxLogBytes+5); true {
		l, _ := openLog(t, logOf(t, string(text)))
		if got, err := l.Read(LogQuery{}); err != nil || len(got.Data) != maxLogBytes || !got.Truncated {
			t.Errorf("of %d bytes there are %d, %v", len(text), len(got.Data), err)
		}
	}
}

func TestReadFirst(t *testing.T) {
	for name, test := range map[string]struct {
		lines     int
		size      int64
		want      string
		truncated bool
	}{
		"lines":                  {2, 0, "a\nb\n", false},
		"over the boundary":      {4, 0, "a\nb\nc\nd\n", false},
		"more than there are":    {9, 0, "a\nb\nc\nd\n€uro", false},
		"bytes":                  {9, 5, "a\nb\nc", true},
		"no part of a character": {9, 10, "a\nb\nc\nd\n", true},
	} {
		dir := logOf(t, "€uro", "c\nd\n")
		if err := os.WriteFile(filepath.Join(dir, launch.FirstLog), []byte("a\nb\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		l, _ := openLog(t, dir)
		if got, err := l.Read(LogQuery{First: true, Lines: test.lines, Bytes: test.size}); err != nil || string(got.Data) != test.want || got.Truncated != test.truncated {
			t.Errorf("%s: %q, %v, %v", name, got.Data, got.Truncated, err)
		}
		if got, err := l.Read(LogQuery{Lines: 3}); err != nil || string(got.Data) != "c\nd\n€uro" {
			t.Errorf("the last lines: %q, %v", got.Data, err)
		}
		if got, err := l.Read(LogQuery{Lines: 9}); err != nil || string(got.Data) != "a\nb\nc\nd\n€uro" {
			t.Errorf("all lines: %q, %v", got.Data, err)
		}
	}
}

func TestALogMayBeAnything(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "shadow")
	if err := os.WriteFile(outside, []byte("the host's\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, make := range map[string]func(name string) error{
		"a pipe":               func(name string) error { return unix.Mkfifo(name, 0o600) },
		"a link to the host":   func(name string) error { return os.Symlink(outside, name) },
		"a link to nothing":    func(name string) error { return os.Symlink("nothing", name) },
		"a link to an old one": func(name string) error { return os.Symlink(logName+".2", name) },
		"a directory":          func(name string) error { return os.Mkdir(name, 0o700) },
		"a socket": func(name string) error {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Bind(fd, &unix.SockaddrUnix{Name: name})
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, place := range []string{logName, logName + ".1"} {
				dir := logOf(t, "c\n", "b\n", "a\n")
				want := map[string]string{logName: "a\nb\n", logName + ".1": "a\nc\n"}[place]
				at := filepath.Join(dir, place)
				if err := errors.Join(os.Remove(at), make(at)); err != nil {
					t.Fatal(err)
				}
				l, finish := openLog(t, dir)
				finish()
				if got := followed(t, l); got != want {
					t.Errorf("followed %q", got)
				}
				if got, err := l.Read(LogQuery{}); err != nil || string(got.Data) != want {
					t.Errorf("read %q, %v", got.Data, err)
				}
			}
		})
	}
	link := filepath.Join(t.TempDir(), "logs")
	if err := os.Symlink(filepath.Dir(outside), link); err != nil {
		t.Fatal(err)
	}
	if _, err := openLogDir(link); err == nil {
		t.Error("a link to a directory was opened")
	}
}

func TestALogOfAProcess(t *testing.T) {
	h := newHost(t)
	s := h.serve()
	r := s.start(Intent{KeepAlive: true})
	if err := os.MkdirAll(h.logDir(r), 0o700); err != nil {
		t.Fatal(err)
	}
	appendTo(t, h.logDir(r), "a\n")
	l, err := s.Log("alice", r.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var got strings.Builder
	err = l.Follow(t.Context(), func(c LogPart) error {
		switch got.Write(c.Data); got.String() {
		case "a\n": // it comes back, and so its log goes on
			s.exits(r.ID, Exit{Code: 1})
			appendTo(t, h.logDir(r), "b\n")
		case "a\nb\n":
			s.pass(2 * time.Second)
			appendTo(t, h.logDir(r), "c\n")
		case "a\nb\nc\n":
			_, err := s.Stop(t.Context(), "alice", r.ID, syscall.SIGTERM)
			appendTo(t, h.logDir(r), "d\n")
			return err
		}
		return nil
	})
	if err != nil || got.String() != "a\nb\nc\nd\n" {
		t.Errorf("followed %q, %v", got.String(), err)
	}
}
