package archive

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/daycare-run/sandbox/internal/errs"
)

// copyBuffer is how much of a file is in memory.
const copyBuffer = 256 << 10

// Writer writes an archive.
type Writer struct {
	tar     *tar.Writer
	entries int
	buffer  []byte
}

// NewWriter returns a writer of an archive. End or Fail ends it.
func NewWriter(to io.Writer) *Writer {
	return &Writer{tar: tar.NewWriter(to), buffer: make([]byte, copyBuffer)}
}

// ErrShorter is the error for a file that has fewer bytes than its entry says: there is no way to
// go on.
var ErrShorter = errors.New("it got shorter while it was copied")

// Add writes an entry; content is that of a file, and not read beyond its size. The error is of
// class ErrInvalidArgument if the archive would be larger than allowed; then it can be ended by
// Fail.
func (w *Writer) Add(e Entry, content io.Reader) error {
	if err := Check(e.Name); err != nil {
		return err
	}
	if w.entries++; w.entries > MaxEntries {
		return tooMany()
	}
	head := tar.Header{Name: e.Name, Mode: int64(e.Mode.Perm()), ModTime: e.ModTime}
	switch e.Kind {
	case Directory:
		head.Typeflag, head.Name = tar.TypeDir, e.Name+"/"
	case Link:
		head.Typeflag, head.Linkname = tar.TypeSymlink, e.Text
	case File:
		head.Typeflag, head.Size = tar.TypeReg, e.Size
	}
	if err := w.tar.WriteHeader(&head); err != nil {
		return fmt.Errorf("cannot write %s to the archive: %w", quoted(e.Name), err)
	}
	if e.Kind != File || e.Size == 0 {
		return nil
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{w.tar}, io.LimitReader(content, e.Size), w.buffer)
	if err == nil && n < e.Size {
		err = ErrShorter
	}
	if err != nil {
		return fmt.Errorf("cannot copy %s: %w", quoted(e.Name), errs.WithoutPath(err))
	}
	return nil
}

// End writes what was left out, and the archive's end.
func (w *Writer) End(left LeftOut) error {
	records := map[string]string{}
	for _, part := range left.counts() {
		if *part.count > 0 {
			records[part.key] = strconv.FormatInt(*part.count, 10)
		}
	}
	if err := w.record(records); err != nil {
		return err
	}
	return w.tar.Close()
}

// Fail writes why the archive ends here, and not its end.
func (w *Writer) Fail(why string) error {
	if err := w.record(map[string]string{failed: why}); err != nil {
		return err
	}
	return w.tar.Flush()
}

// record writes a global header, which other readers of tar pass over.
func (w *Writer) record(records map[string]string) error {
	if len(records) == 0 {
		return nil
	}
	return w.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: records})
}

func tooMany() error {
	return errs.Invalid("the archive has more than %d entries; copy it in parts", MaxEntries)
}

func plural(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.FormatInt(n, 10) + " " + many
}

// quoted returns a name in quotes, cut to a length that fits a message.
func quoted(name string) string {
	const limit = 200
	if len(name) > limit {
		return fmt.Sprintf("%q...", name[:limit])
	}
	return strconv.Quote(name)
}
