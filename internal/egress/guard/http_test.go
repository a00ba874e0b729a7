package guard

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/internal/egress/decisions"
)

// ask sends bytes on a new connection and reads one answer.
func ask(r *rig, request string) (int, string) {
	r.t.Helper()
	c := dial(r.t, r.http)
	_, _ = io.WriteString(c, request)
	return answer(r.t, bufio.NewReader(c), "GET")
}

func answer(t testing.TB, from *bufio.Reader, method string) (int, string) {
	t.Helper()
	a, err := http.ReadResponse(from, &http.Request{Method: method})
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	return a.StatusCode, string(body)
}

// visits are the requests that reached an origin.
type visits struct {
	mu   sync.Mutex
	list []string
}

func (v *visits) add(r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.list = append(v.list, fmt.Sprintf("%s %s%s %s", r.Method, r.Host, r.RequestURI, body))
}

func (v *visits) String() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return strings.Join(v.list, "|")
}

func newVisited(t testing.TB, change func(*Config)) (*rig, *visits) {
	v := &visits{}
	port := httpOrigin(t, func(w http.ResponseWriter, r *http.Request) {
		v.add(r)
		_, _ = io.WriteString(w, "hello from "+r.Host)
	})
	return newRig(t, 0, port, change), v
}

func TestEveryRequestOfAConnectionIsChecked(t *testing.T) {
	r, v := newVisited(t, nil)
	c := dial(t, r.http)
	from := bufio.NewReader(c)
	// Pipelined: all of it is sent before anything is read.
	for _, host := range []string{"allowed.example", "Also.Example.", "allowed.example:%d", "denied.example", "allowed.example"} {
		if strings.Contains(host, "%") {
			host = fmt.Sprintf(host, r.cfg.HTTPPort)
		}
		_, _ = fmt.Fprintf(c, "GET /a%%2fb//c?x=1;y HTTP/1.1\r\nHost: %s\r\n\r\n", host)
	}
	for _, want := range []string{"hello from allowed.example", "hello from also.example", "hello from allowed.example"} {
		if status, body := answer(t, from, "GET"); status != 200 || body != want {
			t.Errorf("%d %s, want %s", status, body, want)
		}
	}
	status, body := answer(t, from, "GET")
	want := "cannot pass denied.example on: the name is not allowed for this call; to reach it, name \"denied.example\" in allowedDomains\n"
	if status != 403 || body != want {
		t.Errorf("%d %s", status, body)
	}
	if rest, err := io.ReadAll(from); len(rest) > 0 {
		t.Errorf("after the refusal: %q, %v", rest, err)
	}
	if got := v.String(); got != "GET allowed.example/a%2fb//c?x=1;y |GET also.example/a%2fb//c?x=1;y |GET allowed.example/a%2fb//c?x=1;y " {
		t.Errorf("the origin saw %s", got)
	}
	for _, name := range []string{"allowed.example", "also.example", "allowed.example"} {
		r.decided(decisions.Allowed, name, reasonAllowed)
	}
	r.decided(decisions.Denied, "denied.example", reasonNotAllowed)
	r.undecided()
}

func TestWhichHostARequestIsFor(t *testing.T) {
	for what, c := range map[string]struct {
		head   string
		status int
		seen   string
	}{
		"absolute":               {"GET http://allowed.example/x HTTP/1.1\r\nHost: allowed.example", 200, "GET allowed.example/x "},
		"the URI wins":           {"GET http://also.example/x HTTP/1.1\r\nHost: allowed.example", 200, "GET also.example/x "},
		"the URI's is denied":    {"GET http://denied.example/x HTTP/1.1\r\nHost: allowed.example", 403, ""},
		"Host is overruled":      {"GET http://allowed.example/x HTTP/1.1\r\nHost: denied.example", 200, "GET allowed.example/x "},
		"https":                  {"GET https://allowed.example/x HTTP/1.1\r\nHost: allowed.example", 400, ""},
		"a user in the URI":      {"GET http://denied.example@allowed.example/x HTTP/1.1\r\nHost: allowed.example", 400, ""},
		"two slashes":            {"GET //denied.example/x HTTP/1.1\r\nHost: allowed.example", 200, "GET allowed.example//denied.example/x "},
		"asterisk":               {"OPTIONS * HTTP/1.1\r\nHost: allowed.example", 200, "OPTIONS allowed.example* "},
		"asterisk, denied":       {"OPTIONS * HTTP/1.1\r\nHost: denied.example", 403, ""},
		"two Hosts":              {"GET / HTTP/1.1\r\nHost: allowed.example\r\nHost: denied.example", 400, ""},
		"the same Host twice":    {"GET / HTTP/1.1\r\nHost: allowed.example\r\nHost: allowed.example", 400, ""},
		"no Host":                {"GET / HTTP/1.1\r\nX: y", 400, ""},
		"an empty Host":          {"GET / HTTP/1.1\r\nHost:", 403, ""},
		"HTTP/1.0 with a Host":   {"GET / HTTP/1.0\r\nHost: allowed.example", 200, "GET allowed.example/ "},
		"HTTP/1.0 without":       {"GET / HTTP/1.0\r\nX: y", 403, ""},
		"an address":             {"GET / HTTP/1.1\r\nHost: 192.0.2.1", 403, ""},
		"an IPv6 address":        {"GET / HTTP/1.1\r\nHost: [2001:db8::1]", 403, ""},
		"with a port":            {"GET / HTTP/1.1\r\nHost: [2001:db8::1]:80", 403, ""},
		"another port":           {"GET / HTTP/1.1\r\nHost: allowed.example:8080", 400, ""},
		"no port behind a colon": {"GET / HTTP/1.1\r\nHost: allowed.example:", 200, "GET allowed.example/ "},
		"two colons":             {"GET / HTTP/1.1\r\nHost: allowed.example:80:80", 400, ""},
		"a comma":                {"GET / HTTP/1.1\r\nHost: allowed.example,denied.example", 400, ""},
		"folded":                 {"GET / HTTP/1.1\r\nHost: allowed.example\r\n .evil.example", 400, ""},
		"folded after":           {"GET / HTTP/1.1\r\nHost: allowed.example\r\nX: a\r\n Host: denied.example", 200, "GET allowed.example/ "},
		"space before the colon": {"GET / HTTP/1.1\r\nHost : allowed.example", 400, ""},
		"not ASCII":              {"GET / HTTP/1.1\r\nHost: \xc3\xa4.example", 400, ""},
		"CONNECT":                {"CONNECT allowed.example:443 HTTP/1.1\r\nHost: allowed.example", 403, ""},
		"HTTP/2":                 {"PRI * HTTP/2.0\r\nX: y", 400, ""},
		"HTTP/3.0":               {"GET / HTTP/3.0\r\nHost: allowed.example", 505, ""},
		"TLS on the HTTP port":   {string(records(message(named("allowed.example")), 999)), 400, ""},
		"X-Host":                 {"GET / HTTP/1.1\r\nHost: allowed.example\r\nConnection: Host, X-Host\r\nX-Host: denied.example", 200, "GET allowed.example/ "},
	} {
		r, v := newVisited(t, nil)
		status, body := ask(r, c.head+"\r\n\r\n")
		if status != c.status || v.String() != c.seen {
			t.Errorf("%s: %d %sthe origin saw %q", what, status, body, v)
		}
		eventually(t, what+": nothing was decided", func() bool { return len(r.decisions) == 1 })
	}
}

// TestRequestsCannotBeSmuggled: whatever is sent, the origin sees well-formed requests for allowed
// hosts, as many as the guard has counted.
func TestRequestsCannotBeSmuggled(t *testing.T) {
	hidden := "GET /hidden HTTP/1.1\r\nHost: denied.example\r\n\r\n"
	head := "POST / HTTP/1.1\r\nHost: allowed.example\r\n"
	for what, request := range map[string]string{
		"CL.TE":               head + "Content-Length: 100\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden,
		"TE.CL":               head + "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n2e\r\n" + hidden + "\r\n0\r\n\r\n",
		"two lengths":         head + "Content-Length: 0\r\nContent-Length: 44\r\n\r\n" + hidden,
		"a list of lengths":   head + "Content-Length: 0, 44\r\n\r\n" + hidden,
		"a signed length":     head + "Content-Length: +0\r\n\r\n" + hidden,
		"an unknown coding":   head + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + hidden,
		"two codings":         head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + hidden,
		"a folded coding":     head + "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" + hidden,
		"a vertical tab":      head + "Transfer-Encoding: \vchunked\r\n\r\n0\r\n\r\n" + hidden,
		"bare LF":             strings.ReplaceAll(head+"Content-Length: 0\r\n\r\n"+hidden, "\r\n", "\n"),
		"bare LF in a chunk":  head + "Transfer-Encoding: chunked\r\n\r\n2;\nxx\r\n0\r\n\r\n" + hidden,
		"bare CR":             "GET / HTTP/1.1\r\nHost: allowed.example\r\nX: a\rHost: denied.example\r\n\r\n" + hidden,
		"a body on GET":       "GET / HTTP/1.1\r\nHost: allowed.example\r\nContent-Length: 3\r\n\r\nabc" + hidden,
		"hidden by close":     head + "Connection: close, Content-Length\r\nContent-Length: 3\r\n\r\nabc" + hidden,
		"a split in the path": "GET /\r\nHost: denied.example HTTP/1.1\r\nHost: allowed.example\r\n\r\n" + hidden,
		"upgrade to h2c":      "GET / HTTP/1.1\r\nHost: allowed.example\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n" + hidden,
	} {
		r, v := newVisited(t, func(c *Config) { c.Limits.HelloTimeout, c.Limits.HTTPIdle = 50*time.Millisecond, 50*time.Millisecond })
		c := dial(t, r.http)
		_, _ = io.WriteString(c, request)
		readAll(c)
		eventually(t, what+": the connection stays", func() bool { return r.Open() == 0 })
		seen := v.String()
		for visit := range strings.SplitSeq(seen, "|") {
			if method, _, _ := strings.Cut(visit, "/"); seen != "" && method != "GET allowed.example" && method != "POST allowed.example" {
				t.Errorf("%s: the origin saw %q", what, seen)
			}
		}
		if allowed := r.counted(decisions.Allowed); seen != "" && int(allowed) != strings.Count(seen, "|")+1 {
			t.Errorf("%s: %d were allowed, the origin saw %q", what, allowed, seen)
		}
	}
}

func TestSlowAndLargeHeads(t *testing.T) {
	var sent chan<- bool // or it would be silence
	r, v := newVisited(t, func(c *Config) { c.Limits.HelloTimeout, sent = time.Second, onceSent(c) })
	c := dial(t, r.http)
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: allowed.example\r\n")
	sent <- true
	if got := readAll(c); got != "" {
		t.Errorf("%q", got)
	}
	r.decided(decisions.Malformed, "", reasonBadRequest)
	large, seen := newVisited(t, nil) // which may take its time
	if status, _ := ask(large, "GET / HTTP/1.1\r\nHost: allowed.example\r\nX: "+strings.Repeat("x", 80<<10)+"\r\n\r\n"); status != 431 {
		t.Errorf("%d", status)
	}
	if len(large.decisions) == 0 {
		t.Error("nothing is decided when the answer is there")
	}
	large.decided(decisions.Malformed, "", reasonBadRequest)
	if v.String() != "" || seen.String() != "" {
		t.Errorf("the origin saw %s%s", v, seen)
	}
}
