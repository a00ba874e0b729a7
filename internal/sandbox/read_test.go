package sandbox

import (
	"bufio"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	cerrdefs "github.com/containerd/errdefs"
)

func numbered(from, to int) string {
	var b strings.Builder
	for i := from; i <= to; i++ {
		fmt.Fprintf(&b, "line %d\n", i)
	}
	return b.String()
}

func TestWindowsOfAText(t *testing.T) {
	long := strings.Repeat("x", 60<<10)
	for _, tt := range []struct {
		name, text    string
		request       ReadRequest
		content       string
		total, output int
		by            string
	}{
		{"empty", "", ReadRequest{}, "", 0, 0, ""},
		{"empty, from its beginning", "", ReadRequest{Offset: 1}, "", 0, 0, ""},
		{"one line", "a\n", ReadRequest{}, "a\n", 1, 1, ""},
		{"last line without a newline", "a\nb", ReadRequest{}, "a\nb", 2, 2, ""},
		{"empty lines count", "\n\n\n", ReadRequest{}, "\n\n\n", 3, 3, ""},
		{"from a line", "a\nb\nc\n", ReadRequest{Offset: 2}, "b\nc\n", 3, 2, ""},
		{"the last line", "a\nb\nc\n", ReadRequest{Offset: 3}, "c\n", 3, 1, ""},
		{"as many lines as there are", "a\nb\n", ReadRequest{Limit: 2}, "a\nb\n", 2, 2, ""},
		{"fewer lines", "a\nb\nc\n", ReadRequest{Limit: 2}, "a\nb\n\n[Showing lines 1-2 of 3. Use offset=3 to continue.]", 3, 2, "lines"},
		{"a window", "a\nb\nc\nd\n", ReadRequest{Offset: 2, Limit: 2}, "b\nc\n\n[Showing lines 2-3 of 4. Use offset=4 to continue.]", 4, 2, "lines"},
		{"a raw window has no notice", "a\nb\nc\n", ReadRequest{Limit: 2, Raw: true}, "a\nb\n", 3, 2, "lines"},
		{"2000 lines", numbered(1, 2000), ReadRequest{}, numbered(1, 2000), 2000, 2000, ""},
		{"2001 lines", numbered(1, 2001), ReadRequest{}, numbered(1, 2000) + "\n[Showing lines 1-2000 of 2001. Use offset=2001 to continue.]", 2001, 2000, "lines"},
		{"a limit above 2000", numbered(1, 3000), ReadRequest{Limit: 2500}, numbered(1, 2000) + "\n[Showing lines 1-2000 of 3000. Use offset=2001 to continue.]", 3000, 2000, "lines"},
		{"raw beyond 2000 lines", numbered(1, 3000), ReadRequest{Limit: 2500, Raw: true}, numbered(1, 2500), 3000, 2500, "lines"},
		{"exactly 50 KiB", strings.Repeat("x", 50<<10), ReadRequest{}, strings.Repeat("x", 50<<10), 1, 1, ""},
		{"a longer line", long, ReadRequest{}, long[:50<<10] + "\n\n[Line 1 has 61440 bytes; the first 51200 are shown. Read with raw for all of it.]", 1, 1, "bytes"},
		{"a longer line before another", long + "\nb\n", ReadRequest{},
			long[:50<<10] + "\n\n[Line 1 has 61441 bytes; the first 51200 are shown. Read with raw for all of it. Use offset=2 to continue with the next line.]", 2, 1, "bytes"},
		{"a longer line that is not shown", long + "\nb\n", ReadRequest{Offset: 2}, "b\n", 2, 1, ""},
		{"lines of more than 50 KiB", strings.Repeat(strings.Repeat("x", 999)+"\n", 100), ReadRequest{},
			strings.TrimSuffix(strings.Repeat(strings.Repeat("x", 999)+"\n", 51), "\n") + "\n\n[Showing lines 1-51 of 100 (50 KiB at a time). Use offset=52 to continue.]", 100, 51, "bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out ReadResult
			if err := out.lines(bufio.NewReaderSize(strings.NewReader(tt.text), 64), tt.request); err != nil {
				t.Fatal(err)
			}
			if string(out.Content) != tt.content {
				t.Errorf("content %.300q (%d bytes), want %.300q (%d bytes)", out.Content, len(out.Content), tt.content, len(tt.content))
			}
			if out.TotalLines != tt.total || out.OutputLines != tt.output || out.TruncatedBy != tt.by || out.Truncated != (tt.by != "") {
				t.Errorf("%d of %d lines, cut by %q", out.OutputLines, out.TotalLines, out.TruncatedBy)
			}
		})
	}
}

// Reading on from where a notice says shows each line once.
func TestNoticesLeadThroughAText(t *testing.T) {
	text := numbered(1, 9000) + strings.Repeat("y", 70<<10) + "\n" + numbered(9002, 9500)
	seen := 0
	for offset := 1; ; {
		var out ReadResult
		if err := out.lines(bufio.NewReader(strings.NewReader(text)), ReadRequest{Offset: offset}); err != nil {
			t.Fatal(err)
		}
		seen += out.OutputLines
		if !out.Truncated {
			break
		}
		_, rest, found := strings.Cut(string(out.Content), "offset=")
		if _, err := fmt.Sscanf(rest, "%d", &offset); !found || err != nil {
			t.Fatalf("no way on: %.300q", out.Content[max(0, len(out.Content)-300):])
		}
	}
	if seen != 9500 {
		t.Errorf("%d lines were shown", seen)
	}
}

func TestOffsetsBeyondTheEnd(t *testing.T) {
	for text, want := range map[string]string{"": "has 0 lines", "a\nb\n": "has 2 lines"} {
		var out ReadResult
		err := out.lines(bufio.NewReader(strings.NewReader(text)), ReadRequest{Offset: 5})
		if !cerrdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "offset 5") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// growing is a file that others make longer while it is read: its text comes again and again.
type growing struct {
	text string
	read int
}

func (g *growing) Read(p []byte) (int, error) {
	if g.read > 2*maxWhole {
		return 0, errors.New("it is read without end")
	}
	for i := range p {
		p[i] = g.text[(g.read+i)%len(g.text)]
	}
	g.read += len(p)
	return len(p), nil
}

// Of a file that grows there is read what it had when it was opened, for which there is room.
func TestReadOfAFileThatGrows(t *testing.T) {
	six := strings.Repeat("line\n", 6)
	for _, tt := range []struct {
		name, text string
		size       int64
		request    ReadRequest
		content    string
		total      int
	}{
		{"empty", "line\n", 0, ReadRequest{}, "", 0},
		{"empty, raw", "line\n", 0, ReadRequest{Raw: true}, "", 0},
		{"text", "line\n", 30, ReadRequest{}, six, 6},
		{"in the middle of a line", "line\n", 7, ReadRequest{}, "line\nli", 2},
		{"a line without end", "x", 100, ReadRequest{}, strings.Repeat("x", 100), 1},
		{"longer than its type needs", "line\n", 2 * sniffed, ReadRequest{Offset: 3000}, strings.Repeat("line\n", 277) + "line", 3277},
		{"a window", "line\n", 30, ReadRequest{Offset: 2, Limit: 2}, "line\nline\n\n[Showing lines 2-3 of 6. Use offset=4 to continue.]", 6},
		{"raw", "line\n", 30, ReadRequest{Raw: true}, six, 6},
		{"a raw window", "line\n", 30, ReadRequest{Raw: true, Limit: 2}, "line\nline\n", 6},
		{"bytes", "line\n", 30, ReadRequest{Binary: true}, six, 0},
		{"a picture", "GIF89a", 12, ReadRequest{}, "GIF89aGIF89a", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			room := maxTextBytes // as agents take
			tt.request.Room = func(bytes int) error { room = bytes; return nil }
			out, file := ReadResult{Bytes: tt.size}, &growing{text: tt.text}
			if err := out.fill(file, tt.request); err != nil {
				t.Fatal(err)
			}
			if string(out.Content) != tt.content || out.TotalLines != tt.total || out.Bytes != tt.size {
				t.Errorf("%.80q of %d bytes, %d lines", out.Content, out.Bytes, out.TotalLines)
			}
			if int64(file.read) > tt.size || len(out.Content) > room {
				t.Errorf("%d bytes were read of %d, and %d answered with room for %d", file.read, tt.size, len(out.Content), room)
			}
		})
	}
}

// A file may be as long as its file system can say, and have nothing in it.
func TestReadOfTheLongestFile(t *testing.T) {
	for name, r := range map[string]ReadRequest{"text": {}, "raw": {Raw: true}, "a raw window": {Raw: true, Limit: 1}, "bytes": {Binary: true}} {
		out := ReadResult{Bytes: math.MaxInt64}
		if err := out.fill(&growing{text: "x"}, r); !cerrdefs.IsOutOfRange(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
