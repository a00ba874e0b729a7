package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
	"github.com/pb33f/libopenapi-validator/config"

	"github.com/daycare-run/sandbox/api"
	"github.com/daycare-run/sandbox/client"
)

// All calls of the suite are checked against the contract: each answer, and each request that the service has
// accepted. Streams, WebSockets and the bytes of files are not checked. A violation fails the suite at its end,
// whatever the scenario was about.

// newClient returns a client of a lab whose calls are checked against the contract.
func newClient(socket string) *client.Client {
	c, err := client.Open(client.Config{Socket: socket, WrapTransport: func(next http.RoundTripper) http.RoundTripper {
		return held{next}
	}})
	if err != nil {
		panic(err) // it needs nothing but a socket
	}
	return c
}

type held struct{ next http.RoundTripper }

// CloseIdleConnections is for http.Client.
func (h held) CloseIdleConnections() {
	if next, ok := h.next.(interface{ CloseIdleConnections() }); ok {
		next.CloseIdleConnections()
	}
}

func (h held) RoundTrip(req *http.Request) (*http.Response, error) {
	var sent []byte
	if req.Body != nil && req.Header.Get("Content-Type") == "application/json" {
		var err error
		if sent, err = io.ReadAll(req.Body); err != nil {
			return nil, err
		}
		_ = req.Body.Close()
		req = req.Clone(req.Context())
		req.Body = io.NopCloser(bytes.NewReader(sent))
	}
	response, err := h.next.RoundTrip(req)
	if err != nil || response.Header.Get("Content-Type") != "application/json" || req.Method == http.MethodHead {
		return response, err
	}
	got, err := io.ReadAll(response.Body)
	_ = response.Body.Close()
	response.Body = io.NopCloser(io.MultiReader(bytes.NewReader(got), failing{err}))
	if err == nil {
		promises.hold(req, sent, response, got)
	}
	return response, nil
}

// failing is the end of a body that was cut off, or of a complete one.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) {
	if f.err == nil {
		return 0, io.EOF
	}
	return 0, f.err
}

// promises has the contract and its violations.
var promises = &contract{broken: map[string]bool{}}

type contract struct {
	mu        sync.Mutex // the validator is not safe for concurrent use
	validator validator.Validator
	broken    map[string]bool
	calls     int
}

func (c *contract) open() error {
	document, err := libopenapi.NewDocument(api.Spec)
	if err != nil {
		return err
	}
	v, faults := validator.NewValidator(document, config.WithFormatAssertions())
	if len(faults) > 0 {
		return fmt.Errorf("cannot read the contract: %v", faults)
	}
	c.validator = v
	return nil
}

func (c *contract) hold(req *http.Request, sent []byte, response *http.Response, got []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	asked := func() *http.Request {
		again := req.Clone(req.Context())
		again.Body = io.NopCloser(bytes.NewReader(sent))
		return again
	}
	if response.StatusCode < 300 {
		if ok, faults := c.validator.ValidateHttpRequestSync(asked()); !ok {
			for _, fault := range faults {
				c.breaks(req, "was taken, but the contract has no such request", fault.Reason, sent)
			}
		}
	}
	answer := *response
	answer.Body = io.NopCloser(bytes.NewReader(got))
	if ok, faults := c.validator.ValidateHttpResponse(asked(), &answer); !ok {
		for _, fault := range faults {
			if bytes.Contains(got, []byte(`"egress":`)) && !bytes.Contains(got, []byte(`"hints":`)) {
				continue // the result is the version before's, which some scenarios run and which has no hints
			}
			reasons := []string{fault.Reason}
			for _, detail := range fault.SchemaValidationErrors {
				reasons = append(reasons, detail.FieldPath+" "+detail.Reason)
			}
			c.breaks(req, fmt.Sprintf("was answered with %d, and the contract has no such answer", response.StatusCode), strings.Join(reasons, "; "), got)
		}
	}
}

func (c *contract) breaks(req *http.Request, what, reason string, text []byte) {
	if len(c.broken) < 50 {
		c.broken[fmt.Sprintf("%s %.100s %s: %s: %.300s", req.Method, req.URL.Path, what, reason, text)] = true
	}
}

// kept prints the violations to stderr, and reports whether there were none.
func (c *contract) kept() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for line := range c.broken {
		fmt.Fprintln(os.Stderr, "e2e: not in the contract:", line)
	}
	return len(c.broken) == 0
}

// The check must find: an answer without a key, an answer with an unknown status, and a request that was accepted
// against the contract.
func TestDriftIsSeen(t *testing.T) {
	begin(t)
	const good = `{"status":"ok","version":"v1","usersDir":"/data/users","maxTimeoutMs":300000,"settings":{"loadedAt":"2026-01-02T15:04:05Z","pending":[]}}`
	for _, tt := range []struct {
		name, route, sent string
		status            int
		got               string
		drifts            bool
	}{
		{"as it should be", "GET /v1/health", "", 200, good, false},
		{"a refusal", "POST /v1/sandboxes/a/exec", `{}`, 400, `{"error":{"kind":"invalid","message":"command is empty"}}`, false},
		{"a key that is missing", "GET /v1/health", "", 200, `{"status":"ok"}`, true},
		{"a status that is not there", "GET /v1/health", "", 507, `{"error":{"kind":"tooLarge","message":"full"}}`, true},
		{"a request that should not be taken", "POST /v1/sandboxes/a/stat", `{"paht":"a"}`, 200, `{"name":"a","type":"file","size":1,"mode":"0644","mtime":"2026-01-02T15:04:05Z"}`, true},
	} {
		c := &contract{broken: map[string]bool{}}
		if err := c.open(); err != nil {
			t.Fatal(err)
		}
		method, path, _ := strings.Cut(tt.route, " ")
		req, err := http.NewRequestWithContext(t.Context(), method, "http://sandboxd"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		c.hold(req, []byte(tt.sent), &http.Response{StatusCode: tt.status, Header: http.Header{"Content-Type": {"application/json"}}, Request: req}, []byte(tt.got))
		if (len(c.broken) > 0) != tt.drifts {
			t.Errorf("%s: %v", tt.name, c.broken)
		}
	}
}
