package sandbox

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/policy"
)

// The bounds of a read. A text is cut at whichever of the first two comes first.
const (
	maxLines     = 2000
	maxTextBytes = 50 << 10
	// maxWhole is the largest file that an answer holds whole.
	maxWhole = 32 << 20
	// maxCounted is the largest file whose lines are counted.
	maxCounted = 512 << 20
	// sniffed is how many bytes of a file are read to find its type.
	sniffed = 8 << 10
)

// pictures are the formats that agents can look at.
var pictures = []string{"image/png", "image/jpeg", "image/gif", "image/webp"}

// Read returns a file's content: a picture that agents can look at, text cut to what they can take in,
// or on request all of it.
func (s *Service) Read(ctx context.Context, id string, r ReadRequest) (ReadResult, error) {
	if _, err := s.Get(id); err != nil {
		return ReadResult{}, err
	}
	if (r.Offset != 0 || r.Limit != 0) && r.Binary {
		return ReadResult{}, errs.Invalid("offset and limit count lines and go with text, not with binary")
	}
	if r.Offset < 0 || r.Limit < 0 {
		return ReadResult{}, errs.Invalid("offset %d and limit %d cannot be negative", r.Offset, r.Limit)
	}
	t, err := s.target(ctx, id, "path", r.Path, accessCheck{doing: "read", mode: policy.ReadOnly})
	if err != nil {
		return ReadResult{}, err
	}
	defer t.close()
	file, info, err := t.root.OpenFile(t.name)
	if err != nil {
		return ReadResult{}, t.failed("read", err)
	}
	defer file.Close()
	result := ReadResult{Bytes: info.Size, ResolvedPath: t.hostPath(), DisplayPath: display(t.path)}
	return result, t.failed("read", result.fill(file, r))
}

// fill reads a file that had out.Bytes when it was opened. What others append meanwhile is not read, because it has no bound.
func (out *ReadResult) fill(file io.Reader, r ReadRequest) error {
	file = io.LimitReader(file, out.Bytes)
	head := make([]byte, min(sniffed, out.Bytes))
	n, err := io.ReadFull(file, head)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return errs.WithoutPath(err)
	}
	head = head[:n]
	whole := io.MultiReader(bytes.NewReader(head), file)
	mime := http.DetectContentType(head)
	if r.Room != nil && (r.Raw || r.Binary || slices.Contains(pictures, mime)) {
		if err := r.Room(int(min(out.Bytes, maxWhole))); err != nil {
			return err
		}
	}
	switch {
	case r.Binary:
		return out.take(whole)
	case slices.Contains(pictures, mime) && !r.Raw:
		out.MimeType = mime
		return out.take(whole)
	case bytes.IndexByte(head, 0) >= 0:
		return errs.Invalid("it is not text: it has NUL bytes; read it with binary, or download it")
	}
	out.IsText = true
	if r.Raw && r.Offset == 0 && r.Limit == 0 {
		if err := out.take(whole); err != nil {
			return err
		}
		out.TotalLines = lineCount(out.Content)
		out.OutputLines = out.TotalLines
		return nil
	}
	if out.Bytes > maxCounted {
		return errs.TooLarge("it has %d bytes, too many to count its lines; download it, or a part of it", out.Bytes)
	}
	return out.lines(bufio.NewReaderSize(whole, 64<<10), r)
}

// take reads a file whole. It may have become shorter since its size was read.
func (out *ReadResult) take(file io.Reader) error {
	if out.Bytes > maxWhole {
		return errs.TooLarge("it has %d bytes, more than %d; download it, or a part of it", out.Bytes, maxWhole)
	}
	content := bytes.NewBuffer(make([]byte, 0, out.Bytes+bytes.MinRead))
	if _, err := content.ReadFrom(file); err != nil {
		return errs.WithoutPath(err)
	}
	out.Content, out.Bytes = content.Bytes(), int64(content.Len())
	return nil
}

func lineCount(text []byte) int {
	n := bytes.Count(text, []byte{'\n'})
	if len(text) > 0 && text[len(text)-1] != '\n' {
		n++
	}
	return n
}

// window is the part of a text that a read shows.
type window struct {
	first, limit, bytes int // the first line from 1, the most lines, the most bytes
	content             []byte
	shown               int
	by                  string // why it ended before the text did: lines, bytes, limit, or empty
	long                int    // the size of a single line that was cut, or 0
}

// lines shows a window of a text and counts all of its lines.
func (out *ReadResult) lines(file *bufio.Reader, r ReadRequest) error {
	w := window{first: max(r.Offset, 1), limit: r.Limit, bytes: maxTextBytes}
	if r.Raw {
		w.bytes = maxWhole
	}
	total := 0
	for {
		size, part, err := w.line(file, total+1)
		if err != nil && err != io.EOF {
			return errs.WithoutPath(err)
		}
		if size > 0 {
			total++
			w.add(total, part, size, r.Raw)
		}
		if err == io.EOF {
			break
		}
	}
	if w.first > max(total, 1) {
		return errs.Invalid("offset %d is beyond the end: the file has %d lines", w.first, total)
	}
	out.TotalLines, out.OutputLines, out.Content = total, w.shown, w.content
	if w.by != "" {
		out.Truncated = true
		out.TruncatedBy = w.by
		if w.by == byLimit {
			out.TruncatedBy = "lines"
		}
		if !r.Raw {
			out.Content = append(bytes.TrimSuffix(out.Content, []byte{'\n'}), w.notice(total)...)
		}
	}
	return nil
}

const byLimit = "limit"

// line reads to the next newline. part is as much of the line as the window may need; the rest, and lines
// outside the window, are only counted.
func (w *window) line(file *bufio.Reader, number int) (size int, part []byte, err error) {
	for {
		chunk, err := file.ReadSlice('\n')
		size += len(chunk)
		if w.by == "" && number >= w.first {
			if room := w.bytes + 1 - len(part); room > 0 {
				part = append(part, chunk[:min(room, len(chunk))]...)
			}
		}
		if err == bufio.ErrBufferFull {
			continue
		}
		return size, part, err
	}
}

// add adds a line to the window if it belongs there and fits.
func (w *window) add(number int, part []byte, size int, raw bool) {
	if number < w.first || w.by != "" {
		return
	}
	switch {
	case w.limit > 0 && w.shown == w.limit:
		w.by = byLimit
	case !raw && w.shown == maxLines:
		w.by = "lines"
	case len(w.content)+size > w.bytes && w.shown > 0:
		w.by = "bytes"
	case size > w.bytes:
		w.content, w.shown, w.by, w.long = append(w.content, part[:w.bytes]...), 1, "bytes", size
	default:
		w.content = append(w.content, part...)
		w.shown++
	}
}

// notice says what was shown and how to go on.
func (w *window) notice(total int) string {
	last := w.first + w.shown - 1
	if w.long > 0 {
		text := fmt.Sprintf("\n\n[Line %d has %d bytes; the first %d are shown. Read with raw for all of it.", w.first, w.long, w.bytes)
		if last < total {
			text += fmt.Sprintf(" Use offset=%d to continue with the next line.", last+1)
		}
		return text + "]"
	}
	why := ""
	if w.by == "bytes" {
		why = fmt.Sprintf(" (%d KiB at a time)", maxTextBytes>>10)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n\n[Showing lines %d-%d of %d%s. Use offset=%d to continue.]", w.first, last, total, why, last+1)
	return b.String()
}
