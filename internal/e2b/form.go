package e2b

import (
	"bufio"
	"io"
	"mime"
	"mime/multipart"
)

const (
	// formBuffer is how much of a form is read at once, in bytes: its parser asks for 5 KiB, and
	// each read from a connection costs a system call and a deadline.
	formBuffer = 256 << 10
	// maxPartHeader is how many bytes may come from the end of one part to the end of the next
	// one's header: mime/multipart alone would allow ten mebibytes.
	maxPartHeader = 64 << 10
)

var errPartHeader = invalid("a part of the form has a header of more than %d bytes", maxPartHeader)

// formReader reads the parts of a form, one after the other.
type formReader struct {
	parts *multipart.Reader
	from  *headerReader
	part  *multipart.Part // the last one; nil before the first
}

func newFormReader(body io.Reader, boundary string) *formReader {
	from := &headerReader{Reader: bufio.NewReaderSize(body, formBuffer)}
	return &formReader{parts: multipart.NewReader(from, boundary), from: from}
}

// next returns a part with the parameters of its Content-Disposition, and io.EOF after the last
// one. What was left of the part before is dropped.
func (f *formReader) next() (body io.Reader, parameters map[string]string, err error) {
	if f.part != nil {
		// NextRawPart would do so itself, and a body may be of any size.
		if _, err := io.Copy(io.Discard, f.part); err != nil {
			return nil, nil, invalid("the form is broken: %v", err)
		}
	}
	f.from.inHeader, f.from.left = true, maxPartHeader
	f.part, err = f.parts.NextRawPart()
	f.from.inHeader = false
	switch {
	case f.from.over: // the parser may have returned another error for that
		return nil, nil, errPartHeader
	case err == io.EOF:
		return nil, nil, io.EOF
	case err != nil:
		return nil, nil, invalid("the form is broken: %v", err)
	}
	// FileName would drop all but the last component.
	_, parameters, _ = mime.ParseMediaType(f.part.Header.Get("Content-Disposition"))
	f.part.Header = nil // a header of many lines is several times as large in memory
	return f.part, parameters, nil
}

// headerReader fails with errPartHeader when a header is longer than what is left for it. It does
// not count bodies.
type headerReader struct {
	io.Reader
	inHeader bool
	left     int
	over     bool
}

func (r *headerReader) Read(p []byte) (int, error) {
	if !r.inHeader {
		return r.Reader.Read(p)
	}
	if r.left == 0 {
		r.over = true
		return 0, errPartHeader
	}
	n, err := r.Reader.Read(p[:min(len(p), r.left)])
	r.left -= n
	return n, err
}
