package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/sandbox"
	"github.com/daycare-run/sandbox/internal/sandboxtest"
	"github.com/daycare-run/sandbox/internal/warm"
	"github.com/daycare-run/sandbox/internal/workload/process"
)

// The wrapper goes on where its earlier calls have left as many sandboxes as a user may have. It
// takes none in which there is a process, or in which a command runs, and nobody else's.
func TestWrapperMakesRoom(t *testing.T) {
	begun := make(chan struct{}, 1)
	l := newLabWith(t, func(ctx context.Context, _ dockerexec.Spec, c warm.Command,
		_ session.Output) (warm.Result, error) {
		c.Started()
		if c.Terminal {
			begun <- struct{}{}
			<-ctx.Done()
		}
		return warm.Result{}, nil
	}, func(o *sandboxtest.Options) {
		o.Config = func(cfg *sandbox.Config) {
			cfg.Quotas = quota.New(quota.Limits{PerUser: quota.Bounds{Sandboxes: 4}})
		}
	})
	l.mkdir("project")
	t.Chdir(l.host("project"))
	settings := filepath.Join(t.TempDir(), "settings.json")
	wrap := func(writable string) error {
		text := `{"filesystem": {"allowWrite": ["` + writable + `"]}}`
		if err := os.WriteFile(settings, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, _, err := l.run(t.Context(), "", "--settings", settings, "--", "true")
		return err
	}
	wrapped := func() (ids []string) {
		for _, box := range l.List() {
			if id := box.ID.String(); strings.HasPrefix(id, "wrap-alice-") {
				ids = append(ids, id)
			}
		}
		return ids
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(wrap("one"))
	withProcess := wrapped()[0]
	_, _, err := l.StartProcess(t.Context(), withProcess, process.Intent{Command: "serve"}, nil)
	must(err)
	must(wrap("two"))
	two := wrapped()
	must(wrap("three"))
	three := wrapped()
	if len(two) != 2 || len(three) != 2 || !slices.Contains(three, withProcess) ||
		slices.Equal(two, three) || len(l.List()) != 4 {
		t.Fatalf("%q, then %q", two, three)
	}
	idle := slices.DeleteFunc(three, func(id string) bool { return id == withProcess })[0]
	_, err = l.StartExec(t.Context(), idle, sandbox.Request{Command: "top",
		Terminal: &specs.Box{Height: 1, Width: 1}}, true)
	must(err)
	<-begun
	if err := wrap("four"); err == nil || !strings.Contains(err.Error(), "quotas.perUser.sandboxes") {
		t.Errorf("with a process in one and a command in the other: %v", err)
	}
	if got := wrapped(); len(got) != 2 {
		t.Errorf("%q", got)
	}
}

// Commands with ever new grants leave no more sandboxes than a user may have. They take none of a server that runs.
func TestGrantsMakeRoom(t *testing.T) {
	l := newLabWith(t, nil, func(o *sandboxtest.Options) {
		o.Config = func(cfg *sandbox.Config) {
			cfg.Quotas = quota.New(quota.Limits{PerUser: quota.Bounds{Sandboxes: 4}})
		}
	})
	server := l.agent("--user", "alice", "--grant", "@network")
	for i := range 5 {
		dir := fmt.Sprint("dir-", i)
		l.mkdir(dir)
		l.ok("", "exec", "--user", "alice", "--grant", "@write:/home/"+dir, "--", "true")
	}
	server.holds("exec", arguments{"command": "true"}, false, "")
	l.ok("", "pause", "--user", "alice")
	granted, _ := needs("alice", []string{"@network"})
	if box, err := l.Get(granted + "-mcp"); err != nil || !box.Paused {
		t.Errorf("%+v, %v", box, err)
	}
}
