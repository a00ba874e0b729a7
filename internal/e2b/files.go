package e2b

import (
	"compress/gzip"
	"context"
	"io"
	"mime"
	"net/http"
	"path"
	"strings"

	"github.com/daycare-run/sandbox/internal/errs"
)

type handlerInside func(called, http.ResponseWriter, *http.Request) error

// answering makes a handler from a function that returns its error.
func answering(handle handlerInside) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if err := handle(calledOf(req.Context()), w, req); err != nil {
			fail(w, err)
		}
	})
}

// download answers with a file.
func (c called) download(w http.ResponseWriter, req *http.Request) error {
	at, err := c.path(req.URL.Query().Get("path"))
	if err != nil {
		return err
	}
	var file content
	if err := c.at(func(f fileSystem) (err error) {
		file, err = f.open(req.Context(), at)
		return err
	}, at); err != nil {
		return err
	}
	defer file.whole.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Content-Disposition",
		mime.FormatMediaType("attachment", map[string]string{"filename": path.Base(at)}))
	w.Header().Set("Vary", "Accept-Encoding")
	// HTTP clients accept gzip whether they want it or not; one that wants it accepts nothing else.
	if req.Header.Get("Accept-Encoding") == "gzip" && req.Header.Get("Range") == "" {
		w.Header().Set("Content-Encoding", "gzip")
		to := gzip.NewWriter(w)
		if _, err := io.Copy(to, file.whole); err != nil {
			panic(http.ErrAbortHandler) // what was sent must not look complete
		}
		if err := to.Close(); err != nil {
			panic(http.ErrAbortHandler)
		}
		return nil
	}
	if file.parts != nil {
		http.ServeContent(w, req, "", file.modTime, file.parts)
		return nil
	}
	if _, err := io.Copy(w, file.whole); err != nil {
		panic(http.ErrAbortHandler)
	}
	return nil
}

// writtenBody is a file that was written.
type writtenBody struct {
	Name string `json:"name"`
	Path string `json:"path"`
	Type string `json:"type"`
}

// metadataHeader is the prefix of the headers by which clients keep metadata with a file.
const metadataHeader = "X-Metadata-"

// upload writes a file, or all files of a form.
func (c called) upload(w http.ResponseWriter, req *http.Request) error {
	for name := range req.Header {
		if strings.HasPrefix(name, metadataHeader) {
			return unimplemented{"metadata of files: leave it out"}
		}
	}
	var body io.Reader = req.Body
	switch encoding := req.Header.Get("Content-Encoding"); encoding {
	case "", "identity":
	case "gzip":
		unpacked, err := gzip.NewReader(req.Body)
		if err != nil {
			return invalid("the body is no gzip: %v", err)
		}
		body = unpacked
	default:
		return invalid("the body's encoding %.64q is not gzip", encoding)
	}
	kind, parameters, err := mime.ParseMediaType(req.Header.Get("Content-Type"))
	if err != nil {
		return invalid(
			"the body's Content-Type is missing or not valid: want multipart/form-data or application/octet-stream")
	}
	given := req.URL.Query().Get("path")
	var written []writtenBody
	switch kind {
	case "application/octet-stream":
		if given == "" {
			return invalid("path is missing: a body that is no form has no name")
		}
		one, err := c.write(req.Context(), given, body)
		if err != nil {
			return err
		}
		written = append(written, one)
	case "multipart/form-data":
		k := &kept{of: c.server.bodies, owner: c.Info().Owner, id: c.ID()}
		defer k.release()
		if written, err = c.writeForm(req.Context(), k, given,
			newFormReader(body, parameters["boundary"]), c.server.cfg.MaxRequest); err != nil {
			return err
		}
	default:
		return invalid("the body is %.64q, not multipart/form-data or application/octet-stream",
			kind)
	}
	answer(w, http.StatusOK, written)
	return nil
}

// writeForm writes the files of a form. Those that were complete when it breaks off stay. All their
// names together have at most nameBytes bytes, and count as the request's memory.
func (c called) writeForm(ctx context.Context, k *kept, given string, form *formReader,
	nameBytes int64) ([]writtenBody, error) {
	written := []writtenBody{}
	for {
		part, parameters, err := form.next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		if parameters["name"] != "file" {
			continue
		}
		name := parameters["filename"]
		switch {
		case given != "" && len(written) > 0:
			return nil, invalid(
				"path names one file, and the form has more: leave path out, and name each in the form")
		case given != "":
			name = given
		case name == "":
			return nil, invalid("a file of the form has no name, and there is no path")
		}
		const beside = 64 // for the rest of what is answered for each
		if nameBytes -= int64(len(name) + beside); nameBytes < 0 {
			return nil, errs.TooLarge(
				"the form has more files than one answer can list: send them in several forms")
		}
		if err := k.take(2*len(name) + beside); err != nil {
			return nil, err
		}
		one, err := c.write(ctx, name, part)
		if err != nil {
			return nil, err
		}
		written = append(written, one)
	}
	if len(written) == 0 {
		return nil, invalid("the form has no part with the name file")
	}
	return written, nil
}

// write writes a file whole, and makes the directories above it.
func (c called) write(ctx context.Context, name string, body io.Reader) (writtenBody, error) {
	at, err := c.path(name)
	if err != nil {
		return writtenBody{}, err
	}
	if strings.HasSuffix(name, "/") || at == homeDir {
		return writtenBody{}, invalid("%.200q is a directory", name)
	}
	body = &begunReader{Reader: body}
	err = c.at(func(f fileSystem) error {
		if body.(*begunReader).begun {
			return errs.Denied("cannot write %q: it became a symbolic link, or reached through one",
				at)
		}
		return f.write(ctx, at, body)
	}, at)
	return writtenBody{Name: path.Base(at), Path: at, Type: "file"}, err
}

// begunReader knows whether it has been read: what was read cannot be written elsewhere. Its errors
// count as the caller's.
type begunReader struct {
	io.Reader
	begun bool
}

func (r *begunReader) Read(p []byte) (int, error) {
	r.begun = true
	n, err := r.Reader.Read(p)
	if err != nil && err != io.EOF {
		err = invalid("the body was cut short: %v", err)
	}
	return n, err
}

// envs answers with no variables: a command gets its environment when it starts.
func (called) envs(w http.ResponseWriter, _ *http.Request) error {
	answer(w, http.StatusOK, map[string]string{})
	return nil
}
