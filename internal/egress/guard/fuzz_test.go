package guard

import (
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/internal/egress/decisions"
)

// FuzzHTTP sends anything to the HTTP front: it never panics, the origin never gets a request for a
// host that is not allowed, nor more requests than were decided.
func FuzzHTTP(f *testing.F) {
	for _, seed := range []string{
		"GET / HTTP/1.1\r\nHost: allowed.example\r\n\r\n",
		"GET http://denied.example/ HTTP/1.1\r\nHost: allowed.example\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: allowed.example\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: denied.example\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: allowed.example\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: denied.example\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: allowed.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nGET / HTTP/1.1\r\nHost: denied.example\r\n\r\n",
		"GET / HTTP/1.1\nHost: allowed.example\n X: y\n\n", "CONNECT denied.example:443 HTTP/1.1\r\n\r\n",
	} {
		f.Add([]byte(seed))
	}
	var wrong atomic.Value
	var arrived atomic.Int64
	port := httpOrigin(f, func(w http.ResponseWriter, r *http.Request) {
		arrived.Add(1)
		if r.Host != "allowed.example" && r.Host != "also.example" {
			wrong.Store(r.Host)
		}
		_, _ = io.Copy(w, r.Body)
	})
	r := newRig(f, 0, port, func(c *Config) { c.Limits.HelloTimeout, c.Limits.HTTPIdle = 20*time.Millisecond, 20*time.Millisecond })
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := net.Dial("tcp", r.http)
		if err != nil {
			t.Skip(err) // out of ports: the fuzzer is faster than TIME_WAIT
		}
		defer func() { _ = c.Close() }()
		_ = c.SetDeadline(time.Now().Add(30 * time.Millisecond))
		_, _ = c.Write(raw)
		_ = c.(*net.TCPConn).CloseWrite()
		readAll(c)
		if host := wrong.Load(); host != nil {
			t.Fatalf("the origin was asked for %q", host)
		}
		if a, allowed := arrived.Load(), r.counted(decisions.Allowed); a > allowed {
			t.Fatalf("%d requests arrived, %d were allowed", a, allowed)
		}
	})
}

// FuzzRequestName: what is let through is a host name in canonical form.
func FuzzRequestName(f *testing.F) {
	for _, host := range []string{"allowed.example", "Allowed.Example.:80", "[::1]:80", "1.2.3.4", "a:b:c", "[", "]:80", "ä.example", ":80"} {
		f.Add(host)
	}
	f.Fuzz(func(t *testing.T, host string) {
		r, err := http.NewRequest("GET", "/", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		name, refused := requestName(r, 80, false, false)
		if refused != nil {
			return
		}
		if again, r := canonicalName(name); r != nil || again != name || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" {
			t.Fatalf("%q became %q", host, name)
		}
	})
}
