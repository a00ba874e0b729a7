package guard

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"time"
)

// TLS alerts give the program's library an ordinary error at once.
const (
	alertAccessDenied     = 49
	alertDecodeError      = 50
	alertUnrecognizedName = 112
)

// linger is how long a client may take to notice an alert.
const linger = time.Second

func (g *Guard) serveTLS(ctx context.Context, c *conn) {
	f, client := c.flow, c.TCPConn
	upstream := g.openTLS(f.context(ctx), f, client)
	if upstream == nil {
		f.leave()
		return
	}
	f.splice(client, upstream)
}

// openTLS connects a client to the name that it asks for and passes its first words on. It returns nil
// when that came to nothing, which the client has been told.
func (g *Guard) openTLS(ctx context.Context, f *flow, client *net.TCPConn) *net.TCPConn {
	first := &hello{limit: g.cfg.Limits.HelloBytes}
	name, refused := f.askedName(client, first)
	if refused == nil && !f.client.Allows(name) {
		refused = &refusal{verdict: Denied, reason: reasonNotAllowed}
	}
	g.clients.decided(f)
	if refused != nil {
		f.refuseTLS(client, first, name, *refused)
		return nil
	}
	upstream, refused := f.connect(ctx, name)
	if refused != nil {
		if ctx.Err() != nil {
			return nil // revoked meanwhile
		}
		f.decide(name, *refused)
		if refused.verdict == Denied {
			sendAlert(client, alertAccessDenied)
		} else {
			// What the program would have seen without the guard.
			reset(client)
		}
		return nil
	}
	if !f.introduce(client, upstream, first, name) {
		f.abort()
		return nil
	}
	return upstream
}

// askedName reads a ClientHello and finds its name.
func (f *flow) askedName(client *net.TCPConn, h *hello) (string, *refusal) {
	_ = client.SetReadDeadline(time.Now().Add(f.guard.cfg.Limits.HelloTimeout))
	if r := h.read(client); r != nil {
		return "", r
	}
	_ = client.SetReadDeadline(time.Time{})
	return serverName(h.message)
}

// read reads until the hello is complete.
func (h *hello) read(from io.Reader) *refusal {
	for {
		if done, r := h.next(); done || r != nil {
			return r
		}
		if len(h.raw) == cap(h.raw) {
			h.raw = append(make([]byte, 0, max(4<<10, 2*cap(h.raw))), h.raw...)
		}
		n, err := from.Read(h.raw[len(h.raw):cap(h.raw)])
		h.raw = h.raw[:len(h.raw)+n]
		switch {
		case n > 0:
		case errors.Is(err, os.ErrDeadlineExceeded):
			return &refusal{verdict: Malformed, reason: reasonTooSlow, err: err}
		case err != nil:
			return &refusal{verdict: Malformed, reason: reasonCutShort, err: err}
		}
	}
}

// refuseTLS tells the program that it may not, and the observer. Someone who connects and leaves
// without a word has asked for nothing.
func (f *flow) refuseTLS(client *net.TCPConn, h *hello, name string, r refusal) {
	if r.reason == reasonCutShort && len(h.raw) == 0 {
		return
	}
	f.decide(name, r)
	switch {
	case len(h.raw) == 0 || h.raw[0] != recordHandshake:
		reset(client)
	case r.verdict == Malformed:
		sendAlert(client, alertDecodeError)
	case r.reason == reasonNotAllowed:
		sendAlert(client, alertAccessDenied)
	default:
		sendAlert(client, alertUnrecognizedName)
	}
}

// sendAlert ends the connection from our side and waits a little for the program to do the same: if
// it were closed while something is unread, the kernel would take the alert back.
func sendAlert(client *net.TCPConn, alert byte) {
	const fatal = 2
	_ = client.SetDeadline(time.Now().Add(linger))
	_, _ = client.Write([]byte{recordAlert, 3, 3, 0, 2, fatal, alert})
	_ = client.CloseWrite()
	_, _ = io.CopyN(io.Discard, client, 64<<10)
}

// introduce sends the hello on and passes the server's first answer back. If that is a
// HelloRetryRequest, the client says hello once more, and must name the same host. Nothing else of
// the client goes on before the answer is known, so that no second hello slips through early.
func (f *flow) introduce(client, upstream *net.TCPConn, first *hello, name string) bool {
	_ = upstream.SetDeadline(time.Now().Add(f.guard.cfg.Limits.AnswerTimeout))
	_, err := upstream.Write(first.raw[:first.at])
	// Told only now, while the server works.
	f.decide(name, refusal{verdict: Allowed, reason: reasonAllowed})
	if err != nil {
		return false
	}
	answer, err := firstAnswer(upstream)
	if err != nil {
		return false
	}
	if _, err := client.Write(answer); err != nil {
		return false
	}
	rest := first.raw[first.at:]
	if isRetryRequest(answer) {
		second := &hello{limit: first.limit, raw: bytes.Clone(rest), skipsOthers: true}
		again, refused := f.askedName(client, second)
		if refused == nil && again != name {
			refused = &refusal{verdict: Denied, reason: reasonOtherName}
		}
		if refused != nil {
			// One that leaves does not like the answer, which is its right.
			if refused.reason != reasonCutShort {
				f.decide(again, *refused)
			}
			return false
		}
		rest = second.raw
	}
	if len(rest) > 0 {
		if _, err := upstream.Write(rest); err != nil {
			return false
		}
	}
	_ = upstream.SetDeadline(time.Time{})
	return true
}

// retryRandom is the ServerHello.random that makes it a HelloRetryRequest (RFC 8446, 4.1.3).
var retryRandom = []byte{
	0xCF, 0x21, 0xAD, 0x74, 0xE5, 0x9A, 0x61, 0x11, 0xBE, 0x1D, 0x8C, 0x02, 0x1E, 0x65, 0xB8, 0x91,
	0xC2, 0xA2, 0x11, 0x16, 0x7A, 0xBB, 0x8C, 0x5E, 0x07, 0x9E, 0x09, 0xE2, 0xC8, 0xA8, 0x33, 0x9C,
}

// retryRandomAt is where the random is: behind the record's and the message's header and version.
const retryRandomAt = recordHeader + 4 + 2

// firstAnswer reads enough of what a server says to recognise a HelloRetryRequest. What is shorter
// because the server has ended, or is no handshake, is an answer as well.
func firstAnswer(upstream io.Reader) ([]byte, error) {
	answer := make([]byte, 0, 4<<10)
	for len(answer) < retryRandomAt+len(retryRandom) {
		n, err := upstream.Read(answer[len(answer):cap(answer)])
		answer = answer[:len(answer)+n]
		if errors.Is(err, io.EOF) || n > 0 && answer[0] != recordHandshake {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	return answer, nil
}

func isRetryRequest(answer []byte) bool {
	return len(answer) >= retryRandomAt && bytes.HasPrefix(answer[retryRandomAt:], retryRandom)
}
