package guard

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
)

// slowClient takes its time to say what it may reach, until told.
type slowClient struct {
	*fakeClient
	asked atomic.Int64
	say   chan struct{}
}

func (e *slowClient) Allows(string) bool {
	e.asked.Add(1)
	<-e.say
	return true
}

// Of the requests of one user as many are worked on at a time as there are processors. The others wait for these, and
// another user's do not.
func TestRequestsAreWorkedOnInTurns(t *testing.T) {
	port := httpOrigin(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	slow := &slowClient{
		fakeClient: &fakeClient{id: "many", user: "many", done: make(chan struct{})}, say: make(chan struct{}),
	}
	second := netip.MustParseAddr("127.0.0.2")
	r := newRig(t, 0, port, func(c *Config) {
		first := fakes(c).client
		fakes(c).client = func(a netip.Addr) (Client, bool) {
			if a == second {
				return slow, true
			}
			return first(a)
		}
	})
	get := func(from netip.Addr) error {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: from.AsSlice()}}
		transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", r.http)
		}}
		answer, err := (&http.Client{Transport: transport, Timeout: patience}).Get("http://allowed.example")
		if err != nil {
			return err
		}
		defer func() { _ = answer.Body.Close() }()
		if said, err := io.ReadAll(answer.Body); err != nil || string(said) != "hello" {
			return fmt.Errorf("%q: %w", said, err)
		}
		return nil
	}
	most := runtime.GOMAXPROCS(0)
	many := 10 * most
	ended := make(chan error, many)
	for range many {
		go func() { ended <- get(second) }()
	}
	eventually(t, "not all have sent a request", func() bool {
		begun, waiting := r.work.Count()
		return begun+waiting == many && slow.asked.Load() == int64(most)
	})
	for range 10 {
		if err := get(loopback); err != nil {
			t.Errorf("another user: %v", err)
		}
	}
	if asked := slow.asked.Load(); asked != int64(most) {
		t.Errorf("%d are worked on, want %d", asked, most)
	}
	close(slow.say)
	for range many {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// A peer that stops anywhere keeps no other request of the user from being worked on, though only one is at a time.
func TestStalledPeersBlockNobody(t *testing.T) {
	const get = "GET / HTTP/1.1\r\nHost: allowed.example\r\n"
	const post = "POST / HTTP/1.1\r\nHost: allowed.example\r\n"
	for name, row := range map[string]struct {
		head, more string // of the client; more follows when the server has read the head
		answer     string
	}{
		"a server a byte before the transport's buffer is full":    {head: get + "\r\n", answer: "HTTP/1.1 200 " + strings.Repeat("x", 2047-len("HTTP/1.1 200 "))},
		"a client a byte before the server's buffer is full":       {head: "GET /" + strings.Repeat("x", 4095-len("GET /"))},
		"a client in the line of a chunk":                          {head: post + "Transfer-Encoding: chunked\r\n\r\n", more: "1;" + strings.Repeat("x", 4095-len("1;"))},
		"a client in its body, which the server does not wait for": {head: post + "Content-Length: 100\r\n\r\n", more: "some", answer: "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhi"},
		"a client that the server refuses in its body":             {head: post + "Content-Length: 100\r\n\r\n", more: "some", answer: "nonsense\r\n\r\n"},
		"a client that has sent the next request":                  {head: get + "\r\n", more: get},
		"a client that has sent one behind its body":               {head: post + "Content-Length: 4\r\n\r\n", more: "body" + get},
	} {
		t.Run(name, func(t *testing.T) {
			shared := budgets()
			port, origin := rawOrigin(t)
			r := newRig(t, 0, port, twoUsers(shared))
			for range r.work.Each - 1 { // so one is left
				r.work.Begin("anna", nil)
				t.Cleanup(func() { r.work.End("anna") })
			}
			c := dial(t, r.http)
			_, _ = io.WriteString(c, row.head)
			if strings.HasSuffix(row.head, "\r\n\r\n") {
				o := take(t, origin)
				asked, err := http.ReadRequest(bufio.NewReader(o))
				if err != nil {
					t.Fatal(err)
				}
				_, _ = io.WriteString(c, row.more)
				if row.answer != "" {
					_, _ = io.ReadFull(asked.Body, make([]byte, len(row.more)))
				}
				_, _ = io.WriteString(o, row.answer)
			}
			eventually(t, "the guard has not read all", func() bool {
				return shared.Hellos.Stats().Used >= len(row.head)+len(row.answer) || strings.HasPrefix(row.answer, "nonsense")
			})
			for range 3 {
				other := dial(t, r.http)
				_, _ = io.WriteString(other, get+"Connection: close\r\n\r\n")
				o := take(t, origin)
				_, _ = io.WriteString(o, "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
				if got := readAll(other); !strings.HasPrefix(got, "HTTP/1.1 204") {
					t.Errorf("another request got %.40q", got)
				}
			}
		})
	}
}
