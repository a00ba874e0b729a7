package files

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"unicode/utf8"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/picture"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/internal/utf8cut"
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

// ImageBounds are the bounds of an image that a read returns.
type ImageBounds struct {
	// Bytes is the most that its file has; Pixels the most in its width and in its height.
	Bytes  int64
	Pixels int
}

// Read returns a file's content: a picture that agents can look at, text cut to what they can take
// in, or on request all of it. What is neither is returned as bytes.
func (f *Files) Read(ctx context.Context, id string, r ReadRequest) (ReadResult, error) {
	if _, err := f.sandboxes.Find(id); err != nil {
		return ReadResult{}, err
	}
	if r.lines() && r.Binary {
		return ReadResult{},
			errs.Invalid("offset, skipBytes and limit are for text, not for binary")
	}
	if r.Lossy && r.Binary {
		return ReadResult{},
			errs.Invalid("text and binary are both set; a file is read as the one or the other")
	}
	if r.Offset < 0 || r.SkipBytes < 0 || r.Limit < 0 {
		return ReadResult{}, errs.Invalid("offset %d, skipBytes %d and limit %d cannot be negative",
			r.Offset, r.SkipBytes, r.Limit)
	}
	t, err := f.target(ctx, id, "path", Where{r.Path, r.Follow, r.Permissions},
		accessCheck{doing: "read", mode: policy.ReadOnly, last: linkIf(r.Follow, refuseLink)})
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
	return result, t.failed("read", result.fill(file, r, *f.images.Load()))
}

// lines reports whether the request is for certain lines.
func (r ReadRequest) lines() bool { return r.Offset != 0 || r.SkipBytes != 0 || r.Limit != 0 }

// fill reads a file that had out.Bytes when it was opened. What others append meanwhile is not
// read, because it has no bound.
func (out *ReadResult) fill(file io.ReadSeeker, r ReadRequest, bounds ImageBounds) error {
	if r.Binary {
		return out.take(file, r)
	}
	if !r.Raw {
		if done, err := out.image(file, r, bounds); done || err != nil {
			return err
		}
	}
	err := out.text(file, r)
	if !errors.Is(err, errNotText) {
		return err
	}
	if r.lines() {
		return errs.Invalid(
			"it is not text in UTF-8, so it has no lines; read it without offset, skipBytes and limit, or set text to lossy")
	}
	*out = ReadResult{Bytes: out.Bytes, ResolvedPath: out.ResolvedPath,
		DisplayPath: out.DisplayPath}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return errs.WithoutPath(err)
	}
	if err := out.take(file, r); err != nil {
		return err
	}
	out.Encoding = encodingOf(out.Content)
	return nil
}

// image takes a file that is a picture, and reports whether it is one. Otherwise the file is at its
// beginning again.
func (out *ReadResult) image(file io.ReadSeeker, r ReadRequest, bounds ImageBounds) (bool, error) {
	head := make([]byte, min(sniffed, out.Bytes))
	n, err := io.ReadFull(file, head)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return false, errs.WithoutPath(err)
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return false, errs.WithoutPath(err)
	}
	mime := http.DetectContentType(head[:n])
	if !slices.Contains(pictures, mime) {
		return false, nil
	}
	if out.Bytes > bounds.Bytes {
		return false,
			errs.TooLarge(
				"it begins like a picture (%s) and has %d bytes, more than %d (read.maxImage); read it with binary, or download it",
				mime, out.Bytes, bounds.Bytes)
	}
	whole := *out
	if err := whole.take(file, r); err != nil {
		return false, err
	}
	found, ok := picture.Parse(whole.Content)
	switch {
	case !ok:
		_, err := file.Seek(0, io.SeekStart)
		return false, err
	case max(found.Width, found.Height) > bounds.Pixels:
		return false,
			errs.TooLarge(
				"it is a picture (%s) of %d by %d pixels, more than %d (read.maxImage); read it with binary, or download it",
				found.MIMEType, found.Width, found.Height, bounds.Pixels)
	}
	*out = whole
	out.MimeType = found.MIMEType
	return true, nil
}

// text reads a file as text. The error is errNotText if it is none.
func (out *ReadResult) text(file io.Reader, r ReadRequest) error {
	out.IsText = true
	if r.Raw && !r.lines() {
		if err := out.take(file, r); err != nil {
			return err
		}
		if !r.Lossy && (!utf8.Valid(out.Content) || bytes.IndexByte(out.Content, 0) >= 0) {
			return errNotText
		}
		out.TotalLines = lineCount(out.Content)
		out.OutputLines = out.TotalLines
		return nil
	}
	if out.Bytes > maxCounted {
		return errs.TooLarge(
			"it has %d bytes, too many to count its lines; download it, or a part of it", out.Bytes)
	}
	if r.Raw && r.Room != nil {
		if err := r.Room(int(min(out.Bytes, maxWhole))); err != nil {
			return err
		}
	}
	file = io.LimitReader(file, out.Bytes)
	if !r.Lossy {
		file = &utf8Reader{from: file}
	}
	return out.lines(bufio.NewReaderSize(file, 64<<10), r)
}

// take reads a file whole. It may have become shorter since its size was read.
func (out *ReadResult) take(file io.Reader, r ReadRequest) error {
	if r.Room != nil {
		if err := r.Room(int(min(out.Bytes, maxWhole))); err != nil {
			return err
		}
	}
	if out.Bytes > maxWhole {
		return errs.TooLarge("it has %d bytes, more than %d; download it, or a part of it",
			out.Bytes, maxWhole)
	}
	content := bytes.NewBuffer(make([]byte, 0, out.Bytes+bytes.MinRead))
	if _, err := content.ReadFrom(io.LimitReader(file, out.Bytes)); err != nil {
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
	first, skip, limit, bytes int // the first line from 1, how much of it is left out, the most lines, the most bytes
	content                   []byte
	shown                     int
	by                        string // why it ended before the text did: lines, bytes, limit, or empty
	long                      int    // the size of a single line that was cut, or 0
}

// lines shows a window of a text and counts all of its lines.
func (out *ReadResult) lines(file *bufio.Reader, r ReadRequest) error {
	w := window{first: max(r.Offset, 1), skip: r.SkipBytes, limit: r.Limit, bytes: maxTextBytes}
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
			if total == w.first && w.skip > 0 && w.skip >= size {
				return errs.Invalid("skipBytes %d is beyond the end: line %d has %d bytes", w.skip,
					total, size)
			}
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
		out.Next, out.Notice = w.next(total)
	}
	return nil
}

const byLimit = "limit"

// line reads to the next newline. part is as much of the line as the window may need; the rest, and
// lines outside the window, are only counted.
func (w *window) line(file *bufio.Reader, number int) (size int, part []byte, err error) {
	for {
		chunk, err := file.ReadSlice('\n')
		before := size
		size += len(chunk)
		if w.by == "" && number >= w.first {
			if number == w.first {
				chunk = chunk[min(max(w.skip-before, 0), len(chunk)):]
			}
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
	left := size
	if number == w.first && w.skip > 0 {
		whole := utf8cut.Begin(part)
		w.skip, part = w.skip+len(part)-len(whole), whole
		left -= w.skip
	}
	switch {
	case w.limit > 0 && w.shown == w.limit:
		w.by = byLimit
	case !raw && w.shown == maxLines:
		w.by = "lines"
	case len(w.content)+left > w.bytes && w.shown > 0:
		w.by = "bytes"
	case left > w.bytes:
		w.content, w.shown, w.by, w.long = utf8cut.Head(part, w.bytes), 1, "bytes", size
	default:
		w.content = append(w.content, part...)
		w.shown++
	}
}

// next says how to go on after the window.
func (w *window) next(total int) (*ReadOn, string) {
	last := w.first + w.shown - 1
	if w.long > 0 {
		on := &ReadOn{Offset: w.first, SkipBytes: w.skip + len(w.content)}
		return on, fmt.Sprintf(
			"Bytes %d to %d of the %d in line %d are shown, of %d lines. Read on with offset %d and skipBytes %d.",
			w.skip+1, on.SkipBytes, w.long, w.first, total, on.Offset, on.SkipBytes)
	}
	why := ""
	if w.by == "bytes" {
		why = fmt.Sprintf(" (%d KiB at a time)", w.bytes>>10)
	}
	on := &ReadOn{Offset: last + 1}
	return on, fmt.Sprintf("Lines %d to %d of %d are shown%s. Read on with offset %d.", w.first,
		last, total, why, on.Offset)
}
