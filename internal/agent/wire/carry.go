package wire

import (
	"errors"
	"fmt"
	"io"
	"time"
)

// Stream is what a Carried is carried on.
type Stream interface {
	io.Reader
	io.Writer
	CloseWrite() error
	SetWriteDeadline(time.Time) error
}

// Carried is a connection on a stream, as Data frames with an End frame at the end of each direction. A stream
// that ends without one has broken: its session may have ended, which on the stream looks like an end.
//
// One goroutine may read while another one writes.
type Carried struct {
	stream Stream
	rest   int // bytes of the present frame that are still to come
	ended  bool
	frame  []byte // of the present Write
}

// Carry makes a Carried. The stream stays the caller's to close.
func Carry(stream Stream) *Carried { return &Carried{stream: stream} }

// Read returns io.EOF after the End frame alone.
func (c *Carried) Read(p []byte) (int, error) {
	for c.rest == 0 {
		if c.ended {
			return 0, io.EOF
		}
		kind, length, err := ReadHeader(c.stream)
		switch {
		case errors.Is(err, io.EOF):
			return 0, io.ErrUnexpectedEOF
		case err != nil:
			return 0, err
		case kind == KindEnd:
			c.ended = true
		case kind == KindData:
			c.rest = length
		default:
			return 0, fmt.Errorf("unexpected frame of kind %d", kind)
		}
	}
	n, err := c.stream.Read(p[:min(len(p), c.rest)])
	if c.rest -= n; n > 0 {
		return n, nil // an error comes again
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// Write sends p in frames, each with a single write.
func (c *Carried) Write(p []byte) (written int, err error) {
	for len(p) > 0 {
		piece := p[:min(len(p), MaxData)]
		h := Header(KindData, len(piece))
		c.frame = append(append(c.frame[:0], h[:]...), piece...)
		if _, err := c.stream.Write(c.frame); err != nil {
			return written, err
		}
		written, p = written+len(piece), p[len(piece):]
	}
	return written, nil
}

// CloseWrite sends the End frame, and ends the stream's direction.
func (c *Carried) CloseWrite() error {
	h := Header(KindEnd, 0)
	if _, err := c.stream.Write(h[:]); err != nil {
		return err
	}
	return c.stream.CloseWrite()
}

// SetWriteDeadline bounds each Write and CloseWrite from now on.
func (c *Carried) SetWriteDeadline(t time.Time) error { return c.stream.SetWriteDeadline(t) }
