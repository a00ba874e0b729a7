package guard

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// features is an origin that can do what HTTP can.
func features(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/trailers":
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Trailer", "X-Sum")
		_, _ = w.Write(body)
		w.Header().Set("X-Sum", r.Trailer.Get("X-Mine"))
	case "/hints":
		w.Header().Set("Link", "</style.css>")
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusNoContent)
	case "/redirect":
		http.Redirect(w, r, "http://denied.example/", http.StatusFound)
	case "/echo":
		_, _ = io.Copy(w, r.Body)
	case "/plain":
		w.Header()["Date"], w.Header()["Content-Type"] = nil, nil
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = io.WriteString(w, "<html>not really gzip")
	}
}

func TestHTTPFeaturesPass(t *testing.T) {
	var got http.Header
	port := httpOrigin(t, func(w http.ResponseWriter, r *http.Request) {
		got = r.Header
		features(w, r)
	})
	r := newRig(t, 0, port, nil)
	talk := func(method, path, more string) (*http.Response, string) {
		t.Helper()
		c := dial(t, r.http)
		go func() { _, _ = fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: allowed.example\r\n%s", method, path, more) }()
		a, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(a.Body)
		return a, string(body)
	}
	a, body := talk("POST", "/trailers", "Transfer-Encoding: chunked\r\nTrailer: X-Mine\r\nTE: trailers\r\n\r\n3\r\nabc\r\n0\r\nX-Mine: 42\r\n\r\n")
	if body != "abc" || a.Trailer.Get("X-Sum") != "42" {
		t.Errorf("trailers: %q %v", body, a.Trailer)
	}
	a, body = talk("HEAD", "/plain", "\r\n")
	if a.StatusCode != 200 || body != "" || a.ContentLength != 21 {
		t.Errorf("HEAD: %d %q %d", a.StatusCode, body, a.ContentLength)
	}
	a, body = talk("GET", "/plain", "Cookie: a=b\r\nX-Forwarded-For: mine\r\n\r\n")
	if body != "<html>not really gzip" || a.Header.Get("Date") != "" || a.Header.Get("Content-Type") != "" {
		t.Errorf("plain: %q %v", body, a.Header)
	}
	if len(got) != 2 || got.Get("X-Forwarded-For") != "mine" || got.Get("Cookie") != "a=b" {
		t.Errorf("the origin got %v", got)
	}
	if a, _ = talk("GET", "/redirect", "\r\n"); a.StatusCode != 302 || a.Header.Get("Location") != "http://denied.example/" {
		t.Errorf("redirect: %v", a)
	}
	if a, _ = talk("GET", "/hints", "\r\n"); a.StatusCode != 103 || a.Header.Get("Link") == "" {
		t.Errorf("hints: %v", a)
	}
	large := make([]byte, 20<<20)
	_, _ = rand.Read(large)
	_, body = talk("POST", "/echo", fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(large), large))
	if !bytes.Equal([]byte(body), large) {
		t.Errorf("a large body: %d bytes came back", len(body))
	}
}

func TestContinue(t *testing.T) {
	port := httpOrigin(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/no" {
			w.WriteHeader(http.StatusExpectationFailed)
			return
		}
		_, _ = io.Copy(w, r.Body)
	})
	r := newRig(t, 0, port, nil)
	for path, want := range map[string]int{"/yes": 100, "/no": 417} {
		c := dial(t, r.http)
		_, _ = fmt.Fprintf(c, "PUT %s HTTP/1.1\r\nHost: allowed.example\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n", path)
		from := bufio.NewReader(c)
		a, err := http.ReadResponse(from, nil)
		if err != nil || a.StatusCode != want {
			t.Fatalf("%s: %v, %v", path, a, err)
		}
		if want == 100 {
			_, _ = io.WriteString(c, "body")
			status, body := answer(t, from, "PUT")
			if status == 100 { // the server's own, for which the guard has waited no more than a second
				status, body = answer(t, from, "PUT")
			}
			if status != 200 || body != "body" {
				t.Errorf("%d %q", status, body)
			}
		}
	}
}

func TestStreamsAreNotHeldBack(t *testing.T) {
	next := make(chan string)
	port := httpOrigin(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "6")
		for word := range next {
			_, _ = io.WriteString(w, word)
			_ = http.NewResponseController(w).Flush()
		}
	})
	r := newRig(t, 0, port, nil)
	c := dial(t, r.http)
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: allowed.example\r\n\r\n")
	next <- "one"
	a, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	word := make([]byte, 3)
	for _, want := range []string{"one", "two"} {
		if _, err := io.ReadFull(a.Body, word); err != nil || string(word) != want {
			t.Fatalf("%q, %v", word, err)
		}
		if want == "one" {
			next <- "two"
		}
	}
	close(next)
}

func TestWebSocket(t *testing.T) {
	port := httpOrigin(t, func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		for {
			kind, data, err := c.Read(r.Context())
			if err != nil {
				return
			}
			_ = c.Write(r.Context(), kind, data)
		}
	})
	r := newRig(t, 0, port, nil)
	client := &http.Client{Transport: &http.Transport{DialContext: dialing(r.http)}}
	for _, host := range []string{"denied.example", "allowed.example"} {
		c, _, err := websocket.Dial(t.Context(), "ws://"+host, &websocket.DialOptions{HTTPClient: client})
		if host == "denied.example" {
			if err == nil {
				t.Error("denied.example was reached")
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Write(t.Context(), websocket.MessageText, []byte("over"))
		if _, data, err := c.Read(t.Context()); err != nil || string(data) != "over" {
			t.Errorf("%q, %v", data, err)
		}
		// Revocation ends what was upgraded, too.
		close(r.client.done)
		if _, _, err := c.Read(t.Context()); err == nil {
			t.Error("the connection goes on")
		}
	}
	eventually(t, "a connection stays", func() bool { return r.Open() == 0 })
}

// TestASwitchNobodyAskedFor: an origin cannot turn a request into a tunnel by itself.
func TestASwitchNobodyAskedFor(t *testing.T) {
	port, origin := rawOrigin(t)
	r := newRig(t, 0, port, nil)
	c := dial(t, r.http)
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: allowed.example\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
	o := take(t, origin)
	got, err := http.ReadRequest(bufio.NewReader(o))
	if err != nil || got.Header.Get("Upgrade") != "" || got.Header.Get("Connection") != "" {
		t.Fatalf("%v, %v", got, err)
	}
	_, _ = io.WriteString(o, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
	if status, _ := answer(t, bufio.NewReader(c), "GET"); status != 502 {
		t.Errorf("%d", status)
	}
	if rest := readAll(o); rest != "" {
		t.Errorf("the origin got %q", rest)
	}
}

// A client that ends its half right behind its request still gets the answer, as long as any takes, but is not waited for without end, and
// the server is not blamed then.
func TestHTTPOfAHalfClosedConnection(t *testing.T) {
	answer := make(chan struct{})
	gone := make(chan struct{})
	port := httpOrigin(t, func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-answer:
			_, _ = io.WriteString(w, "late")
		case <-r.Context().Done():
			close(gone)
		}
	})
	r := newRig(t, 0, port, func(c *Config) { c.Limits.HalfClosedIdle = patience })
	half := func() *net.TCPConn {
		c := dial(t, r.http)
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: allowed.example\r\nConnection: close\r\n\r\n")
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := half()
	time.AfterFunc(100*time.Millisecond, func() { answer <- struct{}{} }) // after the end has come to the guard
	if a, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || a.StatusCode != http.StatusOK {
		t.Errorf("%+v, %v", a, err)
	}
	r = newRig(t, 0, port, func(c *Config) { c.Limits.HalfClosedIdle = 4 * time.Second }) // in which it comes to the origin
	if said, _ := io.ReadAll(half()); !strings.Contains(string(said), reasonHalfClosed) {
		t.Errorf("the client is told %q", said)
	}
	select {
	case <-gone:
	case <-time.After(patience):
		t.Error("the origin is still waited for")
	}
}
