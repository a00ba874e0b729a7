package archive

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"

	"github.com/daycare-run/sandbox/internal/errs"
)

// Reader reads an archive that somebody else has made. Its errors are of class ErrInvalidArgument
// for what an archive must not have, and name the entry.
type Reader struct {
	from    io.Reader
	tar     *tar.Reader
	entries int
	left    LeftOut
	skipped int64
}

// NewReader returns a reader of an archive.
func NewReader(from io.Reader) *Reader { return &Reader{from: from, tar: tar.NewReader(from)} }

// LeftOut returns what the archive itself says that it does not have, as far as it was read.
func (r *Reader) LeftOut() LeftOut { return r.left }

// Skipped counts the FIFOs that Next has passed over.
func (r *Reader) Skipped() int64 { return r.skipped }

// Read reads the content of the file that Next has returned.
func (r *Reader) Read(p []byte) (int, error) {
	n, err := r.tar.Read(p)
	if err != nil && err != io.EOF {
		err = faulty(err)
	}
	return n, err
}

// maxRest is how many bytes may come after the end of an archive: programs fill the last block up.
const maxRest = 1 << 20

// Next returns the next entry; io.EOF at the end of the archive, when everything was read.
func (r *Reader) Next() (Entry, error) {
	for {
		head, err := r.tar.Next()
		if errors.Is(err, io.EOF) {
			return Entry{}, r.end()
		}
		if err != nil {
			return Entry{}, faulty(err)
		}
		if head.Typeflag == tar.TypeXGlobalHeader {
			if err := r.records(head.PAXRecords); err != nil {
				return Entry{}, err
			}
			continue
		}
		if r.entries++; r.entries > MaxEntries {
			return Entry{}, tooMany()
		}
		if head.Typeflag == tar.TypeFifo {
			r.skipped++
			continue
		}
		return entry(head)
	}
}

// end reads what comes after the archive, so that the sender comes to its end, too.
func (r *Reader) end() error {
	n, err := io.CopyN(io.Discard, r.from, maxRest+1)
	switch {
	case err == nil || n > maxRest:
		return errs.Invalid("more than %d bytes come after the end of the archive", maxRest)
	case !errors.Is(err, io.EOF):
		return err
	}
	return io.EOF
}

func (r *Reader) records(records map[string]string) error {
	if why, is := records[failed]; is {
		return errs.Invalid("the archive ends early: %.1000s", strings.ToValidUTF8(why, "\uFFFD"))
	}
	for _, part := range r.left.counts() {
		if text, is := records[part.key]; is {
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil || n < 0 {
				return errs.Invalid("the archive's %s is %.20q, not a number", part.key, text)
			}
			*part.count = n
		}
	}
	return nil
}

// entry converts a header, and refuses what no archive of ours has.
func entry(head *tar.Header) (Entry, error) {
	name := strings.TrimSuffix(head.Name, "/")
	for strings.HasPrefix(name, "./") {
		name = name[2:]
	}
	if err := Check(name); err != nil {
		return Entry{}, err
	}
	for key := range head.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return Entry{},
				errs.Invalid(
					"%s is a sparse file, which an archive here does not have; make it without --sparse",
					quoted(name))
		}
	}
	e := Entry{Name: name, Mode: fs.FileMode(head.Mode & 0o777)}
	switch head.Typeflag {
	case tar.TypeDir:
		e.Kind = Directory
	case tar.TypeReg:
		e.Kind, e.Size = File, head.Size
	case tar.TypeSymlink:
		if e.Kind, e.Text = Link, head.Linkname; e.Text == "" || len(e.Text) > maxName ||
			strings.Contains(e.Text, "\x00") {
			return Entry{}, errs.Invalid("the symbolic link %s says %s, which no link can",
				quoted(name), quoted(e.Text))
		}
	case tar.TypeLink:
		return Entry{},
			errs.Invalid("%s is a hard link to %s; make the archive with --hard-dereference",
				quoted(name), quoted(head.Linkname))
	case tar.TypeChar, tar.TypeBlock:
		return Entry{}, errs.Invalid("%s is a device", quoted(name))
	case tar.TypeGNUSparse:
		return Entry{},
			errs.Invalid(
				"%s is a sparse file, which an archive here does not have; make it without --sparse",
				quoted(name))
	default:
		return Entry{},
			errs.Invalid(
				"%s is of the type %q, and neither a directory nor a file nor a symbolic link",
				quoted(name), head.Typeflag)
	}
	if name == "." && e.Kind != Directory {
		return Entry{}, errs.Invalid(`the entry "." is no directory`)
	}
	return e, nil
}

// faulty gives an error of archive/tar its class. Others are of where the archive comes from.
func faulty(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrFieldTooLong) ||
		errors.Is(err, tar.ErrInsecurePath) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errs.Invalid("the archive is no valid tar archive, or cut short: %v", err)
	}
	return fmt.Errorf("cannot read the archive: %w", err)
}
