package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// openLog is the log in dir, of a process that ends when the test says so.
func openLog(t *testing.T, dir string) (l *Log, finish func()) {
	t.Helper()
	opened, err := openLogDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	finished := make(chan struct{})
	l = &Log{dir: opened, clock: &fakeClock{time: monday}, finished: finished, closing: make(chan struct{})}
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

func TestTail(t *testing.T) {
	long := strings.Repeat("x", 100<<10)
	for name, test := range map[string]struct {
		files []string
		lines int
		size  int64
		want  string
	}{
		"none":                    {nil, 10, -1, ""},
		"all":                     {[]string{"c\nd\n", "b\n", "a\n"}, -1, -1, "a\nb\nc\nd\n"},
		"no lines":                {[]string{"a\n"}, 0, -1, ""},
		"no bytes":                {[]string{"a\n"}, -1, 0, ""},
		"one":                     {[]string{"a\nb\n"}, 1, -1, "b\n"},
		"one that goes on":        {[]string{"a\nb"}, 1, -1, "b"},
		"two, one goes on":        {[]string{"a\nb\nc"}, 2, -1, "b\nc"},
		"over the boundary":       {[]string{"c\nd\n", "a\nb\n"}, 3, -1, "b\nc\nd\n"},
		"up to the boundary":      {[]string{"c\nd\n", "a\nb\n"}, 2, -1, "c\nd\n"},
		"a line over it":          {[]string{"c\nd\n", "a\nb"}, 2, -1, "bc\nd\n"},
		"newest is empty":         {[]string{"", "a\nb\n"}, 1, -1, "b\n"},
		"more than there are":     {[]string{"b\n", "a\n"}, 9, -1, "a\nb\n"},
		"bytes":                   {[]string{"cd\n", "ab\n"}, -1, 5, "b\ncd\n"},
		"bytes before lines":      {[]string{"abcdef\n"}, 1, 3, "ef\n"},
		"empty lines":             {[]string{"\n\n\n"}, 2, -1, "\n\n"},
		"long lines":              {[]string{long + "1\n" + long + "2\n", long + "0\n"}, 2, -1, long + "1\n" + long + "2\n"},
		"long lines, fewer":       {[]string{long + "1\n" + long + "2\n"}, -1, 4, "xx2\n"},
		"only what is contiguous": {[]string{"a\n", "", "b\n"}, -1, -1, "b\na\n"},
	} {
		l, _ := openLog(t, logOf(t, test.files...))
		if got, err := l.Tail(test.lines, test.size); err != nil || string(got) != test.want {
			t.Errorf("%s: %.40q (%d bytes), %v", name, got, len(got), err)
		}
	}
	if text := bytes.Repeat([]byte("y"), maxTail+5); true {
		l, _ := openLog(t, logOf(t, string(text)))
		if got, err := l.Tail(-1, -1); err != nil || len(got) != maxTail {
			t.Errorf("of %d bytes there are %d, %v", len(text), len(got), err)
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
				if got, err := l.Tail(-1, -1); err != nil || string(got) != want {
					t.Errorf("read %q, %v", got, err)
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

// followed is what there is to follow until the process has finished.
func followed(t *testing.T, l *Log) string {
	t.Helper()
	var got strings.Builder
	err := l.Follow(t.Context(), func(c Chunk) error {
		got.Write(c.Bytes)
		if c.Notice != "" {
			fmt.Fprintf(&got, "<%s>", c.Notice)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return got.String()
}

func TestFollowGoesOnAfterTheTail(t *testing.T) {
	dir := logOf(t, "b\nc\n", "a\n")
	l, finish := openLog(t, dir)
	if got, err := l.Tail(1, -1); err != nil || string(got) != "c\n" {
		t.Errorf("the tail is %q, %v", got, err)
	}
	appendTo(t, dir, "d\n")
	finish()
	if got := followed(t, l); got != "d\n" {
		t.Errorf("followed %q", got)
	}
}

func TestFollowEnds(t *testing.T) {
	l, finish := openLog(t, logOf(t, "a\n"))
	ctx, hangUp := context.WithCancel(t.Context())
	err := l.Follow(ctx, func(Chunk) error { hangUp(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("after a hang-up: %v", err)
	}
	l.moveTo(nil, 0)
	if err := l.Follow(t.Context(), func(Chunk) error { return errTest }); !errors.Is(err, errTest) {
		t.Errorf("after what emit says: %v", err)
	}
	closing := make(chan struct{})
	l.closing = closing
	close(closing)
	if err := l.Follow(t.Context(), func(Chunk) error { return nil }); !errdefs.IsUnavailable(err) {
		t.Errorf("after a shutdown: %v", err)
	}
	l.closing = nil
	finish()
	if got := followed(t, l); got != "" {
		t.Errorf("after it has finished: %q", got)
	}
}

func TestFollowTellsOfACut(t *testing.T) {
	dir := logOf(t, "one\ntwo\n")
	l, finish := openLog(t, dir)
	var got strings.Builder
	err := l.Follow(t.Context(), func(c Chunk) error {
		got.Write(c.Bytes)
		switch {
		case c.Notice != "":
			fmt.Fprintf(&got, "<%s>", c.Notice)
			appendTo(t, dir, "three\n")
		case strings.HasSuffix(got.String(), "two\n"):
			return os.Truncate(filepath.Join(dir, logName), 0)
		default:
			finish()
		}
		return nil
	})
	const want = "one\ntwo\n<the log was cut from 8 to 0 bytes; what was written meanwhile may be missing>three\n"
	if err != nil || got.String() != want {
		t.Errorf("followed %q, %v", got.String(), err)
	}
}

func TestFollowOutlivesWhatATenantDoesToTheFiles(t *testing.T) {
	const gap = "<the log was rotated away before it was read; output may be missing>"
	for name, test := range map[string]struct {
		do   func(dir string) error
		want string
	}{
		"removed": {func(dir string) error { return os.Remove(filepath.Join(dir, logName)) }, "a\nb\n" + gap + "c\n"},
		"renamed": {func(dir string) error {
			return os.Rename(filepath.Join(dir, logName), filepath.Join(dir, "mine"))
		}, "a\nb\n" + gap + "c\n"},
		"rotated": {func(dir string) error {
			return os.Rename(filepath.Join(dir, logName), filepath.Join(dir, logName+".1"))
		}, "a\nb\nc\n"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := logOf(t, "b\n", "a\n")
			l, finish := openLog(t, dir)
			var got strings.Builder
			err := l.Follow(t.Context(), func(c Chunk) error {
				got.Write(c.Bytes)
				if c.Notice != "" {
					fmt.Fprintf(&got, "<%s>", c.Notice)
				}
				switch {
				case strings.HasSuffix(got.String(), "b\n"):
					if err := test.do(dir); err != nil {
						return err
					}
					appendTo(t, dir, "c\n")
				case strings.HasSuffix(got.String(), "c\n"):
					finish()
				}
				return nil
			})
			if err != nil || got.String() != test.want {
				t.Errorf("followed %q, %v", got.String(), err)
			}
		})
	}
}

// rotating writes a log as the agent does.
type rotating struct {
	dir         string
	limit, keep int
	file        *os.File
	size        int
}

func (w *rotating) line(n int) error {
	if w.file != nil && w.size >= w.limit {
		if err := w.file.Close(); err != nil {
			return err
		}
		w.file = nil
		name := func(n int) string { return filepath.Join(w.dir, fmt.Sprintf("%s.%d", logName, n)) }
		for n := w.keep; n > 1; n-- {
			if err := os.Rename(name(n-1), name(n)); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		if err := os.Rename(filepath.Join(w.dir, logName), name(1)); err != nil {
			return err
		}
	}
	if w.file == nil {
		var err error
		if w.file, err = os.OpenFile(filepath.Join(w.dir, logName), os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
			return err
		}
		w.size = 0
	}
	written, err := fmt.Fprintln(w.file, n)
	w.size += written
	return err
}

// Numbered lines come whole and in their order, over many rotations, however reader and writer take
// turns. With few old files some may be missing, but then that is told in that place.
func TestFollowOverRotations(t *testing.T) {
	for name, test := range map[string]struct {
		lines, limit, keep int
		mayMiss            bool
	}{
		"all are kept": {20_000, 2 << 10, 100, false},
		"few are kept": {50_000, 200, 3, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			l, finish := openLog(t, dir)
			go func() {
				defer finish()
				w := &rotating{dir: dir, limit: test.limit, keep: test.keep}
				for n := range test.lines {
					if err := w.line(n); err != nil {
						t.Error(err)
						return
					}
				}
				_ = w.file.Close()
			}()
			next, gaps, told := 0, 0, test.mayMiss // what went before there was a reader
			check := func(line string) {
				n, err := strconv.Atoi(line)
				if err != nil || n < next || n > next && !told {
					t.Fatalf("line %q comes where %d is next", line, next)
				}
				next, told = n+1, false
			}
			// A gap is where a file ends, so lines are whole on both sides of it.
			for text := range strings.SplitSeq(followed(t, l), ">") {
				lines, notice, is := strings.Cut(text, "<")
				for line := range strings.Lines(lines) {
					check(strings.TrimSuffix(line, "\n"))
				}
				if is && strings.HasPrefix(notice, "the log was rotated away") {
					gaps++
					told = true
				}
			}
			if next != test.lines || gaps > 0 && !test.mayMiss {
				t.Errorf("%d lines of %d, %d gaps", next, test.lines, gaps)
			}
			t.Logf("%d gaps", gaps)
		})
	}
}

func TestFollowWithoutWatches(t *testing.T) {
	dir := logOf(t, "a\n")
	l, finish := openLog(t, dir)
	clock := l.clock.(*fakeClock)
	deaf := &dirWatcher{changed: make(chan struct{})}
	got := make(chan string, 10)
	emit := func(c Chunk) error { got <- string(c.Bytes); return nil }
	if err := l.drain(t.Context(), emit); err != nil || <-got != "a\n" {
		t.Fatal(err)
	}
	appendTo(t, dir, "b\n")
	woken := make(chan error)
	go func() { woken <- l.wait(t.Context(), deaf) }()
	for len(clock.waiting()) == 0 {
		runtime.Gosched() // until it waits
	}
	clock.advance(pollInterval)
	if err := <-woken; err != nil {
		t.Fatal(err)
	}
	if err := l.drain(t.Context(), emit); err != nil || <-got != "b\n" {
		t.Fatal(err)
	}
	finish()
	deaf.close()
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
	err = l.Follow(t.Context(), func(c Chunk) error {
		switch got.Write(c.Bytes); got.String() {
		case "a\n": // it comes back, and so its log goes on
			s.exits(r.ID, Exit{Code: 1})
			appendTo(t, h.logDir(r), "b\n")
		case "a\nb\n":
			s.pass(2 * time.Second)
			appendTo(t, h.logDir(r), "c\n")
		case "a\nb\nc\n":
			_, err := s.Stop(t.Context(), "alice", r.ID, "")
			appendTo(t, h.logDir(r), "d\n")
			return err
		}
		return nil
	})
	if err != nil || got.String() != "a\nb\nc\nd\n" {
		t.Errorf("followed %q, %v", got.String(), err)
	}
}

// Numbered lines come in their order and none comes twice, however many times the names of the files turn between any two
// looks at them; what is missing has been told in that place.
func TestFollowWhileNamesTurn(t *testing.T) {
	for name, test := range map[string]struct {
		limit, keep, most int
		seeds             uint64
		mayMiss           bool
	}{
		"all are kept, and the names turn often": {100, 99, 60, 1, false},
		"all are kept":                           {100, 99, 12, 1, false},
		"few are kept":                           {20, 3, 12, 6, true},
		"one is kept":                            {20, 1, 6, 6, true},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range test.seeds {
				const lines = 1500
				dir, random := t.TempDir(), rand.New(rand.NewPCG(seed, 13))
				l, _ := openLog(t, dir)
				w := &rotating{dir: dir, limit: test.limit, keep: test.keep}
				written := 0
				write := func(most int) {
					for range random.IntN(most + 1) {
						if written < lines {
							if err := w.line(written); err != nil {
								t.Fatal(err)
							}
							written++
						}
					}
				}
				l.looks = func() {
					if random.IntN(4) == 0 { // the writer is fast, but not in each moment
						write(test.most)
					}
				}
				var got strings.Builder
				next, gaps, told := 0, 0, test.mayMiss // what went before there was a reader
				for done := false; !done; {
					done = written == lines
					err := l.drain(t.Context(), func(c Chunk) error {
						got.Write(c.Bytes)
						if c.Notice != "" {
							gaps++
							got.WriteString("gap\n")
						}
						return nil
					})
					if err != nil {
						t.Fatal(err)
					}
					write(5)
				}
				for line := range strings.Lines(got.String()) {
					if line == "gap\n" {
						told = true
						continue
					}
					n, err := strconv.Atoi(strings.TrimSuffix(line, "\n"))
					if err != nil || n < next || n > next && !told {
						t.Fatalf("seed %d: line %q comes where %d is next", seed, line, next)
					}
					next, told = n+1, false
				}
				if next != lines || gaps > 0 && !test.mayMiss {
					t.Errorf("seed %d: %d lines of %d, %d gaps", seed, next, lines, gaps)
				}
				_ = w.file.Close()
			}
		})
	}
}
