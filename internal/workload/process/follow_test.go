package process

import (
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

	"github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/agent/launch"
)

// followed is what there is to follow until the process has finished.
func followed(t *testing.T, l *Log) string {
	t.Helper()
	var got strings.Builder
	err := l.Follow(t.Context(), func(c LogPart) error {
		got.Write(c.Data)
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
	if got, err := l.Read(LogQuery{Lines: 1}); err != nil || string(got.Data) != "c\n" {
		t.Errorf("the tail is %q, %v", got.Data, err)
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
	err := l.Follow(ctx, func(LogPart) error { hangUp(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("after a hang-up: %v", err)
	}
	l.moveTo(nil, 0)
	if err := l.Follow(t.Context(), func(LogPart) error { return errTest }); !errors.Is(err, errTest) {
		t.Errorf("after what emit says: %v", err)
	}
	closing := make(chan struct{})
	l.closing = closing
	close(closing)
	if err := l.Follow(t.Context(), func(LogPart) error { return nil }); !errdefs.IsUnavailable(err) {
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
	err := l.Follow(t.Context(), func(c LogPart) error {
		got.Write(c.Data)
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
			err := l.Follow(t.Context(), func(c LogPart) error {
				got.Write(c.Data)
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
	first       bool // the first file is kept
	file        *os.File
	size        int
	files       int // so far
}

func (w *rotating) line(n int) error {
	if w.file != nil && w.size >= w.limit {
		if err := w.file.Close(); err != nil {
			return err
		}
		w.file = nil
		name := func(n int) string { return filepath.Join(w.dir, fmt.Sprintf("%s.%d", logName, n)) }
		keep := w.keep
		if w.first {
			keep--
		}
		first := filepath.Join(w.dir, launch.FirstLog)
		if w.first && w.files == keep+2 {
			if err := addTo(first, "gap\n"); err != nil {
				return err
			}
		}
		for n := keep; n > 1; n-- {
			if err := os.Rename(name(n-1), name(n)); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		to := name(1)
		if w.first && w.files == 1 {
			to = first
		}
		if err := os.Rename(filepath.Join(w.dir, logName), to); err != nil {
			return err
		}
	}
	if w.file == nil {
		var err error
		if w.file, err = os.OpenFile(filepath.Join(w.dir, logName), os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
			return err
		}
		w.size = 0
		w.files++
	}
	written, err := fmt.Fprintln(w.file, n)
	w.size += written
	return err
}

func addTo(name, text string) error {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
	if err == nil {
		_, err = file.WriteString(text)
		err = errors.Join(err, file.Close())
	}
	return err
}

// Numbered lines come whole and in their order, over many rotations, however reader and writer take
// turns. With few old files some may be missing, but then that is told in that place.
func TestFollowOverRotations(t *testing.T) {
	for name, test := range map[string]struct {
		lines, limit, keep int
		first, mayMiss     bool
	}{
		"all are kept":                {20_000, 2 << 10, 100, false, false},
		"few are kept":                {50_000, 200, 3, false, true},
		"few are kept, and the first": {50_000, 200, 4, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			l, finish := openLog(t, dir)
			go func() {
				defer finish()
				w := &rotating{dir: dir, limit: test.limit, keep: test.keep, first: test.first}
				for n := range test.lines {
					if err := w.line(n); err != nil {
						t.Error(err)
						return
					}
				}
				_ = w.file.Close()
			}()
			next, gaps, told := 0, 0, test.mayMiss && !test.first // what went before there was a reader
			check := func(line string) {
				if line == "gap" {
					told = true
					return
				}
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
	got := make(chan string, 10)
	emit := func(c LogPart) error { got <- string(c.Data); return nil }
	if err := l.drain(t.Context(), emit); err != nil || <-got != "a\n" {
		t.Fatal(err)
	}
	appendTo(t, dir, "b\n")
	woken := make(chan error)
	go func() { woken <- l.wait(t.Context(), nil) }()
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
}

// Numbered lines come in their order and none comes twice, however many times the names of the files turn between any two
// looks at them; what is missing has been told in that place.
func TestFollowWhileNamesTurn(t *testing.T) {
	for name, test := range map[string]struct {
		limit, keep, most int
		seeds             uint64
		first, mayMiss    bool
	}{
		"all are kept, and the names turn often": {100, 99, 60, 1, false, false},
		"all are kept, and the first apart":      {100, 100, 12, 1, true, false},
		"all are kept":                           {100, 99, 12, 1, false, false},
		"few are kept":                           {20, 3, 12, 6, false, true},
		"few are kept, and the first":            {20, 4, 12, 6, true, true},
		"one is kept":                            {20, 1, 6, 6, false, true},
		"one is kept, and the first":             {20, 2, 6, 6, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range test.seeds {
				const lines = 1500
				dir, random := t.TempDir(), rand.New(rand.NewPCG(seed, 13))
				l, _ := openLog(t, dir)
				w := &rotating{dir: dir, limit: test.limit, keep: test.keep, first: test.first}
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
				next, gaps, told := 0, 0, test.mayMiss && !test.first // what went before there was a reader
				for done := false; !done; {
					done = written == lines
					err := l.drain(t.Context(), func(c LogPart) error {
						got.Write(c.Data)
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
