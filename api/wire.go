package api

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"syscall"

	"github.com/go-json-experiment/json"

	"github.com/daycare-run/sandbox/api/types"
)

// What is no request never comes to a handler: net/http answers a header that is too large, an expectation that
// nobody knows or a line that is not HTTP by itself, as text. Here such an answer takes the contract's form on its
// way out.

// Prepare has a server answer in the contract's form also what is no request. The listener that it returns is the
// one to serve; a file's bytes go over it without being copied here where the kernel can do that.
func Prepare(server *http.Server, l net.Listener) net.Listener {
	if server.ConnState != nil {
		panic("the server has a ConnState")
	}
	handler, note := server.Handler, server.ConnContext
	server.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		if note != nil {
			ctx = note(ctx, c)
		}
		return context.WithValue(ctx, wireKey{}, c)
	}
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if c, ok := req.Context().Value(wireKey{}).(*wire); ok {
			c.answering.Store(true) // until what was answered is sent: then the connection is idle
		}
		handler.ServeHTTP(w, req)
	})
	server.ConnState = func(c net.Conn, state http.ConnState) {
		if c, ok := c.(*wire); ok && state == http.StateIdle {
			c.answering.Store(false)
		}
	}
	return wireListener{Listener(l)}
}

type wireKey struct{}

type wireListener struct{ net.Listener }

func (l wireListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &wire{Conn: c}, nil
}

// wire is a connection that knows whether a handler answers on it.
type wire struct {
	net.Conn
	answering atomic.Bool
}

// Write sends a handler's answer as it is, and net/http's own in the contract's form: those it writes at once.
func (c *wire) Write(p []byte) (int, error) {
	if c.answering.Load() {
		return c.Conn.Write(p)
	}
	if _, err := c.Conn.Write(inForm(p)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Read answers who does not know that this is TLS.
func (c *wire) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if plain, is := errors.AsType[tls.RecordHeaderError](err); is && plain.Conn != nil && looksLikeHTTP(plain.RecordHeader) {
		_, _ = plain.Conn.Write(refuse(http.StatusBadRequest, "an HTTP request came to where TLS is spoken: say https instead of http"))
		_ = plain.Conn.Close()
		return 0, io.EOF
	}
	return n, err
}

func looksLikeHTTP(header [5]byte) bool {
	for _, method := range methods {
		if bytes.HasPrefix([]byte(method+" "), header[:]) || bytes.HasPrefix(header[:], []byte(method+" ")) {
			return true
		}
	}
	return false
}

// ReadFrom is io.ReaderFrom, which net/http looks for.
func (c *wire) ReadFrom(from io.Reader) (int64, error) {
	if to, ok := c.Conn.(io.ReaderFrom); ok {
		return to.ReadFrom(from)
	}
	return io.Copy(struct{ io.Writer }{c.Conn}, from)
}

// CloseWrite is what net/http looks for, to close without a reset.
func (c *wire) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}

// SyscallConn is syscall.Conn, for who asks the kernel about the connection.
func (c *wire) SyscallConn() (syscall.RawConn, error) {
	if raw, ok := c.Conn.(syscall.Conn); ok {
		return raw.SyscallConn()
	}
	return nil, fmt.Errorf("a %T has no descriptor", c.Conn)
}

// inForm is an answer of net/http's in the contract's form.
func inForm(answer []byte) []byte {
	line, _, _ := bytes.Cut(answer, []byte("\r\n"))
	_, text, _ := bytes.Cut(answer, []byte("\r\n\r\n"))
	var status int
	if words := bytes.Fields(line); len(words) > 1 {
		status, _ = strconv.Atoi(string(words[1]))
	}
	switch status {
	case http.StatusRequestHeaderFieldsTooLarge:
		return refuse(status, "the request's header is too large")
	case http.StatusExpectationFailed:
		return refuse(status, "the request has an Expect header, of which 100-continue alone is known")
	case http.StatusBadRequest, http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return refuse(status, fmt.Sprintf("what came is no request: %.200s", bytes.TrimSpace(text)))
	}
	return answer
}

// refuse is a whole answer.
func refuse(status int, message string) []byte {
	failure := types.Error{Kind: types.Invalid, Message: message, RequestID: rand.Text()}
	if status == http.StatusRequestHeaderFieldsTooLarge {
		failure.Kind = types.TooLarge
	}
	body, err := json.Marshal(types.Failure{Error: failure})
	if err != nil {
		panic(err) // of strings
	}
	return fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nConnection: close\r\nX-Request-Id: %s\r\nContent-Length: %d\r\n\r\n%s\n",
		status, http.StatusText(status), failure.RequestID, len(body)+1, body)
}
