package e2b

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/internal/waittest"
)

// sample is a request that is in order, to be mangled. Its route's "{id}" is a sandbox's.
type sample struct {
	route, kind, body string
}

const (
	asJSON   = "application/json"
	asStream = "application/connect+json"
	asOctets = "application/octet-stream"
	asForm   = `multipart/form-data; boundary=b`
)

// samples has one for each route at least: TestGarbage looks.
func samples() []sample {
	list := []sample{
		{"POST /v2/sandboxes", asJSON, `{"templateID":"base","timeout":5,"metadata":{"a":"b"},"envVars":{"A":"b"},"allow_internet_access":true,"network":{"allowOut":["a.example.org"],"denyOut":["0.0.0.0/0"],"allowPublicTraffic":true},"autoPause":true,"autoResume":{"enabled":true},"secure":true,"volumeMounts":[]}`},
		{"POST /sandboxes/{id}/timeout", asJSON, `{"timeout":60}`},
		{"PUT /sandboxes/{id}/network", asJSON, `{"allowOut":["a.example.org","10.0.0.0/8"],"denyOut":["0.0.0.0/0"]}`},
		{"POST /sandboxes/{id}/pause", asJSON, `{"memory":true}`},
		{"POST /sandboxes/{id}/connect", asJSON, `{"timeout":60,"autoPause":false}`},
		{"POST /process.Process/Start", asStream, `{"process":{"cmd":"sh","args":["-c","true"],"envs":{"A":"b"},"cwd":"/tmp"},"pty":{"size":{"cols":80,"rows":24}},"tag":"t","stdin":true}`},
		{"POST /process.Process/Connect", asStream, `{"process":{"pid":7}}`},
		{"POST /process.Process/Update", asJSON, `{"process":{"tag":"t"},"pty":{"size":{"cols":80,"rows":24}}}`},
		{"POST /process.Process/SendInput", asJSON, `{"process":{"pid":1},"input":{"stdin":"YWJj"}}`},
		{"POST /process.Process/SendSignal", asJSON, `{"process":{"pid":1},"signal":"SIGNAL_SIGKILL"}`},
		{"POST /process.Process/CloseStdin", asJSON, `{"process":{"pid":1}}`},
		{"POST /filesystem.Filesystem/Move", asJSON, `{"source":"file","destination":"dir/other"}`},
		{"POST /filesystem.Filesystem/ListDir", asJSON, `{"path":"/home/user","depth":3}`},
		{"POST /filesystem.Filesystem/WatchDir", asStream, `{"path":"","recursive":true,"includeEntry":false,"allowNetworkMounts":false}`},
		{"POST /filesystem.Filesystem/CreateWatcher", asJSON, `{"path":"","recursive":true}`},
		{"POST /filesystem.Filesystem/GetWatcherEvents", asJSON, `{"watcherId":"x"}`},
		{"POST /filesystem.Filesystem/RemoveWatcher", asJSON, `{"watcherId":"x"}`},
		{"POST /files", asForm, "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\nContent-Type: text/plain\r\n\r\nx\r\n--b\r\n\r\nno name\r\n--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/opt/b\"\r\n\r\ny\r\n--b--\r\n"},
		{"POST /files", asOctets, "file"},
	}
	named := map[string]bool{}
	for _, s := range list {
		named[s.route] = true
	}
	all := routesInside()
	for route := range controlRoutes() {
		all = append(all, route)
	}
	slices.Sort(all)
	for _, route := range all {
		if !named[route] && route != "DELETE /sandboxes/{id}" {
			list = append(list, sample{route, asJSON, `{"path":"file","timeout":5}`})
		}
	}
	return list
}

// envelope is a message of a stream.
func envelope(flags byte, text []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(text))), text...)
}

// mangler sends what is mangled to a surface whose commands do nothing, and looks at what it answers.
type mangler struct {
	*box
	handler http.Handler
}

func newMangler(t *testing.T) mangler {
	t.Helper()
	var handler http.Handler
	l := newLab(t, func(cfg *Config) { cfg.MaxRequest = 4 << 10; cfg.Unasked = time.Second; handler = New(*cfg) })
	l.engine.inert.Store(true)
	b := l.create(`{"timeout":86400}`)
	put(b, "file", "x")
	return mangler{b, handler}
}

var wrongCode = regexp.MustCompile(`"code":"(internal|unknown|data_loss)"`)

// send sends a body to a route: no answer is a fault of the service's.
func (m mangler) send(t *testing.T, route, kind string, body []byte, query string) {
	t.Helper()
	method, path := request(route, m.ID)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond) // of those that go on by themselves
	defer cancel()
	req := httptest.NewRequestWithContext(ctx, method, "http://localhost"+path+"?"+query, bytes.NewReader(body))
	req.Header = m.header()
	req.Header.Set("X-Api-Key", annesKey)
	req.Header.Set("Content-Type", kind)
	answer := httptest.NewRecorder()
	func() {
		defer func() {
			if fault := recover(); fault != nil && fault != http.ErrAbortHandler {
				t.Errorf("%s %s %q: %v", route, kind, body, fault)
			}
		}()
		m.handler.ServeHTTP(answer, req)
	}()
	if text := answer.Body.String(); answer.Code == http.StatusInternalServerError || wrongCode.MatchString(text) {
		t.Errorf("%s %s %.300q: %d %.300s", route, kind, body, answer.Code, text)
	}
	if text := answer.Body.Len(); text > 64<<10 {
		t.Errorf("%s %s %.300q: an answer of %d bytes", route, kind, body, text)
	}
}

// wrong puts other values into a JSON text, each in the place of each value.
func wrong(text string) (list []string) {
	values := []string{`null`, `true`, `-1`, `1e300`, `18446744073709551616`, `"\ud800"`, `"\u0000"`, `{}`, `[]`, `[[]]`, `"` + strings.Repeat("a", 5000) + `"`, `{"a":{"a":{"a":0}}}`}
	for _, place := range regexp.MustCompile(`(:|\[|,)("[^"]*"|[0-9a-z]+|\{|\[)`).FindAllStringSubmatchIndex(text, -1) {
		at := text[place[4]:]
		decoder := json.NewDecoder(strings.NewReader(at))
		var value json.RawMessage
		if decoder.Decode(&value) != nil {
			continue
		}
		for _, other := range values {
			list = append(list, text[:place[4]]+other+at[len(value):])
		}
	}
	return list
}

// TestGarbage sends every route its sample cut at every byte and with wrong values, envelopes that lie, and a run of random
// changes that is the same each time.
func TestGarbage(t *testing.T) {
	m := newMangler(t)
	before, random := runtime.NumGoroutine(), rand.New(rand.NewPCG(17, 2))
	sent := 0
	send := func(s sample, kind string, body []byte) {
		sent++
		m.send(t, s.route, kind, body, "path=f")
	}
	for _, s := range samples() {
		body := []byte(s.body)
		mangled := wrong(s.body)
		if s.kind == asStream {
			body = envelope(0, body)
			for flags := range 256 {
				send(s, s.kind, envelope(byte(flags), []byte(s.body)))
			}
			for _, length := range []uint32{0, 1, uint32(len(s.body)) + 1, 4 << 10, 1<<31 - 1, 1<<32 - 1} {
				send(s, s.kind, append(binary.BigEndian.AppendUint32([]byte{0}, length), s.body...))
			}
			send(s, s.kind, append(slices.Clone(body), body...))
		}
		for cut := range body {
			send(s, s.kind, body[:cut])
		}
		for _, text := range mangled {
			if s.kind == asStream {
				text = string(envelope(0, []byte(text)))
			}
			send(s, s.kind, []byte(text))
		}
		for _, kind := range []string{"", "x", asJSON, asStream, asOctets, asForm, "multipart/form-data", "application/proto", "application/connect+proto", "application/grpc", "application/grpc-web+json"} {
			send(s, kind, body)
		}
		for range 60 {
			changed := slices.Clone(body)
			for range 1 + random.IntN(4) {
				if len(changed) > 0 {
					changed[random.IntN(len(changed))] = byte(random.IntN(256))
				}
			}
			send(s, s.kind, changed)
		}
	}
	t.Logf("%d requests", sent)
	waittest.Until(t, "the goroutines have ended", func() bool { return runtime.NumGoroutine() <= before+5 })
}

// TestGarbageInQueries sends what is no query to each route that reads one.
func TestGarbageInQueries(t *testing.T) {
	m := newMangler(t)
	random := rand.New(rand.NewPCG(17, 3))
	values := []string{"", "%", "%00", "%zz", "-1", "99999999999999999999", strings.Repeat("a", 9000), "a=b&c", "%2525", "running,", "..", "/", "\xff", "2026-01-01T00:00:00Z", "v1_", "root"}
	for _, route := range []string{"GET /v2/sandboxes", "GET /files", "POST /files", "GET /metrics"} {
		for _, name := range []string{"metadata", "state", "template", "startedAfter", "order", "limit", "nextToken", "path", "username", "signature", "signature_expiration"} {
			for _, value := range values {
				m.send(t, route, asOctets, []byte("x"), name+"="+value)
				m.send(t, route, asOctets, []byte("x"), name+"="+url.QueryEscape(value)+"&"+name+"=b")
			}
		}
		for range 100 {
			text := make([]byte, random.IntN(40))
			for i := range text {
				text[i] = byte(33 + random.IntN(94))
			}
			m.send(t, route, asOctets, []byte("x"), string(bytes.ReplaceAll(text, []byte{'#'}, []byte{'&'})))
		}
	}
}

// FuzzRequests sends a route what the fuzzer makes of the samples.
func FuzzRequests(f *testing.F) {
	list := samples()
	for i, s := range list {
		body := []byte(s.body)
		if s.kind == asStream {
			body = envelope(0, body)
		}
		f.Add(uint8(i), s.kind, body, "path=file&username=user")
	}
	f.Fuzz(func(t *testing.T, which uint8, kind string, body []byte, query string) {
		if strings.ContainsAny(query, " #\r\n\x7f") || strings.ContainsFunc(query, func(r rune) bool { return r < 32 }) || strings.ContainsFunc(kind, func(r rune) bool { return r < 32 || r > 126 }) {
			t.Skipf("no header or request line has %q", query)
		}
		newMangler(t).send(t, list[int(which)%len(list)].route, kind, body, query)
	})
}
