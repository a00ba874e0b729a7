package expose

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// serve takes connections until the listener closes.
func (o *owner) serve(listener *net.TCPListener, port int, log zerolog.Logger) {
	slots := make(chan struct{}, MaxConnections)
	for {
		select {
		case slots <- struct{}{}:
		case <-o.ctx.Done():
			return
		}
		conn, err := listener.AcceptTCP()
		if err == nil {
			o.work.Go(func() {
				defer func() { <-slots }()
				o.relay(conn, port, log)
			})
			continue
		}
		<-slots
		if errors.Is(err, net.ErrClosed) {
			return
		}
		// Out of descriptors, say.
		log.Warn().Err(err).Msg("a connection to an exposed port is not accepted")
		select {
		case <-time.After(100 * time.Millisecond):
		case <-o.ctx.Done():
			return
		}
	}
}

// relay is the life of one connection. One that comes to nobody is broken, as if nobody listened.
func (o *owner) relay(outside *net.TCPConn, port int, log zerolog.Logger) {
	inside, err := o.dial(o.ctx, port)
	if err != nil {
		log.Debug().Err(err).Msg("a connection to an exposed port comes to nobody")
		abort(outside)
		return
	}
	broken := func() {
		abort(outside)
		inside.Abort()
	}
	defer context.AfterFunc(o.ctx, broken)()
	var both sync.WaitGroup
	both.Go(func() { carry(inside, outside, broken) })
	both.Go(func() { carry(outside, inside, broken) })
	both.Wait()
	_ = outside.Close()
	_ = inside.Close()
}

// carry copies one direction to its end, and passes that on; when either side breaks, both do.
func carry(to interface {
	io.Writer
	CloseWrite() error
}, from io.Reader, broken func()) {
	if _, err := io.CopyBuffer(onlyWriter{to}, onlyReader{from}, make([]byte, 32<<10)); err != nil {
		broken()
		return
	}
	_ = to.CloseWrite()
}

// abort closes a connection such that its peer sees it break.
func abort(conn *net.TCPConn) {
	_ = conn.SetLinger(0)
	_ = conn.Close()
}

// onlyReader and onlyWriter hide the methods by which io.Copy would go another way than through the buffer.
type onlyReader struct{ io.Reader }
type onlyWriter struct{ io.Writer }
