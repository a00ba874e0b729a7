package api

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/credential"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/sandboxtest"
	"github.com/daycare-run/sandbox/internal/warm"
	"github.com/daycare-run/sandbox/internal/workload/process"
)

// The limits of the servers in these tests, in bytes.
const (
	testMaxRequest = 2 << 20
	testMaxOutput  = 8
)

// lab is a lab with the API in front of it.
type lab struct {
	*sandboxtest.Lab
	stopping chan struct{} // closed by a test whose service stops
	process  string        // that ready has started last
	nodes    Nodes         // nil for one host alone
}

// hosts are those of a cluster, and whether they are drained.
type hosts map[string]bool

func (h hosts) List() (list []types.Node) {
	for name, draining := range h {
		list = append(list, types.Node{Name: name, Address: name + ":7483", Version: "v1.2.3", Draining: draining, Users: 3})
	}
	return list
}

func (h hosts) SetDraining(_ context.Context, node string, draining bool) error {
	h[node] = draining
	return nil
}

func (h hosts) Remove(_ context.Context, node string) error {
	if _, known := h[node]; !known {
		return errs.NotFound("host %q", node)
	}
	if !h[node] {
		return errs.Conflict("host %q", node)
	}
	delete(h, node)
	return nil
}

type runFunc = sandboxtest.RunFunc

func newLab(t testing.TB, run runFunc, change ...func(*sandboxtest.Options)) *lab {
	t.Helper()
	return &lab{Lab: sandboxtest.NewLab(t, run, change...), stopping: make(chan struct{})}
}

// ready makes what requests are about, as an earlier one may have removed it: a sandbox of alice's, a process and a credential.
func (l *lab) ready(id string) {
	l.T.Helper()
	l.Register(id)
	if _, _, err := l.Credentials.Put(credential.Credential{Name: "github", Hosts: []string{"api.example.org"}, Place: credential.Place{Query: "key"}}, "a value"); err != nil {
		l.T.Fatal(err)
	}
	processes, err := l.Processes(id)
	for _, p := range processes {
		if p.Name != "" { // another request may give that name
			err = errors.Join(err, l.RemoveProcess(context.Background(), id, p.ID))
		}
	}
	if err != nil {
		l.T.Fatal(err)
	}
	if _, err := l.Process(id, l.process); err != nil {
		l.Register("a") // which starts it
		l.process = l.Start(process.Intent{Command: "true"}).ID
	}
}

func (l *lab) config() Config {
	return Config{Authenticator: anyone, Nodes: l.nodes, Credentials: l.Credentials, Doctor: look, Version: "v1.2.3", MaxRequest: testMaxRequest, MaxOutput: testMaxOutput, Stopping: l.stopping, Log: zerolog.Nop()}
}

func (l *lab) handler() http.Handler { return New(l.Service, l.config()) }

// look finds one thing of each kind.
func look(context.Context) (types.DoctorReport, error) {
	return types.DoctorReport{
		Findings: []types.DoctorFinding{{Check: "clock", Level: "warning", Found: "it is not kept right", Remedy: "start a time service"}},
		Settings: []types.Setting{{Key: "usersDir", Value: `"/data/users"`}},
	}, nil
}

// serve serves the API until the test ends.
func (l *lab) serve() *httptest.Server {
	server := httptest.NewServer(l.handler())
	l.T.Cleanup(server.Close)
	return server
}

// anyone is an authenticator that admits everybody, to act for everyone.
func anyone(*http.Request) (access.Caller, error) {
	return access.Caller{Name: "test", Users: ids.Everyone()}, nil
}

// lasts makes a command that runs until its call ends.
func lasts() runFunc {
	return sandboxtest.Started(func(ctx context.Context, _ warm.Command, _ session.Output) (warm.Result, error) {
		<-ctx.Done()
		return warm.Result{}, context.Cause(ctx)
	})
}

// prints makes a command that prints parts: "1:" to stdout and "2:" to stderr.
func prints(result warm.Result, err error, parts ...string) runFunc {
	return sandboxtest.Started(func(_ context.Context, _ warm.Command, out session.Output) (warm.Result, error) {
		for _, part := range parts {
			stream := session.Stdout
			if part[0] == '2' {
				stream = session.Stderr
			}
			if err := out(stream, []byte(part[2:])); err != nil {
				return warm.Result{}, err
			}
		}
		return result, err
	})
}

// reaching is a call that may reach b.org; what it is refused comes from Refuse.
const reaching = `{"command":"x","permissions":["@network"],"allowedDomains":["b.org"]}`

// answered sends a request and returns its answer, or fails the test.
func (l *lab) answered(x exchange) string {
	l.T.Helper()
	out, req := httptest.NewRecorder(), x.request(l.T, "http://sandboxd")
	if req.Body == nil {
		req.Body = http.NoBody // as a server has it
	}
	l.handler().ServeHTTP(out, req)
	if out.Code >= http.StatusMultipleChoices {
		l.T.Fatalf("status %d: %s", out.Code, out.Body)
	}
	return strings.TrimSpace(out.Body.String())
}
