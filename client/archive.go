package client

import (
	"context"
	"io"
	"net/http"
	"net/url"

	"github.com/daycare-run/sandbox/api/types"
)

// tarType is the media type of a directory.
const tarType = "application/x-tar"

// Pack reads a directory as a tar stream; the caller closes it. With follow, it reads what a
// symbolic link at the end of the path leads to. A stream that is cut short ends with an error,
// never with io.EOF. Whoever unpacks it must reckon with any names in it, and with symbolic links
// that lead anywhere.
func (c *Client) Pack(ctx context.Context, id, path string, follow bool) (io.ReadCloser, error) {
	request, err := newRequest(ctx, http.MethodGet, archivePath(id, path, follow), nil)
	if err != nil {
		return nil, err
	}
	response, err := c.do(request)
	if err != nil {
		return nil, err
	}
	return response.Body, nil
}

// Unpack writes a tar stream below a directory, which is made if it is missing. With follow, it
// writes to what a symbolic link at the end of the path leads to. After an error, entries that were
// written before stay. Body may then still be read for a moment.
func (c *Client) Unpack(ctx context.Context, id, path string, body io.Reader,
	follow bool) (types.Unpacked, error) {
	var done types.Unpacked
	request, err := newRequest(ctx, http.MethodPut, archivePath(id, path, follow),
		io.NopCloser(body))
	if err != nil {
		return done, err
	}
	request.ContentLength = -1
	request.Header.Set("Content-Type", tarType)
	request.Header.Set("Expect", "100-continue") // as for UploadWith
	response, err := c.do(request)
	if err != nil {
		return done, err
	}
	return done, readAnswer(response, &done)
}

func archivePath(id, path string, follow bool) string {
	query := url.Values{"path": {path}}
	if follow {
		query.Set("follow", "true")
	}
	return sandboxPath(id) + "/archive?" + query.Encode()
}
