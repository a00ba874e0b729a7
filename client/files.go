package client

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/daycare-run/sandbox/api/types"
)

// Paths in these calls may contain any bytes. They are relative to the working directory, absolute,
// or start with ~/ for the home.

// Target returns a path in the form of a body.
func Target(path string) types.Target {
	plain, encoded := encodePath(path)
	return types.Target{Path: plain, PathBase64: encoded}
}

// encodePath returns the path in whichever of its two forms JSON can hold.
func encodePath(path string) (plain, encoded string) {
	if utf8.ValidString(path) && !strings.ContainsFunc(path, isControl) {
		return path, ""
	}
	return "", base64.StdEncoding.EncodeToString([]byte(path))
}

// isControl reports whether a path in JSON may not have the character.
func isControl(r rune) bool { return r < ' ' && r != '\t' && r != '\n' }

// Read reads a file; r.Target says which one.
func (c *Client) Read(ctx context.Context, id string, r types.Read) (types.ReadResult, error) {
	return ask[types.ReadResult](ctx, c, http.MethodPost, sandboxPath(id)+"/read", r)
}

// Content returns the content that a read found, as bytes.
func Content(r types.ReadResult) ([]byte, error) {
	if r.Type == types.ReadText {
		return []byte(r.Content), nil
	}
	return Decode(r.Content, types.Base64)
}

// Write writes a file; w.Target says which one.
func (c *Client) Write(ctx context.Context, id string, w types.Write) (types.Written, error) {
	return ask[types.Written](ctx, c, http.MethodPost, sandboxPath(id)+"/write", w)
}

// ListDir lists a directory.
func (c *Client) ListDir(ctx context.Context, id, path string) (types.Listing, error) {
	return c.ListEntries(ctx, id, types.Look{Target: Target(path)})
}

// ListEntries is ListDir with all that the service knows; l.Target says which directory.
func (c *Client) ListEntries(ctx context.Context, id string, l types.Look) (types.Listing, error) {
	return ask[types.Listing](ctx, c, http.MethodPost, sandboxPath(id)+"/list", l)
}

// Name returns an entry's exact name.
func Name(e types.Entry) (string, error) { return exactName(e.Name, e.NameBase64) }

// LinkTarget returns what a symbolic link says; "" for any other entry.
func LinkTarget(e types.Entry) (string, error) {
	return exactName(e.LinkTarget, e.LinkTargetBase64)
}

func exactName(text, encoded string) (string, error) {
	if encoded == "" {
		return text, nil
	}
	name, err := Decode(encoded, types.Base64)
	return string(name), err
}

// Stat describes what is at a path, which may be a symbolic link.
func (c *Client) Stat(ctx context.Context, id, path string) (types.Entry, error) {
	return c.StatEntry(ctx, id, types.Look{Target: Target(path)})
}

// StatEntry is Stat with all that the service knows; l.Target says which path.
func (c *Client) StatEntry(ctx context.Context, id string, l types.Look) (types.Entry, error) {
	return ask[types.Entry](ctx, c, http.MethodPost, sandboxPath(id)+"/stat", l)
}

// Mkdir makes a directory; with parents, also its missing parent directories.
func (c *Client) Mkdir(ctx context.Context, id, path string, parents bool) error {
	return c.call(ctx, http.MethodPost, sandboxPath(id)+"/mkdir",
		types.Mkdir{Target: Target(path), Parents: parents}, &types.Made{})
}

// Move renames a file or directory. With overwrite, a file at the new name is replaced.
func (c *Client) Move(ctx context.Context, id, from, to string, overwrite bool) error {
	m := types.Move{Overwrite: overwrite}
	m.From, m.FromBase64 = encodePath(from)
	m.To, m.ToBase64 = encodePath(to)
	return c.call(ctx, http.MethodPost, sandboxPath(id)+"/move", m, &types.Done{})
}

// Remove removes a file or directory; with recursive, also a directory's contents.
func (c *Client) Remove(ctx context.Context, id, path string, recursive bool) error {
	return c.call(ctx, http.MethodPost, sandboxPath(id)+"/remove",
		types.Remove{Target: Target(path), Recursive: recursive}, &types.Done{})
}

// Explain says what a call with these grants would see. It starts nothing.
func (c *Client) Explain(ctx context.Context, id string,
	e types.Explain) (types.Explanation, error) {
	return ask[types.Explanation](ctx, c, http.MethodPost, sandboxPath(id)+"/explain", e)
}

// Upload writes a file of any size from a stream. A body that is a regular file is sent as long as
// it is when the upload begins, whatever is added to it meanwhile; it is an error if it gets
// shorter. If the stream fails or ctx ends, nothing is changed. After an error, body may still be
// read for a moment.
func (c *Client) Upload(ctx context.Context, id, path string, body io.Reader,
	exclusive bool) (types.Written, error) {
	return c.UploadWith(ctx, id, path, body, UploadOptions{Exclusive: exclusive})
}

// UploadOptions says how a file is written.
type UploadOptions struct {
	// Exclusive refuses a file that exists.
	Exclusive bool
	// Follow writes to what a symbolic link at the end of the path leads to.
	Follow bool
	// Mode is the permission bits of a file that does not replace another; 0 means 0644.
	Mode fs.FileMode
}

// UploadWith is Upload with all that the service knows.
func (c *Client) UploadWith(ctx context.Context, id, path string, body io.Reader,
	o UploadOptions) (types.Written, error) {
	var written types.Written
	query := url.Values{"path": {path}}
	if o.Exclusive {
		query.Set("exclusive", "true")
	}
	if o.Follow {
		query.Set("follow", "true")
	}
	if o.Mode != 0 {
		query.Set("mode", fmt.Sprintf("%04o", o.Mode.Perm()))
	}
	length := size(body)
	if length > 0 {
		body = &sized{from: body, left: length}
	}
	request, err := newRequest(ctx, http.MethodPut, sandboxPath(id)+"/files?"+query.Encode(),
		io.NopCloser(body))
	if err != nil {
		return written, err
	}
	request.ContentLength = length
	request.Header.Set("Content-Type", "application/octet-stream")
	// So that a refusal arrives before the body is sent, not while it is sent.
	request.Header.Set("Expect", "100-continue")
	response, err := c.do(request)
	if err != nil {
		return written, err
	}
	return written, readAnswer(response, &written)
}

// size returns how much is left of a file, or -1 for any other body, which is then sent in chunks.
// A known size is faster: the service reads whatever its socket holds at once, and not a chunk at a
// time.
func size(body io.Reader) int64 {
	file, ok := body.(*os.File)
	if !ok {
		return -1
	}
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return -1
	}
	at, err := file.Seek(0, io.SeekCurrent)
	if err != nil || at >= info.Size() {
		return -1 // also for an empty file: with a body, net/http takes 0 as unknown
	}
	if _, err := file.ReadAt(make([]byte, 1), info.Size()-1); err != nil {
		return -1 // some file systems, such as sysfs, give every file the same size
	}
	return info.Size() - at
}

// sized is a file that is sent with its size. net/http reads a body to its end, and fails if that
// is not where the size says.
type sized struct {
	from io.Reader
	left int64
}

func (s *sized) Read(p []byte) (int, error) {
	if s.left == 0 {
		return 0, io.EOF
	}
	n, err := s.from.Read(p[:min(int64(len(p)), s.left)])
	s.left -= int64(n)
	if errors.Is(err, io.EOF) && s.left > 0 {
		err = fmt.Errorf("the file got shorter while it was sent: its last %d bytes are gone",
			s.left)
	}
	return n, err
}
