package api

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/files"
	"github.com/daycare-run/sandbox/internal/pace"
)

// octets is the media type of a file's bytes.
const octets = "application/octet-stream"

// upload writes the body to a file as it arrives.
func (s *server) upload(w http.ResponseWriter, req *http.Request) error {
	query, err := fileQuery(req, "path", "exclusive", "follow", "mode")
	if err != nil {
		return err
	}
	exclusive, err := boolean(query, "exclusive")
	if err != nil {
		return err
	}
	follow, err := boolean(query, "follow")
	if err != nil {
		return err
	}
	mode, err := fileMode(query)
	if err != nil {
		return err
	}
	if err := bodyIs(req, octets); err != nil {
		return err
	}
	body := &uploadBody{from: req.Body, control: http.NewResponseController(w)}
	written, err := s.service.Write(req.Context(), req.PathValue("id"), files.WriteRequest{
		Path: query["path"], Follow: follow, Exclusive: exclusive, Mode: mode, Body: body,
	})
	if failed, err := s.sent(w, body, err); failed {
		return err
	}
	s.answer(w, http.StatusOK, types.Written(written))
	return nil
}

// bodyIs returns an error if the body says that it is of another media type.
func bodyIs(req *http.Request, media string) error {
	kind := req.Header.Get("Content-Type")
	if kind == "" {
		return nil
	}
	if is, _, err := mime.ParseMediaType(kind); err != nil || is != media {
		return fmt.Errorf("the body has Content-Type %q, not %s: %w", kind, media,
			cerrdefs.ErrInvalidArgument)
	}
	return nil
}

// sent reports whether a call whose body goes to files has failed, and returns its error.
func (s *server) sent(w http.ResponseWriter, body *uploadBody, err error) (bool, error) {
	switch {
	case body.fault != nil:
		return true, fmt.Errorf("the body was cut short: %v: %w", body.fault,
			cerrdefs.ErrInvalidArgument)
	case err != nil && body.begun:
		w.Header().Set("Connection", "close") // the rest of the body is not a request
		s.fail(w, err)
		body.drain()
		return true, reportedError{err}
	}
	return err != nil, err
}

// fileMode returns the parameter mode, or 0 if it is missing.
func fileMode(query map[string]string) (fs.FileMode, error) {
	text, given := query["mode"]
	if !given {
		return 0, nil
	}
	bits, err := strconv.ParseUint(text, 8, 9)
	if err != nil || bits&0o400 == 0 {
		return 0, unreadable("mode", text,
			"no permission bits in octal that let the owner read, such as 0644")
	}
	return fs.FileMode(bits), nil
}

// lingering is how long a caller whose upload has failed may go on sending.
const lingering = 5 * time.Second

// drain reads the rest of a body after the answer: a caller that is still sending would otherwise
// find the connection broken, and might never read the answer.
func (b *uploadBody) drain() {
	_ = b.control.Flush()
	from := b.from
	if rest, ok := from.(*pace.Sent); ok {
		from = rest.Linger(lingering)
	}
	_, _ = io.Copy(io.Discard, from)
}

// uploadBody is a request's body on its way to a file. There is no buffer in between: a reader with
// a large buffer gets everything that the socket holds at once.
type uploadBody struct {
	from    io.Reader
	control *http.ResponseController
	begun   bool
	fault   error // why it could not be read to its end
}

func (b *uploadBody) Read(p []byte) (int, error) {
	if !b.begun {
		// Without full duplex, the server ends the body when the answer begins. It is not enabled
		// earlier: if nobody had begun to read the body, the server would read the next request
		// while it still reads this one.
		_ = b.control.EnableFullDuplex()
		b.begun = true
	}
	n, err := b.from.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		b.fault = err
	}
	return n, err
}

// download sends a file, or the requested range of it.
func (s *server) download(w http.ResponseWriter, req *http.Request) error {
	query, err := fileQuery(req, "path", "follow")
	if err != nil {
		return err
	}
	follow, err := boolean(query, "follow")
	if err != nil {
		return err
	}
	file, err := s.service.Download(req.Context(), req.PathValue("id"),
		files.Where{Path: query["path"], Follow: follow})
	if err != nil {
		return err
	}
	defer file.Close()
	head := w.Header()
	head.Set("Content-Type", octets)
	head.Set("X-Content-Type-Options", "nosniff")
	head.Set("X-File-Mode", fmt.Sprintf("%04o", file.Mode))
	head.Set("Content-Disposition", disposition(file.Name))
	out, modified := &contentWriter{ResponseWriter: w}, sayable(file.ModTime)
	http.ServeContent(out, req, "", modified, file.ReadSeekCloser)
	if out.refused != 0 {
		head.Del("Content-Disposition")
		head.Del("X-File-Mode")
	}
	switch out.refused {
	case 0:
		return nil
	case http.StatusRequestedRangeNotSatisfiable:
		return fmt.Errorf("the range %.200q is not in the file, which has %d bytes: %w",
			req.Header.Get("Range"), file.Size, errBeyond)
	case http.StatusPreconditionFailed:
		return fmt.Errorf("the file was changed at %s: %w", modified.Format(http.TimeFormat),
			errChanged)
	default:
		return errors.New("cannot read the file")
	}
}

func disposition(name string) string {
	return mime.FormatMediaType("attachment",
		map[string]string{"filename": strings.ToValidUTF8(name, "\uFFFD")})
}

// contentWriter keeps http.ServeContent and websocket.Accept from answering a failure in plain
// text.
type contentWriter struct {
	http.ResponseWriter
	refused int // the failure's status
}

func (w *contentWriter) WriteHeader(status int) {
	if status >= http.StatusBadRequest {
		w.refused = status
		return
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *contentWriter) Write(p []byte) (int, error) {
	if w.refused != 0 {
		return len(p), nil
	}
	return w.ResponseWriter.Write(p)
}

// Unwrap is for code that takes over the connection.
func (w *contentWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// ReadFrom lets net/http choose the way to copy that suits the connection.
func (w *contentWriter) ReadFrom(from io.Reader) (int64, error) {
	return io.Copy(w.ResponseWriter, from)
}
