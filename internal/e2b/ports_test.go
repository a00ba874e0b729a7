package e2b

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strings"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/internal/quota"
)

const testDomain = "sandboxes.example.org"

// portLab is a surface with a domain, a sandbox, and a program that listens in it.
type portLab struct {
	*box
	port string
}

func newPortLab(t *testing.T, body string, program http.HandlerFunc, change ...func(*Config)) portLab {
	t.Helper()
	inside := httptest.NewServer(program)
	t.Cleanup(inside.Close)
	_, port, _ := net.SplitHostPort(inside.Listener.Addr().String())
	l := newLabWith(t, quota.New(quota.Limits{}), append(change, func(c *Config) {
		c.Domain = testDomain
		c.Callers.Listen = "127.0.0.1:0"
	})...)
	return portLab{l.create(body), port}
}

func (l portLab) host() string { return l.port + "-" + l.ID + "." + testDomain }

// ask sends a request to a host.
func (l portLab) ask(host, path string, header http.Header) (*http.Response, string) {
	l.t.Helper()
	req, err := http.NewRequestWithContext(l.t.Context(), "GET", l.url+path, nil)
	if err != nil {
		l.t.Fatal(err)
	}
	req.Header, req.Host = header, host
	if header == nil {
		req.Header = http.Header{}
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		l.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		l.t.Fatal(err)
	}
	return res, strings.TrimSpace(string(text))
}

func dumps(w http.ResponseWriter, req *http.Request) {
	text, _ := httputil.DumpRequest(req, true)
	_, _ = w.Write(text)
}

func TestPortRequestsAreForwarded(t *testing.T) {
	l := newPortLab(t, `{}`, dumps)
	for _, header := range []http.Header{
		{}, {"X-Forwarded-For": {"192.0.2.7"}, "X-Forwarded-Proto": {"https"}},
		{"X-Forwarded-For": {"192.0.2.7"}, "X-Forwarded-Proto": {"https"}, "X-Forwarded-Host": {"proxy.example.org"}},
		{"E2b-Traffic-Access-Token": {"x"}, "X-Api-Key": {keyPrefix + annesKey}, "X-Access-Token": {l.Token}, "Te": {"x"}, "Connection": {"X-Hop"}, "X-Hop": {"1"}},
		{"X-Api-Key": {"the-program's-own"}, "X-Access-Token": {"its-own"}, "Authorization": {"Bearer its-own"}, "Cookie": {"a=b"}, "Origin": {"https://elsewhere.example"}},
	} {
		res, text := l.ask(l.host()+":7482", "/a//b/../c%2Fd?x=1;y&%zz", header)
		if res.StatusCode != http.StatusOK || !strings.HasPrefix(text, "GET /a//b/../c%2Fd?x=1;y&%zz HTTP/1.1\r\nHost: "+l.host()+":7482\r\n") {
			t.Errorf("%v: %d %s", header, res.StatusCode, text)
		}
		has := func(line string) bool { return strings.Contains(text+"\r\n", "\r\n"+line+"\r\n") }
		forwarded, proto := "127.0.0.1", "http"
		if from := header.Get("X-Forwarded-For"); from != "" {
			forwarded, proto = from+", "+forwarded, "https"
		}
		host := cmp.Or(header.Get("X-Forwarded-Host"), l.host()+":7482")
		if !has("X-Forwarded-For: "+forwarded) || !has("X-Forwarded-Proto: "+proto) || !has("X-Forwarded-Host: "+host) {
			t.Errorf("%v: %s", header, text)
		}
		own := header.Get("Authorization") != ""
		for name := range header {
			if !strings.HasPrefix(name, "X-Forwarded") && strings.Contains(text, "\r\n"+name+": ") != own {
				t.Errorf("%s, program's own %v: %s", name, own, text)
			}
		}
	}
}

func TestHostsOfPorts(t *testing.T) {
	l := newPortLab(t, `{}`, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "the program") })
	closed := func() string { // a port at which nobody listens
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		_, port, _ := net.SplitHostPort(listener.Addr().String())
		return port
	}()
	for host, want := range map[string]struct {
		status int
		text   string
	}{
		l.host():                                     {200, "the program"},
		strings.ToUpper(l.host()) + ".":              {200, "the program"},
		l.port + "-i-no-such." + testDomain:          {502, `"sandboxId":"i-no-such"`},
		closed + "-" + l.ID + "." + testDomain:       {502, `"message":"The sandbox is running but port is not open","port":` + closed + `,"detail":"nothing listens`},
		"api." + testDomain:                          {501, "no GET /x"},
		"49983-" + l.ID + "." + testDomain:           {501, "no GET /x"},
		l.port + "-" + l.ID + ".x." + testDomain:     {403, "not called"},
		"0" + l.port + "-" + l.ID + "." + testDomain: {403, "not called"},
		"70000-" + l.ID + "." + testDomain:           {403, "not called"},
		l.port + "-" + l.ID + ".example.org":         {403, "not called"},
		testDomain:                                   {403, "not called"},
	} {
		if res, text := l.ask(host, "/x", nil); res.StatusCode != want.status || !strings.Contains(text, want.text) {
			t.Errorf("%s: %d %s", host, res.StatusCode, text)
		}
	}
	// Where no name says it, a header does.
	at := func(id, port string) http.Header { return http.Header{sandboxHeader: {id}, portHeader: {port}} }
	for _, tt := range []struct {
		header http.Header
		status int
		text   string
	}{
		{at(l.ID, l.port), 200, "the program"},
		{at("i-no-such", l.port), 502, `"sandboxId":"i-no-such"`},
		{at(l.ID, closed), 502, `"message":"The sandbox is running but port is not open","port":` + closed},
		{at(l.ID, "49983"), 501, "no GET /x"},
		{at("", l.port), 400, "names no sandbox"},
		{at(l.ID, "0"+l.port), 400, portHeader},
		{at(l.ID, "70000"), 400, portHeader},
		{http.Header{sandboxHeader: {l.ID}, portHeader: {l.port, "1"}}, 400, portHeader},
	} {
		if res, text := l.ask("localhost", "/x", tt.header); res.StatusCode != tt.status || !strings.Contains(text, tt.text) {
			t.Errorf("%v: %d %s", tt.header, res.StatusCode, text)
		}
	}
	browser := at(l.ID, closed)
	browser.Set("User-Agent", "Mozilla/5.0 (X11; Linux x86_64)")
	if res, text := l.ask("localhost", "/x", browser); res.StatusCode != 502 ||
		res.Header.Get("Content-Type") != "text/html; charset=utf-8" ||
		!strings.Contains(text, "<title>Closed Port Error</title>") || !strings.Contains(text, "port "+closed) {
		t.Errorf("a browser: %d %v %s", res.StatusCode, res.Header, text)
	}
	if res, text := l.ask("api."+testDomain, "/x", at(l.ID, l.port)); res.StatusCode != 200 {
		t.Errorf("%d %s", res.StatusCode, text)
	}
	if res, text := l.ask("example.org", "/x", at(l.ID, l.port)); res.StatusCode != 403 {
		t.Errorf("a page of elsewhere: %d %s", res.StatusCode, text)
	}
	// The name of E2B's own port says which sandbox a call is to, and gives nobody leave.
	for token, want := range map[string]int{l.Token: 204, "x": 404} {
		if res, text := l.ask("49983-"+l.ID+"."+testDomain, "/health", http.Header{"X-Access-Token": {token}}); res.StatusCode != want {
			t.Errorf("%d %s", res.StatusCode, text)
		}
	}
}

// Without the setting e2b.domain no program is reached, by headers either. Clients name envd's own port at all times.
func TestPortsWithoutADomain(t *testing.T) {
	l := portLab{newLabWith(t, quota.New(quota.Limits{})).create(`{}`), "8000"}
	header := http.Header{sandboxHeader: {l.ID}, portHeader: {l.port}, "X-Access-Token": {l.Token}}
	if res, text := l.ask("localhost", "/health", header); res.StatusCode != 403 || !strings.Contains(text, "e2b.domain") {
		t.Errorf("%d %s", res.StatusCode, text)
	}
	header.Set(portHeader, "49983")
	if res, text := l.ask("localhost", "/health", header); res.StatusCode != 204 {
		t.Errorf("%d %s", res.StatusCode, text)
	}
}

func TestPortsThatAreNotForEverybody(t *testing.T) {
	l := newPortLab(t, `{"network":{"allowPublicTraffic":false}}`, dumps)
	_, text, _ := l.call(annesKey, "POST", "/sandboxes/"+l.ID+"/connect", `{"timeout":1}`)
	var made struct{ TrafficAccessToken, Domain string }
	if err := json.Unmarshal([]byte(text), &made); err != nil || made.TrafficAccessToken == "" || made.TrafficAccessToken == l.Token || made.Domain != testDomain {
		t.Fatalf("%s %v", text, err)
	}
	other := l.lab.create(`{"network":{"allowPublicTraffic":false}}`)
	for _, tt := range []struct {
		tokens []string
		want   int
	}{{nil, 403}, {[]string{""}, 403}, {[]string{l.Token}, 403}, {[]string{made.TrafficAccessToken}, 200}, {[]string{"x", made.TrafficAccessToken}, 403}} {
		res, text := l.ask(l.host(), "/", http.Header{trafficHeader: tt.tokens})
		if res.StatusCode != tt.want || strings.Contains(text, made.TrafficAccessToken) {
			t.Errorf("%v: %d %s", tt.tokens, res.StatusCode, text)
		}
	}
	if res, _ := l.ask(l.port+"-"+other.ID+"."+testDomain, "/", http.Header{trafficHeader: {made.TrafficAccessToken}}); res.StatusCode != 403 {
		t.Errorf("another sandbox's token: %d", res.StatusCode)
	}
	if status, text, _ := l.call(annesKey, "PUT", "/sandboxes/"+l.ID+"/network", `{"allowPublicTraffic":true}`); status != 400 {
		t.Errorf("%d %s", status, text)
	}
	if _, text, _ := l.call(annesKey, "GET", "/sandboxes/"+l.ID, ""); !strings.Contains(text, `"allowPublicTraffic":false`) {
		t.Error(text)
	}
}

func TestPortsWakeWhatSleeps(t *testing.T) {
	for body, want := range map[string]int{`{}`: 502, `{"autoPause":true,"autoResume":{"enabled":true}}`: 200} {
		l := newPortLab(t, body, dumps)
		l.call(annesKey, "POST", "/sandboxes/"+l.ID+"/pause", "")
		if res, text := l.ask(l.host(), "/", nil); res.StatusCode != want {
			t.Errorf("%s: %d %s", body, res.StatusCode, text)
		}
	}
}

// TestStreamsOfPorts sees what a program says as it says it, and what it is told after an upgrade, both to the end.
func TestStreamsOfPorts(t *testing.T) {
	more, told := make(chan struct{}), make(chan string, 1)
	life, stop := context.WithCancel(t.Context())
	l := newPortLab(t, `{}`, func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get("Upgrade") == "" {
			fmt.Fprint(w, "first\n")
			w.(http.Flusher).Flush()
			<-more
			fmt.Fprint(w, "second\n")
			return
		}
		conn, both, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		line, _ := both.ReadString('\n')
		fmt.Fprint(conn, "you said "+line)
		rest, _ := io.ReadAll(both)
		told <- string(rest)
	}, func(c *Config) { c.Life = life })
	defer stop()
	open := func(header string) (net.Conn, *bufio.Reader) {
		conn, err := net.Dial("tcp", strings.TrimPrefix(l.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\n%s\r\n", l.host(), header)
		return conn, bufio.NewReader(conn)
	}
	find := func(r *bufio.Reader, want string) {
		t.Helper()
		for {
			line, err := r.ReadString('\n')
			if strings.TrimSpace(line) == want {
				return
			}
			if err != nil {
				t.Fatalf("no %q: %v", want, err)
			}
		}
	}
	_, stream := open("")
	find(stream, "first")
	close(more)
	find(stream, "second")

	conn, upgraded := open("Connection: Upgrade\r\nUpgrade: echo\r\n")
	find(upgraded, "Upgrade: echo")
	fmt.Fprint(conn, "hello\n")
	find(upgraded, "you said hello")
	fmt.Fprint(conn, "the last words")
	_ = conn.Close()
	if rest := <-told; rest != "the last words" {
		t.Errorf("the program was told %q", rest)
	}
	_, upgraded = open("Connection: Upgrade\r\nUpgrade: echo\r\n")
	find(upgraded, "Upgrade: echo")
	stop()
	if _, err := io.ReadAll(upgraded); err != nil {
		t.Errorf("it does not end with the service: %v", err)
	}
}

// TestConnectionsToPortsAreBounded has as many as a sandbox may have, and one more.
func TestConnectionsToPortsAreBounded(t *testing.T) {
	var waiting = make(chan struct{}, maxPortConns)
	l := newPortLab(t, `{}`, func(_ http.ResponseWriter, req *http.Request) {
		waiting <- struct{}{}
		<-req.Context().Done()
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range maxPortConns {
		req, _ := http.NewRequestWithContext(ctx, "GET", l.url, nil)
		req.Host = l.host()
		go func() {
			if res, err := http.DefaultClient.Do(req); err == nil {
				_ = res.Body.Close()
			}
		}()
		<-waiting
	}
	if res, text := l.ask(l.host(), "/", nil); res.StatusCode != http.StatusTooManyRequests {
		t.Fatalf("%d %s", res.StatusCode, text)
	}
	cancel()
	for { // places come back
		req, _ := http.NewRequestWithContext(t.Context(), "GET", l.url, nil)
		req.Host = l.host()
		done := make(chan int, 1)
		go func() {
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				return
			}
			defer res.Body.Close()
			done <- res.StatusCode
		}()
		select {
		case <-waiting:
			return
		case status := <-done:
			if status != http.StatusTooManyRequests {
				t.Fatalf("%d", status)
			}
		}
	}
}

// TestConnectionsThatThePortCloses are over at once, as with servers of HTTP/1.0: a page may have more files than there may be
// connections.
func TestConnectionsThatThePortCloses(t *testing.T) {
	l := newPortLab(t, `{}`, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		fmt.Fprint(w, "a file")
	})
	for i := range maxPortConns + 1 {
		if res, text := l.ask(l.host(), "/", nil); res.StatusCode != http.StatusOK || text != "a file" {
			t.Fatalf("request %d: %d %s", i, res.StatusCode, text)
		}
	}
}

// TestStrangersDoNotUseUpAToken has requests to a port wait, as many as its owner's token may have calls: the owner's are answered.
func TestStrangersDoNotUseUpAToken(t *testing.T) {
	waits := make(chan struct{})
	l := newPortLab(t, `{}`, func(_ http.ResponseWriter, req *http.Request) {
		close(waits)
		<-req.Context().Done()
	}, func(c *Config) {
		c.Callers.Tokens = readTokens(t, strings.TrimSuffix(annesToken, "}")+`,"quotas":{"calls":1}}`)
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, "GET", l.url, nil)
	req.Host = l.host()
	go func() {
		if res, err := http.DefaultClient.Do(req); err == nil {
			_ = res.Body.Close()
		}
	}()
	<-waits
	if status, text, _ := l.call(annesKey, "DELETE", "/sandboxes/"+l.ID, ""); status != http.StatusNoContent {
		t.Errorf("%d %s", status, text)
	}
}
