package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"
)

// Download is a file that comes as it is read; its reader closes it. io.Copy to an *os.File lets the
// kernel move the bytes from the connection to the file by itself.
type Download struct {
	// Size is how many bytes come. Fewer are io.ErrUnexpectedEOF.
	Size    int64
	ModTime time.Time // in seconds

	ctx    context.Context
	conn   net.Conn
	ahead  *bufio.Reader // of conn: what came with the head is in it
	left   int64
	forget func() bool
}

// Download reads a file as a stream, from an offset in bytes. It has a connection of its own, which ends
// with ctx.
func (c *Client) Download(ctx context.Context, id, path string, offset int64) (_ *Download, err error) {
	request, err := newRequest(ctx, http.MethodGet, sandboxPath(id)+"/files?"+url.Values{"path": {path}}.Encode(), nil)
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
	return d, nil
}

func (d *Download) Read(p []byte) (int, error) {
	if d.left == 0 {
		return 0, io.EOF
	}
	n, err := d.ahead.Read(p[:min(int64(len(p)), d.left)])
	return n, d.moved(int64(n), err)
}

// WriteTo is what io.Copy uses.
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

// downloadBuffer is for what the kernel cannot do alone.
const downloadBuffer = 256 << 10

// moved counts bytes and says what an error means.
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

// cause is why the connection failed: by ctx, if that has ended.
func (d *Download) cause(err error) error {
	if d.ctx.Err() != nil {
		return context.Cause(d.ctx)
	}
	return err
}

// Close ends the download, also before its end. It may be called again.
func (d *Download) Close() error {
	d.forget()
	if err := d.conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}
