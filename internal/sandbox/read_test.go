package sandbox

import (
	"bufio"
	"fmt"
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
