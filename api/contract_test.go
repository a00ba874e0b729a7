package api

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/sandbox"
)

// exchange is a request and the status that it should be answered with.
type exchange struct {
	name, route string
	service     fakeService
	body        string // of the request; empty for none
	kind        string // the body's Content-Type, when it is not JSON
	accept      string
	status      int
	// breaks says that the request is one that the contract forbids.
	breaks bool
}

// TestExchangesKeepToTheContract walks every route through success and failure and holds both
// directions against openapi.yaml.
func TestExchangesKeepToTheContract(t *testing.T) {
	rules := readContract(t)
	for _, exchanges := range [][]exchange{serviceExchanges(t), sandboxExchanges(t), execExchanges(t), detachedExchanges(t), fileExchanges(), otherExchanges(), transferExchanges(t), egressExchanges(), processExchanges()} {
		for _, x := range exchanges {
			t.Run(x.route+" "+x.name, func(t *testing.T) {
				rules.hold(t, serveFake(t, &x.service).URL, x)
			})
		}
	}
}

func serviceExchanges(t *testing.T) []exchange {
	at := time.Date(2026, 1, 2, 15, 4, 5, 6, time.FixedZone("somewhere", 3600))
	ready := dockerexec.Container{
		Name: "daycare-sandbox-alice-9f86d081884c", ID: strings.Repeat("4d", 32), User: "alice",
		Fingerprint: dockerexec.Spec{}.Fingerprint(), Runtime: "runsc", State: "busy", Commands: 2, Since: at, LastUsed: at,
	}
	starting := ready
	starting.ID, starting.State, starting.Commands = "", "starting", 0
	containers := func(list ...dockerexec.Container) fakeService {
		return fakeService{containers: func() []dockerexec.Container { return list }}
	}
	health := func(h sandbox.Health) fakeService {
		return fakeService{health: func(context.Context) sandbox.Health { return h }}
	}
	boxes := func(list ...sandbox.Sandbox) fakeService {
		return fakeService{list: func() []sandbox.Sandbox { return list }}
	}
	return []exchange{
		{name: "none", route: "GET /v1/containers", service: containers(), status: 200},
		{name: "busy and starting", route: "GET /v1/containers", service: containers(ready, starting), status: 200},
		{name: "healthy", route: "GET /v1/health", status: 200,
			service: health(sandbox.Health{UsersDir: "/data/users", MaxTimeout: time.Minute, Engine: "20.10.24", Runtime: "runsc", Image: "sha256:aa", ImageVersion: "1"})},
		{name: "degraded", route: "GET /v1/health", status: 200, service: health(sandbox.Health{UsersDir: "/data/users", MaxTimeout: time.Minute, Problem: "no engine", Warnings: []string{"the record of process p-aaaaaaaaaaaa is damaged"}})},
		{name: "none", route: "GET /v1/sandboxes", service: boxes(), status: 200},
		{name: "one", route: "GET /v1/sandboxes", service: boxes(testBox(t)), status: 200},
	}
}

func sandboxExchanges(t *testing.T) []exchange {
	puts := func(created bool, err error) fakeService {
		return fakeService{put: func(string, sandbox.Registration) (sandbox.Sandbox, bool, error) { return testBox(t), created, err }}
	}
	gets := func(err error) fakeService {
		return fakeService{get: func(string) (sandbox.Sandbox, error) { return testBox(t), err }}
	}
	deletes := func(err error) fakeService {
		return fakeService{delete: func(string) error { return err }}
	}
	const put, get, remove = "PUT /v1/sandboxes/agent-7", "GET /v1/sandboxes/agent-7", "DELETE /v1/sandboxes/agent-7"
	const alice = `{"userId":"alice","permissions":{"workingDir":"/home/project"}}`
	const all = `{"userId":"alice","permissions":{"workingDir":"/home/project","writeDirs":["/mnt/data"],"readDirs":[],"network":true,"events":true,"appId":"crm"},
		"mounts":[{"source":"/data/users/alice/data","target":"/mnt/data"}],"skillsDir":"/data/users/alice/skills"}`
	large := `{"userId":"alice","permissions":{"workingDir":"` + strings.Repeat("a", testMaxRequest) + `"}}`
	disk := fmt.Errorf("cannot record sandbox: no space left on device")
	return []exchange{
		{name: "new", route: put, body: alice, service: puts(true, nil), status: 201},
		{name: "everything", route: put, body: all, service: puts(true, nil), status: 201},
		{name: "mount without a target", route: put, body: `{"userId":"alice","mounts":[{"source":"/a"}]}`, service: puts(false, classed(cerrdefs.ErrInvalidArgument)), status: 400, breaks: true},
		{name: "again", route: put, body: `{"userId":"alice"}`, service: puts(false, nil), status: 200},
		{name: "upper case", route: put, body: `{"userId":"Alice"}`, service: puts(false, classed(cerrdefs.ErrInvalidArgument)), status: 400, breaks: true},
		{name: "no user", route: put, body: `{}`, service: puts(false, classed(cerrdefs.ErrInvalidArgument)), status: 400, breaks: true},
		{name: "unknown key", route: put, body: `{"userId":"alice","user":1}`, status: 400, breaks: true},
		{name: "outside", route: put, body: alice, service: puts(false, classed(cerrdefs.ErrPermissionDenied)), status: 403},
		{name: "another user's", route: put, body: alice, service: puts(false, classed(cerrdefs.ErrConflict)), status: 409},
		{name: "too large", route: put, body: large, status: 413, breaks: true},
		{name: "disk full", route: put, body: alice, service: puts(false, disk), status: 502},

		{name: "there", route: get, service: gets(nil), status: 200},
		{name: "not there", route: get, service: gets(classed(cerrdefs.ErrNotFound)), status: 404},
		{name: "bad id", route: "GET /v1/sandboxes/A..B", service: gets(classed(cerrdefs.ErrInvalidArgument)), status: 400, breaks: true},

		{name: "there", route: remove, service: deletes(nil), status: 204},
		{name: "not there", route: remove, service: deletes(classed(cerrdefs.ErrNotFound)), status: 404},
		{name: "bad id", route: "DELETE /v1/sandboxes/A..B", service: deletes(classed(cerrdefs.ErrInvalidArgument)), status: 400, breaks: true},
		{name: "disk broken", route: remove, service: deletes(disk), status: 502},
	}
}

func execExchanges(*testing.T) []exchange {
	runs := func(result dockerexec.Result, err error) fakeService {
		return fakeService{exec: func(_ context.Context, _ string, r sandbox.Request, out dockerexec.Output) (sandbox.Result, error) {
			if r.Started != nil && (err == nil || result.Cold) {
				r.Started()
			}
			return sandbox.Result{Result: result, Cwd: "/home", Duration: time.Millisecond},
				firstError(out(dockerexec.Stdout, []byte("6*7")), out(dockerexec.Stderr, []byte{0xff}), err)
		}}
	}
	const exec, attach = "POST /v1/sandboxes/agent-7/exec", "GET /v1/sandboxes/agent-7/exec"
	const shell = `{"command":"ls","permissions":["@workspace","@write:/mnt/data"],"home":"/mnt/data","login":true,"cwd":"src","env":{"A":"1"},"secrets":{"B":""},"timeoutMs":1,
		"denyRead":["/home/secret"],"denyWrite":["/home/project/.git"],"deniedDomains":["*.example.org"]}`
	const stdin = `{"argv":["cat","-"],"stdin":"AP8=","stdinEncoding":"base64"}`
	lost := dockerexec.Result{Cold: true} // fails after the start
	return []exchange{
		{name: "exits", route: exec, body: shell, service: runs(dockerexec.Result{ExitCode: 42, Cold: true}, nil), status: 200},
		{name: "takes stdin", route: exec, body: stdin, service: runs(dockerexec.Result{}, nil), status: 200},
		{name: "is killed", route: exec, body: shell, status: 200,
			service: runs(dockerexec.Result{Signal: syscall.SIGKILL, TimedOut: true, Truncated: true}, nil)},
		{name: "is killed by a real-time signal", route: exec, body: shell, status: 200,
			service: runs(dockerexec.Result{Signal: 34}, nil)},
		{name: "is not found", route: exec, body: shell, status: 200,
			service: runs(dockerexec.Result{ExitCode: 127, CommandFault: "nope: command not found"}, nil)},
		{name: "streams", route: exec, body: shell, accept: ndjson, service: runs(dockerexec.Result{ExitCode: 42}, nil), status: 200},
		{name: "streams and is lost", route: exec, body: shell, accept: ndjson, service: runs(lost, dockerexec.ErrSession), status: 200},

		{name: "both forms", route: exec, body: `{"command":"ls","argv":["ls"]}`, service: runs(lost, classed(cerrdefs.ErrInvalidArgument)), status: 400, breaks: true},
		{name: "no form", route: exec, body: `{}`, service: runs(lost, classed(cerrdefs.ErrInvalidArgument)), status: 400, breaks: true},
		{name: "timeout 0", route: exec, body: `{"command":"ls","timeoutMs":0}`, service: runs(lost, classed(cerrdefs.ErrInvalidArgument)), status: 400, breaks: true},
		{name: "name with =", route: exec, body: `{"command":"ls","env":{"A=B":""}}`, service: runs(lost, classed(cerrdefs.ErrInvalidArgument)), status: 400, breaks: true},
		{name: "unknown tag", route: exec, body: `{"command":"ls","permissions":["@root"]}`, service: runs(lost, classed(cerrdefs.ErrInvalidArgument)), status: 400, breaks: true},
		{name: "denied paths that are no list", route: exec, body: `{"command":"ls","denyRead":"/home/a"}`, status: 400, breaks: true},
		{name: "too many denied paths", route: exec, body: `{"command":"ls","denyWrite":["` + strings.Repeat(`/home/a","`, 64) + `/home/b"]}`, service: runs(lost, classed(cerrdefs.ErrInvalidArgument)), status: 400, breaks: true},
		{name: "unknown encoding", route: exec, body: `{"command":"ls","stdinEncoding":"hex"}`, status: 400, breaks: true},
		{name: "unknown key", route: exec, body: `{"command":"ls","Cwd":"/"}`, status: 400, breaks: true},
		{name: "terminal", route: exec, body: `{"command":"top","tty":{}}`, status: 400},
		{name: "no terminal", route: exec, body: `{"command":"top","tty":{"rows":0}}`, status: 400, breaks: true},
		{name: "truncated", route: exec, body: `{"command":"ls"`, status: 400, breaks: true},
		{name: "outside", route: exec, body: shell, service: runs(lost, classed(cerrdefs.ErrPermissionDenied)), status: 403},
		{name: "not registered", route: exec, body: shell, service: runs(lost, classed(cerrdefs.ErrNotFound)), status: 404},
		{name: "too large", route: exec, body: `{"command":"` + strings.Repeat("a", testMaxRequest) + `"}`, status: 413},
		{name: "busy", route: exec, body: shell, service: runs(lost, classed(cerrdefs.ErrResourceExhausted)), status: 429},
		{name: "engine down", route: exec, body: shell, service: runs(lost, io.ErrUnexpectedEOF), status: 502},
		{name: "stopping", route: exec, body: shell, service: runs(lost, classed(cerrdefs.ErrUnavailable)), status: 503},
		{name: "streams nothing", route: exec, body: shell, accept: ndjson, status: 404,
			service: fakeService{exec: func(context.Context, string, sandbox.Request, dockerexec.Output) (sandbox.Result, error) {
				return sandbox.Result{}, classed(cerrdefs.ErrNotFound)
			}}},
		{name: "no WebSocket", route: attach, status: 400, breaks: true},
	}
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// classed is an error as the facade makes them.
func classed(class error) error { return fmt.Errorf("cannot do this: %w", class) }

// request makes the exchange's request.
func (x exchange) request(t *testing.T, url string) *http.Request {
	t.Helper()
	method, path, _ := strings.Cut(x.route, " ")
	var body io.Reader
	if x.body != "" {
		body = strings.NewReader(x.body)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, url+path, body)
	if err != nil {
		t.Fatal(err)
	}
	if x.body != "" {
		req.Header.Set("Content-Type", cmp.Or(x.kind, "application/json"))
	}
	if x.accept != "" {
		req.Header.Set("Accept", x.accept)
	}
	return req
}
