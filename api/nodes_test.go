package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/workload/process"
)

// In a cluster in which no host has a lease, health says so and what to look at; a single host has no such warning.
func TestHealthOfAClusterWithoutALease(t *testing.T) {
	for name, tt := range map[string]struct {
		nodes Nodes
		warns bool
	}{
		"one host alone": {nil, false},
		"no lease":       {hosts{}, true},
		"one has one":    {hosts{"host-1": false}, false},
	} {
		l := newLab(t, nil)
		l.nodes = tt.nodes
		server := l.serve()
		response, err := server.Client().Get(server.URL + "/v1/health")
		if err != nil {
			t.Fatal(err)
		}
		var h types.Health
		err = json.NewDecoder(response.Body).Decode(&h)
		_ = response.Body.Close()
		if warned := strings.Contains(strings.Join(h.Warnings, "\n"), "that sandboxd fence runs on each host"); err != nil || warned != tt.warns {
			t.Errorf("%s: %+v, %v", name, h, err)
		}
	}
}

// routed is a Router of host-1, which answers all calls itself, and of which host-3 does not answer.
type routed struct {
	asked  []string
	others string // what host-2 answers
}

func (r *routed) Route(_ http.ResponseWriter, req *http.Request, _ access.Caller, user string, looks bool) (context.Context, func(), error) {
	r.asked = append(r.asked, fmt.Sprintf("%s of %s, looks: %t", req.Method, user, looks))
	return req.Context(), func() {}, nil
}

func (r *routed) Await(context.Context, string) error { return nil }

func (r *routed) Host() string { return "host-1" }

func (r *routed) Gather(context.Context, access.Caller, string) (map[string][]byte, []string) {
	return map[string][]byte{"host-2": []byte(r.others)}, []string{"host-3"}
}

// The host that holds a user removes it, as it answers whatever changes something.
func TestHolderRemovesTheUser(t *testing.T) {
	l, router := newLab(t, nil), &routed{}
	cfg := l.config()
	cfg.Router = router
	out := httptest.NewRecorder()
	New(l.Service, cfg).ServeHTTP(out, httptest.NewRequest(http.MethodDelete, "/v1/users/alice?home=true", nil))
	if out.Code != http.StatusOK || !slices.Equal(router.asked, []string{"DELETE of alice, looks: false"}) {
		t.Errorf("%d %s: %q", out.Code, out.Body, router.asked)
	}
}

func TestProcessesOfAllHosts(t *testing.T) {
	l, router := newLab(t, nil), &routed{others: `{"processes":[{"id":"p-bbbbbbbbbbbb"}]}`}
	own := l.Start(process.Intent{Command: "true"})
	cfg := l.config()
	cfg.Router = router
	out := httptest.NewRecorder()
	New(l.Service, cfg).ServeHTTP(out, httptest.NewRequest(http.MethodGet, "/v1/processes", nil))
	var all types.AllProcesses
	if err := json.Unmarshal(out.Body.Bytes(), &all); err != nil {
		t.Fatal(err)
	}
	if len(all.Processes) != 2 || all.Processes[0].ID != own.ID || all.Processes[1].ID != "p-bbbbbbbbbbbb" || !slices.Equal(all.Unanswered, []string{"host-3"}) {
		t.Errorf("%+v", all)
	}
}

// Commands are cut there, so that nobody makes the list too long for the others, and stay whole where their user asks.
func TestLongCommandsOfAllProcesses(t *testing.T) {
	l := newLab(t, nil)
	long := strings.Repeat("é", shownCommand)
	shell := l.Start(process.Intent{Command: "x" + long})
	l.Start(process.Intent{Argv: []string{"echo", long, "more"}})
	l.Start(process.Intent{Argv: append([]string{"true"}, make([]string, 2*shownCommand)...)})
	ask := func(path string) (all types.AllProcesses) {
		out := httptest.NewRecorder()
		New(l.Service, l.config()).ServeHTTP(out, httptest.NewRequest(http.MethodGet, path, nil))
		if err := json.Unmarshal(out.Body.Bytes(), &all); err != nil {
			t.Fatal(err)
		}
		return all
	}
	all := ask("/v1/processes").Processes
	if want := "x" + strings.Repeat("é", shownCommand/2-1); all[0].Command != want || all[0].ID != shell.ID {
		t.Errorf("%d bytes of the command line", len(all[0].Command))
	}
	if argv := all[1].Argv; len(argv) != 2 || argv[0] != "echo" || len(argv[1]) < shownCommand/2 || len(argv[1]) > shownCommand {
		t.Errorf("%d arguments", len(argv))
	}
	if argv := all[2].Argv; len(argv) > shownCommand {
		t.Errorf("%d arguments that are empty", len(argv))
	}
	if own := ask("/v1/sandboxes/a/processes").Processes; own[0].Command != "x"+long || len(own[1].Argv) != 3 || own[1].Argv[1] != long {
		t.Error("the user's own list is cut")
	}
}
