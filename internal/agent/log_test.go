//go:build linux

package agent

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/internal/agent/launch"
)

// parts are the files of a log, the oldest first.
func parts(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	for n := launch.MaxLogFiles + 1; n >= 0; n-- {
		name := launch.OldLog(n)
		switch n {
		case 0:
			name = launch.LogFile
		case launch.MaxLogFiles + 1:
			name = launch.FirstLog
		}
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil {
			all = append(all, string(data))
		} else if !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	return all
}

func TestRotationLosesNothingAndCutsNoLine(t *testing.T) {
	var text strings.Builder
	for i := range 40_000 {
		fmt.Fprintf(&text, "line %d %s\n", i, strings.Repeat("x", i%97))
	}
	lines := text.String() // 2.4 MB
	for _, limit := range []int64{launch.MinLogBytes * 16, 100_000, 1 << 20} {
		for _, chunk := range []int{1, 7, 4096, 300_000, 1 << 30} {
			t.Run(fmt.Sprintf("%d bytes by up to %d", limit, chunk), func(t *testing.T) {
				dir, rest := t.TempDir(), []byte(lines)
				if chunk < 10 {
					rest = rest[:bytes.IndexByte(rest[300_000:], '\n')+300_001]
				}
				want := string(rest)
				r := newLog(dir, launch.Log{MaxBytes: limit, Files: launch.MaxLogFiles})
				random := rand.New(rand.NewPCG(1, uint64(chunk)))
				for len(rest) > 0 {
					n := min(len(rest), 1+random.IntN(chunk))
					r.write(rest[:n])
					rest = rest[n:]
				}
				r.finish()
				files := parts(t, dir)
				if strings.Join(files, "") != want || r.lost.Load() != 0 {
					got := strings.Join(files, "")
					at := 0
					for at < min(len(got), len(want)) && got[at] == want[at] {
						at++
					}
					t.Fatalf("%d files, %d lost; of %d bytes %d are there, and the same up to %d", len(files), r.lost.Load(), len(want), len(got), at)
				}
				for i, file := range files {
					if int64(len(file)) > limit || file == "" || !strings.HasSuffix(file, "\n") {
						t.Errorf("file %d has %d bytes and ends with %q", i, len(file), file[max(0, len(file)-20):])
					}
				}
			})
		}
	}
}

func TestLogsAreRotated(t *testing.T) {
	const limit = launch.MinLogBytes
	line := func(n int) string { return strings.Repeat("x", n-1) + "\n" }
	for name, c := range map[string]struct {
		files  int
		writes []string
		want   []int // sizes, the oldest first
	}{
		"full at a line's end":            {2, []string{line(limit - 10), line(5)}, []int{limit - 10, 5}},
		"no new file before it is needed": {2, []string{line(limit)}, []int{limit}},
		"a line without an end":           {9, []string{strings.Repeat("x", 3*limit+1)}, []int{limit, limit, limit, 1}},
		"a line that ends in the old one": {2, []string{line(limit / 2), strings.Repeat("x", limit/2-10), line(5), line(6)}, []int{limit - 5, 6}},
		"as many older ones as asked for": {2, []string{line(limit), line(limit - 1), line(limit - 2), line(limit - 3), "x"}, []int{limit + len(rotatedNote), limit - 3, 1}},
		"only one older one":              {1, []string{line(limit), line(limit - 1), line(limit - 2), "x"}, []int{limit - 2, 1}},
		"no older one":                    {0, []string{line(limit), line(limit - 1), "x"}, []int{1}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, text := range c.writes {
				// Each by a log of its own, as when the process is started again.
				r := newLog(dir, launch.Log{MaxBytes: limit, Files: c.files})
				r.write([]byte(text))
				r.finish()
			}
			var sizes []int
			for _, file := range parts(t, dir) {
				sizes = append(sizes, len(file))
			}
			if fmt.Sprint(sizes) != fmt.Sprint(c.want) {
				t.Errorf("sizes %v, want %v", sizes, c.want)
			}
		})
	}
}

// The first file stays as it is, and says once that what came after it is gone.
func TestTheFirstFileIsKept(t *testing.T) {
	const limit = launch.MinLogBytes
	dir := t.TempDir()
	for n := range 9 {
		r := newLog(dir, launch.Log{MaxBytes: limit, Files: 3}) // as when the process is started again
		r.write(bytes.Repeat([]byte{byte('a' + n)}, limit))
		r.finish()
	}
	var got []string
	for _, file := range parts(t, dir) {
		got = append(got, file[:1]+file[limit:])
	}
	if want := []string{"a\n" + rotatedNote, "g", "h", "i"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A log that an earlier version has rotated has no beginning any more.
func TestAnOlderFileIsNotTakenForTheFirst(t *testing.T) {
	const limit = launch.MinLogBytes
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, launch.OldLog(1)), []byte("b"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := newLog(dir, launch.Log{MaxBytes: limit, Files: 3})
	r.write(bytes.Repeat([]byte("x"), 2*limit))
	r.finish()
	if _, err := os.Lstat(filepath.Join(dir, launch.FirstLog)); !os.IsNotExist(err) || len(parts(t, dir)) != 3 {
		t.Errorf("%d files, %v", len(parts(t, dir)), err)
	}
}

// The log is out of order for a while: the directory has something else where it should be.
func TestALossIsTold(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, launch.LogFile)
	r := newLog(dir, launch.Log{MaxBytes: launch.MinLogBytes, Files: 1})
	r.write([]byte("half a line"))
	r.close()
	if err := os.Rename(name, name+".kept"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(name, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		r.write([]byte("lost\n"))
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(name+".kept", name); err != nil {
		t.Fatal(err)
	}
	r.write([]byte("kept\n"))
	r.finish()
	want := "half a line\n[sandbox: 15 bytes of output were lost: is a directory]\nkept\n"
	if got := parts(t, dir); len(got) != 1 || got[0] != want || r.lost.Load() != 15 {
		t.Errorf("%d lost, %q", r.lost.Load(), got)
	}
}
