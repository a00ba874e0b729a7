package sandboxtest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/credential"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/files"
	"github.com/daycare-run/sandbox/internal/sandbox"
	"github.com/daycare-run/sandbox/internal/vault"
	"github.com/daycare-run/sandbox/internal/waittest"
	"github.com/daycare-run/sandbox/internal/warm"
	"github.com/daycare-run/sandbox/internal/workload/process"
)

// Lab is a service made by New, with what is below it. alice has the sandboxes "a" and "agent-7"
// there, which hold the network.
type Lab struct {
	*sandbox.Service
	// T is the test that the lab is for.
	T testing.TB
	// Dir is that of Options.
	Dir    string
	Runner *Runner
	// Credentials are those that operators register.
	Credentials *credential.Store
}

// ValueOf returns the value of the credential of a name.
func (l *Lab) ValueOf(name string) (string, error) {
	c, err := l.Credentials.Get(name)
	if err != nil {
		return "", err
	}
	return l.Credentials.Value(c)
}

// RunFunc is what commands do in a container.
type RunFunc = func(context.Context, dockerexec.Spec, warm.Command,
	session.Output) (warm.Result, error)

// Started returns a RunFunc that reports the start and then calls do.
func Started(do func(context.Context, warm.Command, session.Output) (warm.Result,
	error)) RunFunc {
	return func(ctx context.Context, _ dockerexec.Spec, c warm.Command,
		out session.Output) (warm.Result, error) {
		c.Started()
		return do(ctx, c, out)
	}
}

// NewLab makes a lab. Without run, commands do nothing and exit with 0; change changes what else is
// below the service.
func NewLab(t testing.TB, run RunFunc, change ...func(*Options)) *Lab {
	t.Helper()
	l := &Lab{T: t, Dir: t.TempDir(), Runner: &Runner{}}
	o := Options{Dir: l.Dir, Runner: l.Runner, Executor: Executor{RunFunc: run}}
	for _, c := range change {
		c(&o)
	}
	l.Service = New(t, o)
	key := vault.New(filepath.Join(o.Dir, "credentials.key"))
	var err error
	if l.Credentials, err = credential.Open(filepath.Join(o.Dir, "credentials"), key,
		zerolog.Nop()); err != nil {
		t.Fatal(err)
	}
	l.Register("a")
	l.Register("agent-7")
	return l
}

// Register registers a sandbox of alice's that holds the network.
func (l *Lab) Register(id string) {
	l.T.Helper()
	if _, _, err := l.Put(id, sandbox.Registration{UserID: "alice", Network: true}); err != nil {
		l.T.Fatal(err)
	}
}

// Start starts a process of alice's.
func (l *Lab) Start(n process.Intent) process.Record {
	l.T.Helper()
	record, _, err := l.StartProcess(context.Background(), "a", n, nil)
	if err != nil {
		l.T.Fatal(err)
	}
	return record
}

// Print writes to a process's log.
func (l *Lab) Print(p process.Record, text string) {
	l.T.Helper()
	file, err := os.OpenFile(p.LogPath, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		l.T.Fatal(err)
	}
	_, err = file.WriteString(text)
	if err = errors.Join(err, file.Close()); err != nil {
		l.T.Fatal(err)
	}
}

// End makes a process end by itself, and waits until the service knows.
func (l *Lab) End(p process.Record, exit process.Exit) {
	l.T.Helper()
	l.Runner.end(p.ID, exit)
	waittest.Until(l.T, "the process has ended", func() bool {
		now, err := l.Process("a", p.ID)
		return err == nil && now.Status != process.Running
	})
}

// File makes a file in alice's home and returns where it is on the host.
func (l *Lab) File(name, content string) string {
	l.T.Helper()
	if _, err := l.Stat(context.Background(), "a", files.Where{Path: "~"}); err != nil { // makes the home
		l.T.Fatal(err)
	}
	path := filepath.Join(Home(l.Dir, "alice"), name)
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		l.T.Fatal(err)
	}
	return path
}

// Refuse adds a decision about the container of a call.
func (l *Lab) Refuse(spec dockerexec.Spec, d decisions.Decision) {
	d.Container = spec.ContainerName()
	l.Decisions().Add(d)
}
