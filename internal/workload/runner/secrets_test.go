package runner

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/credential"
	"github.com/daycare-run/sandbox/internal/hostfs"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/plantest"
	"github.com/daycare-run/sandbox/internal/workload/process"
)

// A process has its credentials at each start, as they are then, and does not start without them.
func TestAProcessWithACredential(t *testing.T) {
	planner := newPlanner(t, "/home")
	cfg := plan.Config{MaxDomains: 10}
	plantest.AddCredentials(t, &cfg, credential.Credential{Name: "github", Hosts: []string{"api.github.com"}, Env: "GITHUB_TOKEN",
		Place: credential.Place{Header: "Authorization", Template: "Bearer {secret}"}})
	planner.Use(cfg)
	box := planner.Sandboxes().List()[0]
	box.Network, box.Secrets = true, []string{"github"}
	if _, _, err := planner.Sandboxes().Put(box, box.CreatedAt); err != nil {
		t.Fatal(err)
	}
	p := process.Record{ID: "p-aaaaaaaaaaaa", Intent: process.Intent{UserID: "alice", SandboxID: "agent", Command: "true", Cwd: "/home",
		Grants: []string{"@network", "@secret:github"}, AllowedDomains: []string{"api.github.com"}}}
	var spec dockerexec.Spec
	var text []byte
	fake := &fakeProcesses{start: func(s dockerexec.Spec) (err error) {
		spec = s
		text, err = os.ReadFile(filepath.Join(s.Process.Dir, launch.File))
		return err
	}}
	runner := New(planner, fake, fake, hostfs.NewTrash(nil), 1<<20, zerolog.Nop())
	github, err := cfg.Credentials.Get("github")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := os.MkdirAll(runner.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := runner.Start(t.Context(), p, nil, nil); err != nil {
			t.Fatal(err)
		}
		l, err := launch.Parse(text)
		if err != nil || !slices.Contains(l.Env, "GITHUB_TOKEN="+github.Placeholder) || !slices.Contains(l.Env, "SSL_CERT_FILE="+spec.BundleAt) {
			t.Errorf("%q, %v", l.Env, err)
		}
		if !slices.Equal(spec.Egress.Secrets, []string{"github"}) || spec.Bundle == "" {
			t.Errorf("%+v", spec)
		}
		p.LastStartedAt = box.CreatedAt // started again
	}
	if err := cfg.Credentials.Remove("github"); err != nil {
		t.Fatal(err)
	}
	if _, err := runner.Start(t.Context(), p, nil, nil); !cerrdefs.IsConflict(err) {
		t.Errorf("without it: %v", err)
	}
}
