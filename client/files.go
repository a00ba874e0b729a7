package client

import (
	"context"
	"encoding/base64"
	"io"
	"net/http"
	"net/url"
	"os"
	"unicode/utf8"

	"github.com/daycare-run/sandbox/api/apitypes"
)

// Paths in these calls may have any bytes. They are relative to the working directory, absolute, or
// from the home as ~/….

// Target names a path in a body.
func Target(path string) apitypes.Target {
	plain, encoded := encodePath(path)
	return apitypes.Target{Path: plain, PathBase64: encoded}
}

// encodePath gives the one of two forms that JSON can hold the path in.
func encodePath(path string) (plain, encoded string) {
	if utf8.ValidString(path) {
		return path, ""
	}
	return "", base64.StdEncoding.EncodeToString([]byte(path))
}

// Read reads a file; r.Target says which one.
func (c *Client) Read(ctx context.Context, id string, r apitypes.Read) (apitypes.ReadResult, error) {
	var result apitypes.ReadResult
	err := c.call(ctx, http.MethodPost, sandboxPath(id)+"/read", r, &result)
	return result, err
}

// Content is what a read has found, as bytes.
func Content(r apitypes.ReadResult) ([]byte, error) {
	if r.Type == apitypes.ReadText {
		return []byte(r.Content), nil
	}
	return Decode(r.Content, apitypes.Base64)
}

// Write writes a file; w.Target says which one.
func (c *Client) Write(ctx context.Context, id string, w apitypes.Write) (apitypes.Written, error) {
	var written apitypes.Written
	err := c.call(ctx, http.MethodPost, sandboxPath(id)+"/write", w, &written)
	return written, err
}

// ListDir lists a directory.
func (c *Client) ListDir(ctx context.Context, id, path string) (apitypes.Listing, error) {
	var listing apitypes.Listing
	err := c.call(ctx, http.MethodPost, sandboxPath(id)+"/list", Target(path), &listing)
	return listing, err
}

// Name is an entry's name, as bytes.
func Name(e apitypes.Entry) (string, error) {
	if e.NameBase64 == "" {
		return e.Name, nil
	}
	name, err := Decode(e.NameBase64, apitypes.Base64)
	return string(name), err
}

// Stat says what a path is.
func (c *Client) Stat(ctx context.Context, id, path string) (apitypes.Entry, error) {
	var entry apitypes.Entry
	err := c.call(ctx, http.MethodPost, sandboxPath(id)+"/stat", Target(path), &entry)
	return entry, err
}

// Mkdir makes a directory, with parents also what is missing above it.
func (c *Client) Mkdir(ctx context.Context, id, path string, parents bool) error {
	return c.call(ctx, http.MethodPost, sandboxPath(id)+"/mkdir", apitypes.Mkdir{Target: Target(path), Parents: parents}, &apitypes.Made{})
}

// Move renames a file or directory. With overwrite, a file at the new name is replaced.
func (c *Client) Move(ctx context.Context, id, from, to string, overwrite bool) error {
	m := apitypes.Move{Overwrite: overwrite}
	m.From, m.FromBase64 = encodePath(from)
	m.To, m.ToBase64 = encodePath(to)
	return c.call(ctx, http.MethodPost, sandboxPath(id)+"/move", m, &apitypes.Done{})
}

// Remove removes a file or directory, with recursive also what is in it.
func (c *Client) Remove(ctx context.Context, id, path string, recursive bool) error {
	return c.call(ctx, http.MethodPost, sandboxPath(id)+"/remove", apitypes.Remove{Target: Target(path), Recursive: recursive}, &apitypes.Done{})
}

// Explain says what a call with these grants would see; nothing is started.
func (c *Client) Explain(ctx context.Context, id string, e apitypes.Explain) (apitypes.Explanation, error) {
	var explanation apitypes.Explanation
	err := c.call(ctx, http.MethodPost, sandboxPath(id)+"/explain", e, &explanation)
	return explanation, err
}

// Upload writes a file from a stream, of any size. A stream that fails, and a ctx that ends, change
// nothing. body may still be being read for a moment after an error.
func (c *Client) Upload(ctx context.Context, id, path string, body io.Reader, exclusive bool) (apitypes.Written, error) {
	var written apitypes.Written
	query := url.Values{"path": {path}}
	if exclusive {
		query.Set("exclusive", "true")
	}
	request, err := newRequest(ctx, http.MethodPut, sandboxPath(id)+"/files?"+query.Encode(), io.NopCloser(body))
	if err != nil {
		return written, err
	}
	request.ContentLength = size(body)
	request.Header.Set("Content-Type", "application/octet-stream")
	// A refusal comes before the body is sent, not while.
	request.Header.Set("Expect", "100-continue")
	response, err := c.do(request)
	if err != nil {
		return written, err
	}
	return written, readAnswer(response, &written)
}

// size is how much is left in a file, or -1 for all else: the body is then sent in chunks.
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
		return -1 // also an empty file: 0 means unknown to net/http, when there is a body
	}
	return info.Size() - at
}
