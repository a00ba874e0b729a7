package files

import (
	"bytes"
	"errors"
	"io"
	"unicode/utf8"

	"github.com/daycare-run/sandbox/internal/utf8cut"
)

// errNotText says that a file is not UTF-8, or has NUL bytes.
var errNotText = errors.New("it is not text")

// utf8Reader passes a text on, and fails with errNotText where it is none.
type utf8Reader struct {
	from io.Reader
	rest []byte // the beginning of a character whose end is still to come
}

func (u *utf8Reader) Read(p []byte) (int, error) {
	n, err := u.from.Read(p)
	chunk := p[:n]
	for len(u.rest) > 0 && len(chunk) > 0 && !utf8.FullRune(u.rest) {
		u.rest, chunk = append(u.rest, chunk[0]), chunk[1:]
	}
	if utf8.FullRune(u.rest) {
		if !utf8.Valid(u.rest) {
			return 0, errNotText
		}
		u.rest = u.rest[:0]
	}
	if len(u.rest) == 0 {
		whole := utf8cut.Whole(chunk)
		u.rest, chunk = append(u.rest, chunk[whole:]...), chunk[:whole]
	}
	if !utf8.Valid(chunk) || bytes.IndexByte(chunk, 0) >= 0 || err == io.EOF && len(u.rest) > 0 {
		return 0, errNotText
	}
	return n, err
}

// encodingOf returns the encoding that a text's mark at its beginning names, or "".
func encodingOf(content []byte) string {
	for _, mark := range []struct{ bytes, encoding string }{
		{"\xff\xfe\x00\x00", "utf-32le"}, {"\x00\x00\xfe\xff", "utf-32be"},
		{"\xff\xfe", "utf-16le"}, {"\xfe\xff", "utf-16be"},
	} {
		if bytes.HasPrefix(content, []byte(mark.bytes)) {
			return mark.encoding
		}
	}
	return ""
}
