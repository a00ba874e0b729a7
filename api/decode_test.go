package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/fair"
	"github.com/daycare-run/sandbox/internal/strictjson"
)

// TestBadRequests sends what has to be refused.
func TestBadRequests(t *testing.T) {
	server := newLab(t, nil).serve()
	const put, exec = "PUT /v1/sandboxes/a", "POST /v1/sandboxes/a/exec"
	for _, tt := range []struct {
		name, route, kind, body string // kind is the Content-Type
		status                  int
		message                 string // a part of it
	}{
		{"unknown key", exec, "", `{"command":"ls","comand":1}`, 400, "comand: unknown key"},
		{"unknown nested key", put, "", `{"userId":"a","permissions":{"root":true}}`, 400, "permissions.root: unknown key"},
		{"key in another case", exec, "", `{"Command":"ls"}`, 400, "Command: unknown key"},
		{"duplicate key", exec, "", `{"command":"ls","command":"rm"}`, 400, "command: is given more than once"},
		{"duplicate nested key", exec, "", `{"command":"ls","env":{"A":"1","A":"2"}}`, 400, "env.A: is given more than once"},
		{"number for a string", exec, "", `{"command":7}`, 400, "command: want a string, got a number"},
		{"string for a list", exec, "", `{"argv":"ls"}`, 400, "argv: want a list of strings, got a string"},
		{"string for a number", exec, "", `{"command":"ls","timeoutMs":"10"}`, 400, "timeoutMs: want a whole number, got a string"},
		{"fraction of a millisecond", exec, "", `{"command":"ls","timeoutMs":1.5}`, 400, "timeoutMs"},
		{"number that is too large", exec, "", `{"command":"ls","timeoutMs":1e30}`, 400, "timeoutMs"},
		{"number in the environment", exec, "", `{"command":"ls","env":{"A":1}}`, 400, "env.A: want a string, got a number"},
		{"wrong type in a list", put, "", `{"userId":"a","permissions":{"writeDirs":["/a","/b",3]}}`, 400, "permissions.writeDirs[2]: want a string, got a number"},
		{"wrong type in a list of objects", put, "", `{"userId":"a","mounts":[{"source":"/a","target":"/b"},{"source":[]}]}`, 400, "mounts[1].source: want a string, got a list"},
		{"unknown key in a list", put, "", `{"userId":"a","mounts":[{"source":"/a","to":"/b"}]}`, 400, "mounts[0].to: unknown key"},
		{"number as a key", exec, "", `{"command":"ls","env":{"2":1}}`, 400, "env.2: want a string, got a number"},
		{"key that could break the message", exec, "", `{"command":"ls","a\nb":1}`, 400, `"a\nb": unknown key`},
		{"null", exec, "", `{"command":null}`, 400, "command: want a string, got null"},
		{"null in a list", exec, "", `{"argv":["null",null]}`, 400, "argv[1]: want a string, got null"},
		{"null for the body", exec, "", `null`, 400, "the body: want an object, got null"},
		{"list for the body", exec, "", `["ls"]`, 400, "the body: want an object, got a list"},
		{"truncated", exec, "", `{"command":"ls"`, 400, "the body is not JSON"},
		{"truncated in a string", exec, "", `{"command":"l`, 400, "the body is not JSON"},
		{"no JSON", exec, "", `command=ls`, 400, "the body is not JSON"},
		{"bytes that are not UTF-8", exec, "", "{\"command\":\"\xff\"}", 400, "the body is not JSON: line 1, column 13, near command: cannot be read as JSON: invalid UTF-8"},
		{"empty", exec, "", "", 400, "the body is empty"},
		{"blank", exec, "", " \n\t", 400, "the body is empty"},
		{"a second value", exec, "", `{"command":"ls"}{}`, 400, "the body is not JSON"},
		{"trailing garbage", exec, "", `{"command":"ls"}x`, 400, "the body is not JSON"},
		{"form", exec, "application/x-www-form-urlencoded", `{"command":"ls"}`, 400, `Content-Type "application/x-www-form-urlencoded"`},
		{"broken content type", exec, "application/json; x", `{"command":"ls"}`, 400, "Content-Type"},
		{"stdin is not base64", exec, "", `{"command":"ls","stdin":"?","stdinEncoding":"base64"}`, 400, "stdin is not base64"},
		{"unknown encoding", exec, "", `{"command":"ls","stdinEncoding":"hex"}`, 400, `stdinEncoding "hex"`},
		{"over the limit", exec, "", `{"command":"` + strings.Repeat("a", testMaxRequest) + `"}`, 413, "larger than the limit"},
		{"blanks over the limit", exec, "", `{"command":"ls"}` + strings.Repeat(" ", testMaxRequest), 413, "larger than the limit"},
		{"too many mounts to read", put, "", `{"userId":"a","mounts":[` + strings.Repeat(`{},`, strictjson.MaxValues) + `{}]}`, 400, "mounts: the document has more than 262144 values"},
		{"too many words to read", exec, "", `{"argv":[` + strings.Repeat(`"",`, strictjson.MaxValues) + `""]}`, 400, "argv: the document has more than 262144 values"},
		{"too many variables to read", exec, "", `{"env":{` + strings.Repeat(`"":"",`, strictjson.MaxValues) + `"":""}}`, 400, "env: the document has more than 262144 values"},
		{"unknown path", "GET /v1/nothing", "", "", 404, "there is no GET /v1/nothing"},
		{"root", "GET /", "", "", 404, "there is no GET /"},
		{"path with a slash at its end", "GET /v1/health/", "", "", 404, "there is no GET /v1/health/"},
		{"wrong method", "DELETE /v1/health", "", "", 405, "/v1/health has no DELETE, but GET and HEAD"},
		{"wrong method for a sandbox", "PATCH /v1/sandboxes/a", "", `{}`, 405, "/v1/sandboxes/a has no PATCH, but GET and HEAD and PUT and DELETE"},
		{"unknown method", "BREW /v1/health", "", "", 405, "/v1/health has no BREW, but GET and HEAD"},
		{"path that is not UTF-8", "GET /v1/%ff", "", "", 404, "there is no GET /v1/\uFFFD"},
		{"sandbox id ..", "PUT /v1/sandboxes/..", "", `{"userId":"a"}`, 400, `"/v1/sandboxes/.."`},
		{"sandbox id .. with its dots encoded", "PUT /v1/sandboxes/%2e%2e", "", `{"userId":"a"}`, 400, `"/v1/sandboxes/.."`},
		{"empty sandbox id", "POST /v1/sandboxes//exec", "", `{"command":"ls"}`, 400, `"/v1/sandboxes//exec"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			x := exchange{route: tt.route, body: tt.body}
			req := x.request(t, server.URL)
			if tt.kind != "" {
				req.Header.Set("Content-Type", tt.kind)
			}
			failure, status := refused(t, req)
			if status != tt.status || !strings.Contains(failure.Message, tt.message) {
				t.Errorf("%d %+v, want %d with %q", status, failure, tt.status, tt.message)
			}
		})
	}
}

// refused sends a request that fails, and reads the failure as strictly as its form is fixed.
func refused(t *testing.T, req *http.Request) (types.Error, int) {
	t.Helper()
	response, err := http.DefaultTransport.RoundTrip(req) // follows no redirect
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	var failure types.Failure
	if err := json.Unmarshal(body, &failure); err != nil || response.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("status %d with %q %q: %v", response.StatusCode, response.Header.Get("Content-Type"), body, err)
	}
	return failure.Error, response.StatusCode
}

// TestValuesTakeMemory: what is read of a body is counted beside its bytes.
func TestValuesTakeMemory(t *testing.T) {
	for text, most := range map[string]int{`{"argv":["a","b"]}`: 3, `{"env":{"A":"b"},"command":"x"}`: 3, `{"command":"` + strings.Repeat("x", 1<<20) + `"}`: 1} {
		for _, enough := range []bool{true, false} {
			pool := fair.NewPool(1<<20, most*strictjson.ValueBytes)
			if !enough {
				pool = fair.NewPool(1<<20, most*strictjson.ValueBytes-1)
			}
			memory := &requestMemory{of: pool, holder: "anne"}
			err := decodeJSON([]byte(text), &sentExec{}, memory)
			if enough && err != nil || !enough && !cerrdefs.IsResourceExhausted(err) {
				t.Errorf("%.50s, enough %t: %v", text, enough, err)
			}
			if memory.release(); pool.Stats().Used != 0 {
				t.Errorf("%.50s: %d are left", text, pool.Stats().Used)
			}
		}
	}
}

func TestContentTypeMayHaveParameters(t *testing.T) {
	server := newLab(t, nil).serve()
	req := exchange{route: "POST /v1/sandboxes/a/exec", body: `{"command":"true"}`}.request(t, server.URL)
	req.Header.Set("Content-Type", "application/json; charset=utf-8")
	response, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		t.Errorf("status %d", response.StatusCode)
	}
}

func TestClassesOfErrors(t *testing.T) {
	for _, tt := range []struct {
		err    error
		kind   types.Kind
		status int
	}{
		{cerrdefs.ErrInvalidArgument, types.Invalid, 400},
		{cerrdefs.ErrPermissionDenied, types.Denied, 403},
		{cerrdefs.ErrNotFound, types.NotFound, 404},
		{cerrdefs.ErrConflict, types.Conflict, 409},
		{&http.MaxBytesError{Limit: 1}, types.TooLarge, 413},
		{errs.TooLarge("a picture beyond read.maxImage"), types.TooLarge, 413},
		{errs.ErrNoSpace, types.TooLarge, 507},
		{errBeyond, types.Invalid, 416},
		{errChanged, types.Conflict, 412},
		{errMethod, types.Invalid, 405},
		{cerrdefs.ErrUnauthenticated, types.Denied, 401},
		{cerrdefs.ErrResourceExhausted, types.Busy, 429},
		{cerrdefs.ErrUnavailable, types.Unavailable, 503},
		{errors.New("dial unix: connection refused"), types.Engine, 502},
		{session.ErrBroken, types.Engine, 502},
		{cerrdefs.ErrFailedPrecondition, types.Engine, 502},
		{cerrdefs.ErrNotImplemented, types.Engine, 502},
		{context.DeadlineExceeded, types.Engine, 502},
	} {
		wrapped := fmt.Errorf("cannot run: %w", tt.err)
		failure, status := classify(wrapped)
		if failure.Kind != tt.kind || status != tt.status || !strings.HasPrefix(failure.Message, "cannot run") {
			t.Errorf("%v: %+v %d, want %s %d", tt.err, failure, status, tt.kind, tt.status)
		}
	}
}

// Kind and status name the class; anything else at the end of an error is a reason, and stays.
func TestMessagesDoNotNameTheirClass(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("kind \"cal\" is unknown: %w", cerrdefs.ErrInvalidArgument), "kind \"cal\" is unknown"},
		{fmt.Errorf("it has no PATCH: %w", errMethod), "it has no PATCH"},
		{fmt.Errorf("cannot run: %w", cerrdefs.ErrPermissionDenied), "cannot run: permission denied"},
		{errors.New("cannot run: conflict"), "cannot run: conflict"},
		{fmt.Errorf("cannot run: %w", errs.ErrNoSpace), "cannot run: the disk or quota is full"},
	} {
		if failure, _ := classify(tt.err); failure.Message != tt.want {
			t.Errorf("%q, want %q", failure.Message, tt.want)
		}
	}
}

func TestMessagesAreUTF8(t *testing.T) {
	failure, _ := classify(errors.New("cut in a character: \xe2\x82"))
	if failure.Message != "cut in a character: \uFFFD" {
		t.Errorf("%q", failure.Message)
	}
}

// TestExecsBecomeRequests looks at what the facade gets.
func TestExecsBecomeRequests(t *testing.T) {
	for _, tt := range []struct {
		name    string
		body    string
		timeout *time.Duration
		stdin   string
		none    bool // there is no stdin, so it is /dev/null
	}{
		{name: "nothing", body: `{}`, none: true},
		{name: "text", body: `{"stdin":"é\n"}`, stdin: "é\n"},
		{name: "base64", body: `{"stdin":"AP8=","stdinEncoding":"base64"}`, stdin: "\x00\xff"},
		{name: "empty text", body: `{"stdin":""}`, none: true},
		{name: "no bytes", body: `{"stdin":"","stdinEncoding":"base64"}`, none: true},
		{name: "stdin that is empty on purpose", body: `{"stdinEncoding":"base64"}`, none: true},
		{name: "timeout", body: `{"timeoutMs":1500}`, timeout: duration(1500 * time.Millisecond), none: true},
		{name: "timeout of 0", body: `{"timeoutMs":0}`, timeout: duration(0), none: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var body sentExec
			if err := decodeJSON([]byte(tt.body), &body, &requestMemory{of: memoryOf(testMaxRequest)}); err != nil {
				t.Fatal(err)
			}
			r, err := request(body)
			if err != nil {
				t.Fatal(err)
			}
			if (r.Timeout == nil) != (tt.timeout == nil) || r.Timeout != nil && *r.Timeout != *tt.timeout {
				t.Errorf("timeout %v, want %v", r.Timeout, tt.timeout)
			}
			if (r.Stdin == nil) != tt.none {
				t.Fatalf("stdin %v", r.Stdin)
			}
			if r.Stdin != nil {
				if got, err := io.ReadAll(r.Stdin); err != nil || string(got) != tt.stdin {
					t.Errorf("stdin %q, %v", got, err)
				}
			}
		})
	}
}

func duration(d time.Duration) *time.Duration { return &d }

// A timeout that is out of range stays so in nanoseconds.
func TestTimeoutsDoNotOverflow(t *testing.T) {
	for _, ms := range []int64{-1 << 63, -18446744073709, -1 << 41, -1, 1<<63 - 1, 18446744073709 + 1, 1 << 41} {
		r, err := request(sentExec{Exec: types.Exec{TimeoutMs: &ms}})
		if err != nil {
			t.Fatal(err)
		}
		if day := 24 * time.Hour; *r.Timeout > 0 && *r.Timeout < day || (*r.Timeout < 0) != (ms < 0) {
			t.Errorf("%d ms became %v", ms, *r.Timeout)
		}
	}
}
