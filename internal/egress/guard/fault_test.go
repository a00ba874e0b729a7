package guard

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/daycare-run/sandbox/internal/egress/decisions"
)

// TestBadBodiesAreAttributed: who sends a malformed body is named, the client or the server.
func TestBadBodiesAreAttributed(t *testing.T) {
	for _, body := range []string{"zz\r\nabc\r\n0\r\n\r\n", "3\r\nabcdef\r\n0\r\n\r\n", "-1\r\n\r\n"} {
		port := httpOrigin(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
		r := newRig(t, 0, port, nil)
		status, said := ask(r, "POST / HTTP/1.1\r\nHost: allowed.example\r\nTransfer-Encoding: chunked\r\n\r\n"+body)
		if status != http.StatusBadRequest {
			t.Errorf("the client's %q: %d %s", body, status, said)
		}
		r.decided(decisions.Allowed, "allowed.example", reasonAllowed)
		r.decided(decisions.Malformed, "allowed.example", reasonBadBody)
		r.undecided()

		raw, origin := rawOrigin(t)
		r = newRig(t, 0, raw, nil)
		c := dial(t, r.http)
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: allowed.example\r\n\r\n")
		o := take(t, origin)
		_, _ = http.ReadRequest(bufio.NewReader(o))
		_, _ = io.WriteString(o, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"+body)
		readAll(c)
		r.decided(decisions.Allowed, "allowed.example", reasonAllowed)
		r.decided(decisions.Failed, "allowed.example", reasonBadAnswer)
		r.undecided()
	}
}

// An answer that is none is the server's fault, also where the request has a body; a client that leaves in the
// middle of one is nobody's.
func TestBadAnswersAreTheServers(t *testing.T) {
	port, origin := rawOrigin(t)
	r := newRig(t, 0, port, nil)
	c := dial(t, r.http)
	_, _ = fmt.Fprint(c, "POST / HTTP/1.1\r\nHost: allowed.example\r\nContent-Length: 4\r\n\r\nbody")
	o := take(t, origin)
	_, _ = http.ReadRequest(bufio.NewReader(o))
	_, _ = io.WriteString(o, "nonsense\r\n\r\n")
	if status, body := answer(t, bufio.NewReader(c), "POST"); status != http.StatusBadGateway {
		t.Errorf("%d %s", status, body)
	}
	r.decided(decisions.Allowed, "allowed.example", reasonAllowed)
	r.decided(decisions.Failed, "allowed.example", reasonUpstream)

	c = dial(t, r.http)
	_, _ = fmt.Fprint(c, "POST / HTTP/1.1\r\nHost: allowed.example\r\nContent-Length: 4\r\n\r\nbo")
	o = take(t, origin)
	r.decided(decisions.Allowed, "allowed.example", reasonAllowed)
	_ = c.Close()
	readAll(o)
	eventually(t, "the connection stays", func() bool { return r.Open() == 0 })
	r.undecided()
}
