package sandbox

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/credential"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/plantest"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/internal/warm"
	"github.com/daycare-run/sandbox/internal/workload/persistent"
)

// addCredentials has calls find the credentials github and npm.
func addCredentials(t *testing.T, planner *plan.Planner) *credential.Store {
	t.Helper()
	cfg := plan.Config{MaxDomains: 10, Egress: policy.EgressRules{AllowGlobalWildcard: true}}
	header := credential.Place{Header: "Authorization", Template: "Bearer {secret}"}
	plantest.AddCredentials(t, &cfg,
		credential.Credential{Name: "github", Hosts: []string{"api.github.com"}, Place: header, Env: "GITHUB_TOKEN"},
		credential.Credential{Name: "npm", Hosts: []string{"registry.npmjs.org"}, Place: header})
	planner.Use(cfg)
	return cfg.Credentials
}

func asking(domain string, secrets ...string) Confinement {
	asked := Confinement{}
	if domain != "" {
		asked.Permissions, asked.AllowedDomains = []string{policy.TagNetwork}, []string{domain}
	}
	for _, name := range secrets {
		asked.Permissions = append(asked.Permissions, policy.TagSecret+name)
	}
	return asked
}

// A command has the placeholder of its call's credential, unless its caller sets the variable, and its container the name.
func TestACommandWithACredential(t *testing.T) {
	var spec dockerexec.Spec
	var env []string
	s := newService(t, &fakeExecutor{run: func(made dockerexec.Spec, c warm.Command, _ session.Output) (warm.Result, error) {
		spec, env = made, c.Env
		return warm.Result{}, nil
	}}, "")
	cfg := *s.cfg()
	cfg.Decisions = decisions.New(10)
	s.Use(cfg)
	store := addCredentials(t, s.planner)
	if _, _, err := s.Put("agent", Registration{UserID: "alice", Network: true, Secrets: []string{"github", "unknown"}}); err != nil {
		t.Fatal(err)
	}
	github, err := store.Get("github")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		given map[string]string
		want  string
	}{{nil, github.Placeholder}, {map[string]string{"GITHUB_TOKEN": "mine"}, "mine"}} {
		if _, err := s.Exec(t.Context(), "agent", Request{Command: "true", Env: tt.given, Confinement: asking("api.github.com", "github")}, nil); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(spec.Egress.Secrets, []string{"github"}) || !slices.Contains(env, "GITHUB_TOKEN="+tt.want) {
			t.Errorf("%q, %q", spec.Egress.Secrets, env)
		}
	}
	spec = dockerexec.Spec{}
	for name, is := range map[string]func(error) bool{"npm": cerrdefs.IsPermissionDenied, "unknown": cerrdefs.IsConflict, "*": cerrdefs.IsInvalidArgument} {
		if _, err := s.Exec(t.Context(), "agent", Request{Command: "true", Confinement: asking("api.github.com", name)}, nil); !is(err) || !strings.Contains(err.Error(), "@secret:"+name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if spec.User != "" {
		t.Errorf("what was refused ran: %+v", spec)
	}
}

func TestExplainSaysWhereCredentialsGo(t *testing.T) {
	s := newService(t, nil, "")
	addCredentials(t, s.planner)
	if _, _, err := s.Put("agent", Registration{UserID: "alice", Network: true, Secrets: []string{"github", "npm"}}); err != nil {
		t.Fatal(err)
	}
	for domain, want := range map[string]string{
		"api.github.com": "[{github [api.github.com] GITHUB_TOKEN } {npm [registry.npmjs.org]  }]",
		"":               "[{github []  the call has no network} {npm []  the call has no network}]",
	} {
		e, err := s.Explain(t.Context(), "agent", false, asking(domain, "npm", "github"))
		if got := fmt.Sprint(e.Secrets); err != nil || got != want {
			t.Errorf("%q: %s, not %s, %v", domain, got, want, err)
		}
	}
	e, err := s.Explain(t.Context(), "agent", false, asking("api.github.com"))
	if err != nil || e.Secrets != nil {
		t.Errorf("a call without any: %+v, %v", e.Secrets, err)
	}
}

// In a machine, nothing is put in, and a call that asks for it is told where it can be.
func TestNoCredentialsInAPersistentSandbox(t *testing.T) {
	s := newService(t, nil, "")
	s.persistent = &persistent.Sandboxes{}
	err := s.checkInside(Sandbox{Persistent: true, Secrets: []string{"github"}}, asking("", "github"))
	if !cerrdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), `"@secret:github" is for calls that have a container of their own`) {
		t.Error(err)
	}
}

// A container that is made in advance has no network, and so no credentials.
func TestNoCredentialsInAdvance(t *testing.T) {
	s := newService(t, nil, "")
	_, _, err := s.Put("agent", Registration{UserID: "alice", Secrets: []string{"github"}, Warm: []string{"@workspace", "@secret:github"}})
	if !cerrdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "warm cannot include @secret:github") {
		t.Error(err)
	}
}

// No container of the pool trusts what one with credentials does.
func TestThePoolHasNoCredentials(t *testing.T) {
	s, pool, fake := newPool(t, 2, 5)
	addCredentials(t, pool.planner)
	box := Registration{Network: true, Secrets: []string{"github"}}
	if err := first(t, s, "alice", box, Request{Confinement: asking("api.github.com", "github")}); err != nil {
		t.Fatal(err)
	}
	if got := pool.Stats(); got.Asked[poolUnlike] != 1 || got.Classes != 0 {
		t.Errorf("%+v", got)
	}
	for i := range 2 {
		if err := first(t, s, fmt.Sprint("user-", i), box, Request{Confinement: asking("api.github.com")}); err != nil {
			t.Fatal(err)
		}
		pool.fillNow(t)
	}
	if fake.bound["user-1"] == "" {
		t.Error("who asks for no credential gets nothing")
	}
	if err := first(t, s, "bob", box, Request{Confinement: asking("api.github.com", "github")}); err != nil || fake.bound["bob"] != "" {
		t.Errorf("%q, %v", fake.bound["bob"], err)
	}
}
