package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"
)

// Download is a file that arrives while it is read; the reader closes it. io.Copy to an *os.File
// lets the kernel move the bytes from the connection to the file directly.
type Download struct {
	// Size is the number of bytes to come. If fewer come, the error is io.ErrUnexpectedEOF.
	Size    int64
	ModTime time.Time // to the second
	Mode    fs.FileMode

	ctx    context.Context
	conn   net.Conn
	ahead  *bufio.Reader // reads conn; holds what came with the header
	left   int64
	forget func() bool
}

// Download reads a file as a stream, from an offset in bytes. It uses its own connection, which
// ends with ctx.
func (c *Client) Download(ctx context.Context, id, path string, offset int64) (*Download, error) {
	return c.DownloadWith(ctx, id, path, offset, false)
}

// DownloadWith is Download; with follow, it reads what a symbolic link at the end of the path leads
// to.
func (c *Client) DownloadWith(ctx context.Context, id, path string, offset int64,
	follow bool) (_ *Download, err error) {
	query := url.Values{"path": {path}}
	if follow {
		query.Set("follow", "true")
	}
	request, err := newRequest(ctx, http.MethodGet, sandboxPath(id)+"/files?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	request.Close = true
	if offset != 0 {
		request.Header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
	}
	d := &Download{ctx: ctx}
	c.to.address(request)
	conn, err := c.to.dial(ctx)
	if err != nil {
		return nil, c.unreachable(d.cause(err))
	}
	d.conn, d.ahead = conn, bufio.NewReader(conn)
	d.forget = context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer func() {
		if err != nil {
			_ = d.Close()
		}
	}()
	if err := request.Write(conn); err != nil {
		return nil, c.unreachable(d.cause(err))
	}
	response, err := http.ReadResponse(d.ahead, request)
	if err != nil {
		return nil, c.unreachable(d.cause(err))
	}
	if response.StatusCode >= 300 {
		return nil, refusal(response)
	}
	if d.Size = response.ContentLength; d.Size < 0 {
		return nil, errors.New("the service does not say how large the file is")
	}
	d.left = d.Size
	d.ModTime, _ = http.ParseTime(response.Header.Get("Last-Modified")) // zero when there is none
	mode, err := strconv.ParseUint(response.Header.Get("X-File-Mode"), 8, 9)
	if err != nil {
		mode = 0o644 // from a service that does not tell
	}
	d.Mode = fs.FileMode(mode)
	return d, nil
}

func (d *Download) Read(p []byte) (int, error) {
	if d.left == 0 {
		return 0, io.EOF
	}
	n, err := d.ahead.Read(p[:min(int64(len(p)), d.left)])
	return n, d.moved(int64(n), err)
}

// WriteTo implements io.WriterTo, which io.Copy uses.
func (d *Download) WriteTo(w io.Writer) (int64, error) {
	first, err := io.CopyN(w, d.ahead, min(d.left, int64(d.ahead.Buffered())))
	if err := d.moved(first, err); err != nil {
		return first, err
	}
	var n int64
	from := &io.LimitedReader{R: d.conn, N: d.left}
	if file, ok := w.(*os.File); ok {
		n, err = file.ReadFrom(from)
	} else {
		n, err = io.CopyBuffer(struct{ io.Writer }{w}, from, make([]byte, downloadBuffer))
	}
	if err == nil && n < d.left {
		err = io.EOF
	}
	return first + n, d.moved(n, err)
}

// downloadBuffer is the buffer size for copies that the kernel cannot do alone.
const downloadBuffer = 256 << 10

// moved counts n bytes and converts the error.
func (d *Download) moved(n int64, err error) error {
	d.left -= n
	switch {
	case err == nil, d.left == 0 && errors.Is(err, io.EOF):
		return nil
	case errors.Is(err, io.EOF):
		return io.ErrUnexpectedEOF
	default:
		return d.cause(err)
	}
}

// cause returns why the connection failed: the cause of ctx if that has ended.
func (d *Download) cause(err error) error {
	if d.ctx.Err() != nil {
		return context.Cause(d.ctx)
	}
	return err
}

// Close ends the download, even before its end. It may be called more than once.
func (d *Download) Close() error {
	d.forget()
	if err := d.conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}
