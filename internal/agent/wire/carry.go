package wire

import (
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/daycare-run/sandbox/internal/relay"
)

// dial asks for a connection, and dialed is the answer: Fault says why there is none, or is empty.
type (
	dial struct {
		Port int `json:"port"`
	}
	dialed struct {
		Fault string `json:"fault,omitempty"`
	}
)

// RequestPort asks the agent to connect a stream to a TCP port of the container's own loopback, and
// waits for the answer.
func RequestPort(stream io.ReadWriter, port int) error {
	if err := WritePort(stream, port); err != nil {
		return err
	}
	return ReadAnswer(stream)
}

// WritePort asks the peer to connect a stream to a TCP port.
func WritePort(stream io.Writer, port int) error {
	return WriteMessage(stream, kindDial, dial{port})
}

// ReadAnswer waits until the peer has connected a stream to a port.
func ReadAnswer(stream io.Reader) error {
	var answer dialed
	if err := ReadMessage(stream, kindDialed, &answer); err != nil {
		return err
	}
	if answer.Fault != "" {
		return fmt.Errorf("inside the container: %.500q", answer.Fault)
	}
	return nil
}

// ReadPort reads which port a stream is to be connected to.
func ReadPort(stream io.Reader) (int, error) {
	var asked dial
	err := ReadMessage(stream, kindDial, &asked)
	if err == nil && (asked.Port < 1 || asked.Port > math.MaxUint16) {
		err = errors.New("no such port")
	}
	return asked.Port, err
}

// AnswerPort says that a stream is connected, or why it is not.
func AnswerPort(stream io.Writer, why error) error {
	var answer dialed
	if why != nil {
		answer.Fault = why.Error()
	}
	return WriteMessage(stream, kindDialed, answer)
}

// carried is a connection on a stream, as Data frames with an End frame at the end of each
// direction. A stream that ends without an End frame has broken: if its session ends, that looks
// like an end of the stream.
//
// One goroutine may read while another one writes.
type carried struct {
	stream relay.Conn
	rest   int // bytes of the present frame that are still to come
	ended  bool
	frame  []byte // of the present Write
}

// Carry returns a connection on a stream. The caller still has to close the stream.
func Carry(stream relay.Conn) relay.Conn { return &carried{stream: stream} }

// Read returns io.EOF only after the End frame.
func (c *carried) Read(p []byte) (int, error) {
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
		case kind == kindEnd:
			c.ended = true
		case kind == kindData:
			c.rest = length
		default:
			return 0, fmt.Errorf("unexpected frame of kind %d", kind)
		}
	}
	n, err := c.stream.Read(p[:min(len(p), c.rest)])
	if c.rest -= n; n > 0 {
		return n, nil // the next Read gets an error again
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// Write sends p in frames, each with a single write.
func (c *carried) Write(p []byte) (written int, err error) {
	for len(p) > 0 {
		piece := p[:min(len(p), MaxData)]
		h := Header(kindData, len(piece))
		c.frame = append(append(c.frame[:0], h[:]...), piece...)
		if _, err := c.stream.Write(c.frame); err != nil {
			return written, err
		}
		written, p = written+len(piece), p[len(piece):]
	}
	return written, nil
}

// CloseWrite sends the End frame, and closes the stream for writing.
func (c *carried) CloseWrite() error {
	h := Header(kindEnd, 0)
	if _, err := c.stream.Write(h[:]); err != nil {
		return err
	}
	return c.stream.CloseWrite()
}

// SetWriteDeadline bounds each Write and CloseWrite from now on.
func (c *carried) SetWriteDeadline(t time.Time) error { return c.stream.SetWriteDeadline(t) }
