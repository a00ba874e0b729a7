package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/sandboxtest"
	"github.com/daycare-run/sandbox/internal/warm"
)

// exchange is a request and the status that it should be answered with.
type exchange struct {
	name, route string
	lab         *lab // nil for one in which all is well
	// fault is what the caller is refused with before the service is asked, for a status that takes more than a lab.
	fault  error
	body   string // of the request; empty for none
	kind   string // the body's Content-Type, when it is not JSON
	accept string
	status int
	// breaks says that the request is one that the contract forbids.
	breaks bool
}

// TestExchangesKeepToTheContract walks every route through success and failure and holds both
// directions against openapi.yaml.
func TestExchangesKeepToTheContract(t *testing.T) {
	rules, well := readContract(t), newLab(t, nil)
	for _, exchanges := range [][]exchange{serviceExchanges(t), sandboxExchanges(t), execExchanges(t), detachedExchanges(t), fileExchanges(t), otherExchanges(t), transferExchanges(t), egressExchanges(t), processExchanges(t), credentialExchanges(t)} {
		for _, x := range exchanges {
			t.Run(x.route+" "+x.name, func(t *testing.T) {
				if x.lab == nil {
					x.lab = well
				}
				cfg := x.lab.config()
				if x.fault != nil {
					cfg.Authenticator = func(*http.Request) (access.Caller, error) { return access.Caller{}, x.fault }
				}
				server := httptest.NewServer(New(x.lab.Service, cfg))
				defer server.Close()
				rules.hold(t, server.URL, x)
			})
		}
	}
}

// engineDown has Docker not answer.
func engineDown(err error) func(*sandboxtest.Options) {
	return func(o *sandboxtest.Options) {
		o.Platform = func(cfg *plan.PlatformConfig) {
			cfg.Inspect = func(context.Context) (engine.Info, error) { return engine.Info{}, err }
		}
	}
}

func serviceExchanges(t *testing.T) []exchange {
	at := time.Date(2026, 1, 2, 15, 4, 5, 6, time.FixedZone("somewhere", 3600))
	ready := dockerexec.Summary{
		Name: "daycare-sandbox-alice-9f86d081884c", ID: strings.Repeat("4d", 32), User: "alice",
		Fingerprint: dockerexec.Spec{}.Fingerprint(), Runtime: "runsc", State: "busy", Commands: 2, Since: at, LastUsed: at,
	}
	starting := ready
	starting.ID, starting.State, starting.Commands = "", "starting", 0
	pooled := dockerexec.Summary{Name: "daycare-sandbox-.pool-k7q-01-user-9f86d081884c", Runtime: "runsc", State: "pooled", Since: at}
	containers := func(list ...dockerexec.Summary) *lab {
		return newLab(t, nil, func(o *sandboxtest.Options) {
			o.Executor = sandboxtest.Executor{List: list, Pool: []dockerexec.Summary{pooled}}
		})
	}
	degraded := newLab(t, nil, engineDown(errors.New("no engine")), func(o *sandboxtest.Options) {
		if err := os.MkdirAll(filepath.Join(o.Dir, "processes", "p-aaaaaaaaaaaa"), 0o700); err != nil { // without a record
			t.Fatal(err)
		}
	})
	if h := degraded.Health(t.Context()); len(h.Warnings) != 1 || h.Problem != "no engine" {
		t.Errorf("it is well: %+v", h)
	}
	clustered := newLab(t, nil)
	clustered.nodes = hosts{"host-1": true, "host-2": false}
	running := newLab(t, sandboxtest.Started(func(ctx context.Context, _ warm.Command, out session.Output) (warm.Result, error) {
		err := out(session.Stdout, []byte("compiling \xff"))
		<-ctx.Done()
		return warm.Result{}, err
	}))
	empty := newLab(t, nil)
	if err := errors.Join(empty.Delete(t.Context(), "a"), empty.Delete(t.Context(), "agent-7")); err != nil {
		t.Fatal(err)
	}
	return []exchange{
		{name: "none", route: "GET /v1/containers", lab: containers(), status: 200},
		{name: "busy and starting", route: "GET /v1/containers", lab: containers(ready, starting), status: 200},
		{name: "usage", route: "GET /v1/containers?usage=true", lab: containers(ready, starting), status: 200},
		{name: "usage, unreadable", route: "GET /v1/containers?usage=much", status: 400, breaks: true},
		{name: "calls", route: "GET /v1/calls", lab: called(t), status: 200},
		{name: "output", route: fmt.Sprintf("GET /v1/sandboxes/agent-7/calls/%d/output", running.call(t)), lab: running, status: 200},
		{name: "output of none", route: "GET /v1/sandboxes/agent-7/calls/987654321/output", status: 404},
		{name: "output, unreadable", route: "GET /v1/sandboxes/agent-7/calls/x/output", status: 404, breaks: true},
		{name: "looked at", route: "GET /v1/doctor", status: 200},
		{name: "none", route: "GET /v1/nodes", status: 200},
		{name: "not there", route: "PUT /v1/nodes/host-9", body: `{"draining":true}`, status: 404},
		{name: "neither", route: "PUT /v1/nodes/host-1", body: `{}`, status: 400, breaks: true},
		{name: "drained", route: "PUT /v1/nodes/host-1", lab: clustered, body: `{"draining":true}`, status: 204},
		{name: "some", route: "GET /v1/nodes", lab: clustered, status: 200},
		{name: "of none", route: "DELETE /v1/nodes/host-1", status: 404},
		{name: "that lives", route: "DELETE /v1/nodes/host-2", lab: clustered, status: 409},
		{name: "removed", route: "DELETE /v1/nodes/host-1", lab: clustered, status: 204},
		{name: "all of all users", route: "GET /v1/processes", lab: running, status: 200},
		{name: "of nobody", route: "DELETE /v1/users/nobody", status: 404},
		{name: "half", route: "DELETE /v1/users/alice?home=half", status: 400, breaks: true},
		{name: "not a user", route: "DELETE /v1/users/Alice", status: 400, breaks: true},
		{name: "removed", route: "DELETE /v1/users/alice", lab: newLab(t, nil), status: 200},
		{name: "removed with the home", route: "DELETE /v1/users/alice?home=true", lab: newLab(t, nil), status: 200},
		{name: "healthy", route: "GET /v1/health", status: 200},
		{name: "degraded", route: "GET /v1/health", lab: degraded, status: 200},
		{name: "none", route: "GET /v1/sandboxes", lab: empty, status: 200},
		{name: "some", route: "GET /v1/sandboxes", status: 200},
	}
}

// sandboxExchanges are made in this order.
func sandboxExchanges(t *testing.T) []exchange {
	const put, get, remove = "PUT /v1/sandboxes/agent-7", "GET /v1/sandboxes/agent-7", "DELETE /v1/sandboxes/agent-7"
	const alice = `{"userId":"alice","permissions":{"workingDir":"/home/project"}}`
	l, unwritable := newLab(t, nil), newLab(t, nil)
	records := filepath.Join(unwritable.Dir, "sandboxes")
	if err := errors.Join(os.RemoveAll(records), os.WriteFile(records, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := l.Delete(t.Context(), "agent-7"); err != nil {
		t.Fatal(err)
	}
	mount := filepath.Join(sandboxtest.Home(l.Dir, "alice"), "..", "data")
	all := fmt.Sprintf(`{"userId":"alice","permissions":{"workingDir":"/home/project","writeDirs":["/mnt/data"],"readDirs":[],"network":true,"events":true,"processes":["web"],"secrets":["github"],"appId":"crm"},
		"mounts":[{"source":%q,"target":"/mnt/data"}],"skillsDir":%q}`, mount, mount)
	large := `{"userId":"alice","permissions":{"workingDir":"` + strings.Repeat("a", testMaxRequest) + `"}}`
	return []exchange{
		{name: "new", route: put, lab: l, body: alice, status: 201},
		{name: "everything", route: strings.Replace(put, "-7", "-8", 1), lab: l, body: all, status: 201},
		{name: "shown with everything", route: strings.Replace(get, "-7", "-8", 1), lab: l, status: 200},
		{name: "mount without a target", route: put, lab: l, body: fmt.Sprintf(`{"userId":"alice","mounts":[{"source":%q}]}`, mount), status: 400, breaks: true},
		{name: "again", route: put, lab: l, body: `{"userId":"alice"}`, status: 200},
		{name: "upper case", route: put, lab: l, body: `{"userId":"Alice"}`, status: 400, breaks: true},
		{name: "no user", route: put, lab: l, body: `{}`, status: 400, breaks: true},
		{name: "unknown key", route: put, lab: l, body: `{"userId":"alice","user":1}`, status: 400, breaks: true},
		{name: "no name of a credential", route: put, lab: l, body: `{"userId":"alice","permissions":{"secrets":["*"]}}`, status: 400, breaks: true},
		{name: "outside", route: put, lab: l, body: `{"userId":"alice","permissions":{"writeDirs":["/etc"]}}`, status: 403},
		{name: "another user's", route: put, lab: l, body: `{"userId":"bob"}`, status: 409},
		{name: "too large", route: put, lab: l, body: large, status: 413, breaks: true},
		{name: "disk full", route: put, lab: unwritable, body: alice, status: 502},

		{name: "there", route: get, lab: l, status: 200},
		{name: "not there", route: "GET /v1/sandboxes/none", lab: l, status: 404},
		{name: "bad id", route: "GET /v1/sandboxes/A..B", lab: l, status: 400, breaks: true},

		{name: "there", route: "POST /v1/sandboxes/agent-7/pause", lab: l, status: 200},
		{name: "for one that runs", route: "POST /v1/sandboxes/agent-7/exec", body: `{"command":"ls","onlyIfRunning":true}`, lab: l, status: 409},
		{name: "paused", route: get, lab: l, status: 200},
		{name: "there", route: "POST /v1/sandboxes/agent-7/resume", lab: l, status: 200},
		{name: "not there", route: "POST /v1/sandboxes/none/pause", lab: l, status: 404},
		{name: "not there", route: "POST /v1/sandboxes/none/resume", lab: l, status: 404},
		{name: "bad id", route: "POST /v1/sandboxes/A..B/pause", lab: l, status: 400, breaks: true},
		{name: "bad id", route: "POST /v1/sandboxes/A..B/resume", lab: l, status: 400, breaks: true},
		{name: "disk full", route: "POST /v1/sandboxes/agent-7/pause", lab: unwritable, status: 502},

		{name: "there", route: remove, lab: l, status: 204},
		{name: "not there", route: remove, lab: l, status: 404},
		{name: "bad id", route: "DELETE /v1/sandboxes/A..B", lab: l, status: 400, breaks: true},
		{name: "disk broken", route: remove, lab: unwritable, status: 502},
	}
}

func execExchanges(t *testing.T) []exchange {
	runs := func(result warm.Result, err error) *lab {
		return newLab(t, prints(result, err, "1:6*7", "2:\xff"))
	}
	fails := func(err error) *lab { // before its start
		return newLab(t, func(context.Context, dockerexec.Spec, warm.Command, session.Output) (warm.Result, error) {
			return warm.Result{}, err
		})
	}
	busy := newLab(t, lasts(), bounded(quota.Bounds{Commands: 1}))
	busy.detach()
	const exec, attach = "POST /v1/sandboxes/agent-7/exec", "GET /v1/sandboxes/agent-7/exec"
	const shell = `{"command":"ls","permissions":["@workspace","@write:/home/mine"],"home":"/home/mine","login":true,"cwd":"src","env":{"A":"1"},"secrets":{"B":""},"timeoutMs":1,
		"denyRead":["/home/secret"],"denyWrite":["/home/project/.git"],"deniedDomains":["*.example.org"]}`
	const stdin = `{"argv":["cat","-"],"stdin":"AP8=","stdinEncoding":"base64"}`
	return []exchange{
		{name: "exits", route: exec, body: shell, lab: runs(warm.Result{Result: session.Result{ExitCode: 42}, Cold: true}, nil), status: 200},
		{name: "takes stdin", route: exec, body: stdin, lab: runs(warm.Result{}, nil), status: 200},
		{name: "is killed", route: exec, body: shell, status: 200,
			lab: runs(warm.Result{Result: session.Result{Signal: syscall.SIGKILL, TimedOut: true}}, nil)},
		{name: "is killed by a real-time signal", route: exec, body: shell, status: 200, lab: runs(warm.Result{Result: session.Result{Signal: 34}}, nil)},
		{name: "is not found", route: exec, body: shell, status: 200,
			lab: runs(warm.Result{Result: session.Result{ExitCode: 127, CommandFault: "nope: command not found"}}, nil)},
		{name: "streams", route: exec, body: shell, accept: ndjson, lab: runs(warm.Result{Result: session.Result{ExitCode: 42}}, nil), status: 200},
		{name: "streams and is lost", route: exec, body: shell, accept: ndjson, lab: runs(warm.Result{}, session.ErrBroken), status: 200},

		{name: "streams frames", route: exec, body: shell, accept: types.Frames, lab: runs(warm.Result{}, nil), status: 200},

		{name: "both forms", route: exec, body: `{"command":"ls","argv":["ls"]}`, status: 400, breaks: true},
		{name: "no form", route: exec, body: `{}`, status: 400, breaks: true},
		{name: "timeout 0", route: exec, body: `{"command":"ls","timeoutMs":0}`, status: 400, breaks: true},
		{name: "name with =", route: exec, body: `{"command":"ls","env":{"A=B":""}}`, status: 400, breaks: true},
		{name: "unknown tag", route: exec, body: `{"command":"ls","permissions":["@root"]}`, status: 400, breaks: true},
		{name: "denied paths that are no list", route: exec, body: `{"command":"ls","denyRead":"/home/a"}`, status: 400, breaks: true},
		{name: "too many denied paths", route: exec, body: `{"command":"ls","denyWrite":["` + strings.Repeat(`/home/a","`, 64) + `/home/b"]}`, status: 400, breaks: true},
		{name: "unknown encoding", route: exec, body: `{"command":"ls","stdinEncoding":"hex"}`, status: 400, breaks: true},
		{name: "unknown key", route: exec, body: `{"command":"ls","Cwd":"/"}`, status: 400, breaks: true},
		{name: "terminal", route: exec, body: `{"command":"top","tty":{}}`, status: 400},
		{name: "no terminal", route: exec, body: `{"command":"top","tty":{"rows":0}}`, status: 400, breaks: true},
		{name: "truncated", route: exec, body: `{"command":"ls"`, status: 400, breaks: true},
		{name: "outside", route: exec, body: `{"command":"ls","cwd":"/etc"}`, status: 403},
		{name: "not registered", route: "POST /v1/sandboxes/none/exec", body: `{"command":"ls"}`, status: 404},
		{name: "too large", route: exec, body: `{"command":"` + strings.Repeat("a", testMaxRequest) + `"}`, status: 413},
		{name: "busy", route: exec, body: shell, lab: busy, status: 429},
		{name: "engine down", route: exec, body: shell, lab: fails(io.ErrUnexpectedEOF), status: 502},
		{name: "stopping", route: exec, body: shell, lab: fails(classed(cerrdefs.ErrUnavailable)), status: 503},
		{name: "streams nothing", route: "POST /v1/sandboxes/none/exec", body: `{"command":"ls"}`, accept: ndjson, status: 404},
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
func (x exchange) request(t testing.TB, url string) *http.Request {
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
