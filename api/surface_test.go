package api

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/sandboxtest"
)

// surface is the API as a function: what comes in is a request, what comes out keeps to the contract.
type surface struct {
	*lab
	contract contract
	handler  http.Handler
	// statuses are those that the contract has, by route.
	statuses map[string]map[int]bool
}

// openSurface is the API over the real service without Docker.
func openSurface(t testing.TB) *surface {
	t.Helper()
	c := readContract(t)
	statuses := map[string]map[int]bool{}
	for path, item := range c.model.Paths.PathItems.FromOldest() {
		for method, operation := range item.GetOperations().FromOldest() {
			codes := map[int]bool{}
			for code := range operation.Responses.Codes.FromOldest() {
				n := 0
				for _, digit := range code {
					n = 10*n + int(digit-'0')
				}
				codes[n] = true
			}
			statuses[strings.ToUpper(method)+" "+path] = codes
		}
	}
	tmp := t.TempDir()
	l := newLab(t, nil, func(o *sandboxtest.Options) {
		o.Executor = sandboxtest.Executor{TmpFunc: func() (string, error) { return tmp, nil }}
	})
	close(l.stopping) // so that what is followed ends
	l.File("notes.txt", "content")
	l.ready("agent-7")
	return &surface{l, c, l.handler(), statuses}
}

// ask sends a request, and holds the answer against what every answer has to be. The failure is zero for a
// success.
func (s *surface) ask(t testing.TB, what string, r route, req *http.Request) (status int, failure types.Error) {
	t.Helper()
	out := httptest.NewRecorder()
	s.handler.ServeHTTP(out, req)
	if _, err := s.Get("agent-7"); err != nil || strings.Contains(r.pattern, "/processes") || strings.Contains(r.pattern, "/credentials") { // an earlier request may have removed any
		s.T = t
		s.ready("agent-7")
	}
	method, _, _ := strings.Cut(r.pattern, " ")
	known := s.statuses[r.pattern][out.Code] || out.Code == http.StatusNotFound || out.Code == http.StatusMethodNotAllowed
	if out.Code == http.StatusPartialContent || out.Code == http.StatusNotModified {
		known = true
	}
	if !known {
		t.Errorf("%s, %s: the contract has no %d: %.300s", r.pattern, what, out.Code, out.Body)
	}
	if out.Code < 400 || method == http.MethodHead || req.Method == http.MethodHead {
		return out.Code, failure
	}
	var body types.Failure
	err := json.Unmarshal(out.Body.Bytes(), &body, json.RejectUnknownMembers(true))
	if err != nil || out.Header().Get("Content-Type") != "application/json" || body.Error.Message == "" || body.Error.RequestID == "" {
		t.Errorf("%s, %s: %d is no failure of the contract's form: %q %.300s", r.pattern, what, out.Code, out.Header().Get("Content-Type"), out.Body)
	}
	for _, class := range classes {
		if class.status == out.Code && class.kind == body.Error.Kind {
			return out.Code, body.Error
		}
	}
	t.Errorf("%s, %s: kind %s has no status %d", r.pattern, what, body.Error.Kind, out.Code)
	return out.Code, body.Error
}

// example is the contract's own example of a request, as the handler gets it.
func (s *surface) example(t testing.TB, r route) *http.Request {
	t.Helper()
	req := s.contract.example(t, r, "http://sandboxd", map[string]string{"id": "agent-7", "processId": s.process, "name": "github"})
	req.RequestURI = req.URL.RequestURI()
	return req
}

// TestMangledBodies sends every example of the contract with each of its values wrong in turn.
func TestMangledBodies(t *testing.T) {
	s, sent := openSurface(t), 0
	for _, r := range routes {
		method, path, _ := strings.Cut(r.pattern, " ")
		item, _ := s.contract.model.Paths.PathItems.Get(path)
		operation := item.GetOperations().GetOrZero(strings.ToLower(method))
		if operation.RequestBody == nil {
			continue
		}
		media := operation.RequestBody.Content.GetOrZero("application/json")
		if media == nil {
			continue
		}
		for _, e := range media.Examples.FromOldest() {
			var value any
			if err := e.Value.Decode(&value); err != nil {
				t.Fatal(err)
			}
			text, err := json.Marshal(value, json.Deterministic(true))
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range mangle(t, media.Schema.Schema(), text) {
				req := s.example(t, r)
				req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(m.body)), int64(len(m.body))
				status, failure := s.ask(t, m.what, r, req)
				sent++
				if m.field != "" && (status != http.StatusBadRequest || !strings.Contains(failure.Message, m.field)) {
					t.Errorf("%s, %s: %d %q, want 400 with %q", r.pattern, m.what, status, failure.Message, m.field)
				}
			}
		}
	}
	if sent < 1000 {
		t.Errorf("only %d requests were sent", sent)
	}
}

// What parameters and headers are mangled into.
var (
	badIDs    = []string{"", ".", "..", "A", "a..b", "%00", "%ff", "a%2fb", "%2e%2e", "é", "a%20b", "-a", strings.Repeat("a", 5000), "%22%0a", "*"}
	badValues = []string{
		"", "x", "-1", "0", "1", "1.5", "true", "TRUE", "null", "99999999999999999999", "%00", "%ff", "%zz", "a%0ab", "é", "*", "..", "/",
		"2026-01-01", "2026-01-01T00:00:00Z", "dns", "allowed", strings.Repeat("a", 5000),
	}
	badHeaders = map[string][]string{
		"Content-Type":      {"", "text/plain", "application/json; charset=utf-8", "application/json; x", "multipart/form-data; boundary=x", "\x7f", "application/octet-stream"},
		"Accept":            {"text/html", "application/x-ndjson", "*/*;q=0", "\x7f"},
		"Range":             {"bytes=5-1", "bytes=99-", "bytes=-0", "bytes=0-1,2-3", "lines=1-2", "bytes=x"},
		"If-Match":          {`"x"`, "x", "*"},
		"If-None-Match":     {`"x"`, "*", ","},
		"If-Modified-Since": {"yesterday", "Thu, 01 Jan 1970 00:00:00 GMT"},
		"If-Range":          {"x"},
		"Upgrade":           {"websocket", "h2c"},
		"X-Request-Id":      {"a b", "\x7f", strings.Repeat("a", 5000)},
	}
)

// TestMangledParametersAndHeaders does so with all else that a request has.
func TestMangledParametersAndHeaders(t *testing.T) {
	s := openSurface(t)
	for _, r := range routes {
		method, path, _ := strings.Cut(r.pattern, " ")
		item, _ := s.contract.model.Paths.PathItems.Get(path)
		operation := item.GetOperations().GetOrZero(strings.ToLower(method))
		for _, p := range append(operation.Parameters, item.Parameters...) {
			s.mangleParameter(t, r, p.In, p.Name)
		}
		for _, query := range []string{"zzz=1", "%zz", "a;b", "=", "&&&", "path=a&path=b", strings.Repeat("a", 5000)} {
			req := s.example(t, r)
			req.URL.RawQuery = query
			s.ask(t, "query "+query, r, req)
		}
		for header, values := range badHeaders {
			for _, value := range values {
				req := s.example(t, r)
				req.Header.Set(header, value)
				s.ask(t, header+": "+value, r, req)
			}
		}
		for _, other := range append(methods, "BREW", "CONNECT", "TRACE") {
			_, known := s.statuses[other+" "+path]
			if known || other == http.MethodHead || strings.HasSuffix(path, "/stop-all") { // which may be a process, too
				continue
			}
			req := s.example(t, r)
			req.Method = other
			if status, _ := s.ask(t, "method "+other, r, req); status != http.StatusMethodNotAllowed {
				t.Errorf("%s, method %s: %d", r.pattern, other, status)
			}
		}
	}
}

func (s *surface) mangleParameter(t *testing.T, r route, in, name string) {
	t.Helper()
	if in == "path" {
		for _, value := range badIDs {
			_, path, _ := strings.Cut(r.pattern, " ")
			parsed, err := url.Parse("http://sandboxd" + strings.NewReplacer("{"+name+"}", value, "{id}", "agent-7", "{processId}", s.process, "{name}", "github").Replace(path))
			if err != nil {
				t.Fatal(err)
			}
			req := s.example(t, r)
			parsed.RawQuery = req.URL.RawQuery
			req.URL = parsed
			s.ask(t, name+" "+value, r, req)
		}
		return
	}
	for _, value := range badValues {
		for _, query := range []string{name + "=" + value, name + "=" + value + "&" + name + "=" + value} {
			req := s.example(t, r)
			req.URL.RawQuery = query
			s.ask(t, query, r, req)
		}
	}
}

// FuzzRequests sends anything to any route.
func FuzzRequests(f *testing.F) {
	s := openSurface(f)
	for i, r := range routes {
		req := s.example(f, r)
		var body []byte
		if req.Body != nil {
			body, _ = io.ReadAll(req.Body)
		}
		f.Add(uint8(i), "agent-7", s.process, req.URL.RawQuery, req.Header.Get("Content-Type"), body)
	}
	f.Fuzz(func(t *testing.T, at uint8, id, processID, query, kind string, body []byte) {
		r := routes[int(at)%len(routes)]
		method, path, _ := strings.Cut(r.pattern, " ")
		path = strings.NewReplacer("{id}", id, "{processId}", processID, "{name}", id).Replace(path)
		req, err := http.NewRequestWithContext(t.Context(), method, "http://sandboxd/", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.URL.Path, req.URL.RawQuery = path, query
		if kind != "" {
			req.Header.Set("Content-Type", kind)
		}
		s.ask(t, "fuzzed", r, req)
	})
}
