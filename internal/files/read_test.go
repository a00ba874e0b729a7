package files

import (
	"bufio"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

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
		{"fewer lines", "a\nb\nc\n", ReadRequest{Limit: 2}, "a\nb\n", 3, 2, "lines"},
		{"a window", "a\nb\nc\nd\n", ReadRequest{Offset: 2, Limit: 2}, "b\nc\n", 4, 2, "lines"},
		{"a raw window has no notice", "a\nb\nc\n", ReadRequest{Limit: 2, Raw: true}, "a\nb\n", 3, 2, "lines"},
		{"2000 lines", numbered(1, 2000), ReadRequest{}, numbered(1, 2000), 2000, 2000, ""},
		{"2001 lines", numbered(1, 2001), ReadRequest{}, numbered(1, 2000), 2001, 2000, "lines"},
		{"a limit above 2000", numbered(1, 3000), ReadRequest{Limit: 2500}, numbered(1, 2000), 3000, 2000, "lines"},
		{"raw beyond 2000 lines", numbered(1, 3000), ReadRequest{Limit: 2500, Raw: true}, numbered(1, 2500), 3000, 2500, "lines"},
		{"exactly 50 KiB", strings.Repeat("x", 50<<10), ReadRequest{}, strings.Repeat("x", 50<<10), 1, 1, ""},
		{"a longer line", long, ReadRequest{}, long[:50<<10], 1, 1, "bytes"},
		{"a longer line before another", long + "\nb\n", ReadRequest{}, long[:50<<10], 2, 1, "bytes"},
		{"the rest of a longer line", long + "\nb\n", ReadRequest{SkipBytes: 60<<10 - 3}, "xxx\nb\n", 2, 2, ""},
		{"the rest of the second line", "a\nbcd\n", ReadRequest{Offset: 2, SkipBytes: 1}, "cd\n", 2, 1, ""},
		{"not in a character", "é" + long, ReadRequest{SkipBytes: 1}, long[:50<<10], 1, 1, "bytes"},
		{"cut before a character", long[:50<<10-1] + "€uro", ReadRequest{}, long[:50<<10-1], 1, 1, "bytes"},
		{"a longer line that is not shown", long + "\nb\n", ReadRequest{Offset: 2}, "b\n", 2, 1, ""},
		{"lines of more than 50 KiB", strings.Repeat(strings.Repeat("x", 999)+"\n", 100), ReadRequest{}, strings.Repeat(strings.Repeat("x", 999)+"\n", 51), 100, 51, "bytes"},
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

// Reading on from where an answer says shows each byte once, and each character whole.
func TestAnswersLeadThroughAText(t *testing.T) {
	text := numbered(1, 9000) + strings.Repeat("ü€😀", 30<<10) + "\n" + numbered(9002, 9500) + strings.Repeat("ö", 60<<10)
	all := ""
	for r := (ReadRequest{}); ; {
		var out ReadResult
		if err := out.lines(bufio.NewReader(strings.NewReader(text)), r); err != nil {
			t.Fatal(err)
		}
		if all += string(out.Content); !utf8.Valid(out.Content) {
			t.Fatal("a character was cut")
		}
		if out.Truncated != (out.Next != nil) || out.Truncated != (out.Notice != "") {
			t.Fatalf("%v %+v %q", out.Truncated, out.Next, out.Notice)
		}
		if out.Next == nil {
			break
		}
		if want := fmt.Sprintf("offset %d", out.Next.Offset); !strings.Contains(out.Notice, want) {
			t.Errorf("%q does not say %s", out.Notice, want)
		}
		r.Offset, r.SkipBytes = out.Next.Offset, out.Next.SkipBytes
	}
	if all != text {
		t.Errorf("%d bytes were shown, want %d", len(all), len(text))
	}
}

// What is not UTF-8 is not changed: it comes as bytes, unless it is asked for as a text.
func TestInvalidUTF8ComesAsBytes(t *testing.T) {
	const far = 20 << 10 // beyond what a file's type is told by
	plain := strings.Repeat("line\n", far/5)
	for _, tt := range []struct {
		name, content string
		text          bool
		encoding      string
	}{
		{"text", plain, true, ""},
		{"with a mark", "\ufeff" + plain, true, ""},
		{"Latin-1", "caf\xe9\n", false, ""},
		{"Latin-1, far away", plain + "caf\xe9\n", false, ""},
		{"NUL, far away", plain + "\x00", false, ""},
		{"a cut character at the end", plain + "\xe2\x82", false, ""},
		{"UTF-16", "\xff\xfea\x00", false, "utf-16le"},
		{"UTF-16, the other way", "\xfe\xff\x00a", false, "utf-16be"},
		{"UTF-32", "\xff\xfe\x00\x00a\x00\x00\x00", false, "utf-32le"},
	} {
		for _, r := range []ReadRequest{{}, {Raw: true}, {Raw: true, Limit: 1}, {Lossy: true}, {Binary: true}} {
			out := ReadResult{Bytes: int64(len(tt.content))}
			err := out.fill(strings.NewReader(tt.content), r, testImages)
			switch {
			case !tt.text && r.Limit > 0:
				if !cerrdefs.IsInvalidArgument(err) {
					t.Errorf("%s %+v: %v", tt.name, r, err)
				}
			case err != nil || out.IsText != (tt.text && !r.Binary || r.Lossy):
				t.Errorf("%s %+v: text %v, %v", tt.name, r, out.IsText, err)
			case !out.IsText && (string(out.Content) != tt.content || !r.Binary && out.Encoding != tt.encoding):
				t.Errorf("%s %+v: %.20q, %s", tt.name, r, out.Content, out.Encoding)
			}
		}
	}
}

var testImages = ImageBounds{Bytes: 5_000_000, Pixels: 8000}

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
	text       string
	read, most int
}

func (g *growing) Read(p []byte) (int, error) {
	if g.read > 4*maxWhole {
		return 0, errors.New("it is read without end")
	}
	for i := range p {
		p[i] = g.text[(g.read+i)%len(g.text)]
	}
	g.read += len(p)
	return len(p), nil
}

func (g *growing) Seek(int64, int) (int64, error) {
	g.most, g.read = max(g.most, g.read), 0 // to the beginning
	return 0, nil
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
		{"a window", "line\n", 30, ReadRequest{Offset: 2, Limit: 2}, "line\nline\n", 6},
		{"raw", "line\n", 30, ReadRequest{Raw: true}, six, 6},
		{"a raw window", "line\n", 30, ReadRequest{Raw: true, Limit: 2}, "line\nline\n", 6},
		{"bytes", "line\n", 30, ReadRequest{Binary: true}, six, 0},
		{"as a picture begins", "GIF89a", 12, ReadRequest{}, "GIF89aGIF89a", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			room := maxTextBytes // as agents take
			tt.request.Room = func(bytes int) error { room = bytes; return nil }
			out, file := ReadResult{Bytes: tt.size}, &growing{text: tt.text}
			if err := out.fill(file, tt.request, testImages); err != nil {
				t.Fatal(err)
			}
			if string(out.Content) != tt.content || out.TotalLines != tt.total || out.Bytes != tt.size {
				t.Errorf("%.80q of %d bytes, %d lines", out.Content, out.Bytes, out.TotalLines)
			}
			if int64(max(file.read, file.most)) > tt.size || len(out.Content) > room {
				t.Errorf("%d bytes were read of %d, and %d answered with room for %d", file.read, tt.size, len(out.Content), room)
			}
		})
	}
}

// A file may be as long as its file system can say, and have nothing in it.
func TestReadOfTheLongestFile(t *testing.T) {
	for name, r := range map[string]ReadRequest{"text": {}, "raw": {Raw: true}, "a raw window": {Raw: true, Limit: 1}, "bytes": {Binary: true}} {
		out := ReadResult{Bytes: math.MaxInt64}
		if err := out.fill(&growing{text: "x"}, r, testImages); !cerrdefs.IsOutOfRange(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
