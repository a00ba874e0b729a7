package api

import (
	"bytes"
	linked "container/list"
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
	"github.com/daycare-run/sandbox/internal/fair"
)

// What is not a valid request never reaches a handler: net/http itself answers a header that is too
// large, an unknown expectation, or a line that is not HTTP, as plain text. Here such an answer
// gets the contract's form on its way out.

// Prepare makes a server answer invalid requests in the contract's form too, and share its
// connections among the callers that who names. An operator gets a place even when others have them
// all; a nil who names nobody. Serve the returned listener; it sends a file's bytes without copying
// them here where the kernel can do that.
func Prepare(server *http.Server, l net.Listener, shared *Connections,
	who func(net.Conn) (caller string, operator bool)) net.Listener {
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
			c.answering.Store(true) // until the answer is sent and the connection is idle
			if !shared.work(c) {
				panic(http.ErrAbortHandler)
			}
		}
		handler.ServeHTTP(w, req)
	})
	server.ConnState = func(c net.Conn, state http.ConnState) {
		if c, ok := c.(*wire); ok && state == http.StateIdle {
			c.answering.Store(false)
			shared.rest(c)
		}
	}
	return wireListener{Listener(l), shared, who}
}

type wireKey struct{}

type wireListener struct {
	net.Listener
	shared *Connections
	who    func(net.Conn) (caller string, operator bool)
}

// Accept waits for a connection that gets a place. It answers the others if that needs no waiting.
func (l wireListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		w := &wire{Conn: c, of: l.shared}
		caller, operator := "", false
		if l.who != nil {
			caller, operator = l.who(c)
		}
		if l.shared.enter(w, caller, operator) {
			return w, nil
		}
		if raw(c) == c { // otherwise the answer would have to be encrypted first
			_, _ = c.Write(refuse(http.StatusTooManyRequests, types.Busy,
				"there are already as many connections as allowed, each with a request: try again when one has ended"))
		}
		_ = raw(c).Close()
	}
}

// wire is a connection that knows whether a handler is answering on it, and whose it is.
type wire struct {
	net.Conn
	answering atomic.Bool
	of        *Connections

	// Guarded by of.mu.
	place   *fair.Pool // the pool of its place; nil without one
	holder  string
	known   bool            // the holder may call
	resting *linked.Element // nil while it has a request
	evicted bool
}

// Close also gives the connection's place back.
func (c *wire) Close() error {
	c.of.leave(c)
	return c.Conn.Close()
}

// Write sends a handler's answer unchanged, and net/http's own answers, each of which is one Write,
// in the contract's form.
func (c *wire) Write(p []byte) (int, error) {
	if c.answering.Load() {
		return c.Conn.Write(p)
	}
	if _, err := c.Conn.Write(inForm(p)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Read answers a client that speaks plain HTTP to a TLS port.
func (c *wire) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if plain, is := errors.AsType[tls.RecordHeaderError](err); is && plain.Conn != nil &&
		looksLikeHTTP(plain.RecordHeader) {
		_, _ = plain.Conn.Write(refuse(http.StatusBadRequest, types.Invalid,
			"an HTTP request came to a TLS port: use https instead of http"))
		_ = plain.Conn.Close()
		return 0, io.EOF
	}
	return n, err
}

func looksLikeHTTP(header [5]byte) bool {
	for _, method := range methods {
		if bytes.HasPrefix([]byte(method+" "), header[:]) ||
			bytes.HasPrefix(header[:], []byte(method+" ")) {
			return true
		}
	}
	return false
}

// ReadFrom implements io.ReaderFrom, which net/http looks for.
func (c *wire) ReadFrom(from io.Reader) (int64, error) {
	if to, ok := c.Conn.(io.ReaderFrom); ok {
		return to.ReadFrom(from)
	}
	return io.Copy(struct{ io.Writer }{c.Conn}, from)
}

// CloseWrite lets net/http close without a reset; it looks for this method.
func (c *wire) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}

// SyscallConn implements syscall.Conn, for code that asks the kernel about the connection.
func (c *wire) SyscallConn() (syscall.RawConn, error) {
	if raw, ok := c.Conn.(syscall.Conn); ok {
		return raw.SyscallConn()
	}
	return nil, fmt.Errorf("a %T has no descriptor", c.Conn)
}

// inForm puts an answer of net/http's into the contract's form.
func inForm(answer []byte) []byte {
	line, _, _ := bytes.Cut(answer, []byte("\r\n"))
	_, text, _ := bytes.Cut(answer, []byte("\r\n\r\n"))
	var status int
	if words := bytes.Fields(line); len(words) > 1 {
		status, _ = strconv.Atoi(string(words[1]))
	}
	switch status {
	case http.StatusRequestHeaderFieldsTooLarge:
		return refuse(status, types.TooLarge, "the request's header is too large")
	case http.StatusExpectationFailed:
		return refuse(status, types.Invalid,
			"the request has an Expect header other than 100-continue")
	case http.StatusBadRequest, http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return refuse(status, types.Invalid,
			fmt.Sprintf("cannot read the request: %.200s", bytes.TrimSpace(text)))
	}
	return answer
}

// refuse returns a complete HTTP answer.
func refuse(status int, kind types.Kind, message string) []byte {
	failure := types.Error{Kind: kind, Message: message, RequestID: rand.Text()}
	retry := ""
	if kind == types.Busy {
		retry = "Retry-After: 1\r\n"
	}
	body, err := json.Marshal(types.Failure{Error: failure})
	if err != nil {
		panic(err) // it has only strings
	}
	return fmt.Appendf(nil,
		"HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nConnection: close\r\n%sX-Request-Id: %s\r\nContent-Length: %d\r\n\r\n%s\n",
		status, http.StatusText(status), retry, failure.RequestID, len(body)+1, body)
}
