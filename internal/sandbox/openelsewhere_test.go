package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/hostfs"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/plantest"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/internal/rootfs"
	"github.com/daycare-run/sandbox/internal/waittest"
	"github.com/daycare-run/sandbox/internal/warm"
	"github.com/daycare-run/sandbox/internal/workload/process"
)

// opens has processes run that have files of the home open.
type opens struct {
	nobody
	names  []string
	looked chan string
}

func (opens) Start(_ context.Context, r process.Record, _ map[string]string, _ *plan.Plan) (process.Instance, error) {
	return process.Instance{Process: r.ID, User: r.UserID, Container: "c", Started: time.Now(), Running: true, Held: "x"}, nil
}

func (opens) Dir(process.Record) string { return "/none" }

func (opens) Readiness(process.Record) process.Readiness { return process.Readiness{} }

func (o opens) OpenFiles(_ context.Context, i process.Instance, sandbox string) ([]string, error) {
	o.looked <- i.Container + " of " + sandbox
	return o.names, nil
}

// Told is what the call sees and may write to, and what has changed while it ran; once.
func TestWhatAProcessHasOpen(t *testing.T) {
	many := []string{"app.db", "private/x.db", "ro/x.db", ".ssh/x.db", "link.db", "fifo.lock", "old.db", "later.db", "waled.db", "none.db", "../out.db", "mnt/x.db"}
	for _, tt := range []struct {
		name    string
		runtime string
		asked   Confinement
		id      string // that calls
		names   []string
		want    []string
	}{
		{"all", "runsc", Confinement{Permissions: []string{"@workspace"}}, "agent", many, []string{"app.db web", "private/x.db web", "ro/x.db web", "waled.db web"}},
		{"restricted", "runsc", Confinement{Permissions: []string{"@workspace"}, Restrictions: plan.Restrictions{DenyRead: []string{"/home/private"}, DenyWrite: []string{"/home/ro"}}}, "agent", many,
			[]string{"app.db web", "waled.db web"}},
		{"of another sandbox", "runsc", Confinement{Permissions: []string{"@workspace"}}, "other", many[:2], []string{"app.db ", "private/x.db "}},
		{"of another user", "runsc", Confinement{Permissions: []string{"@workspace"}}, "stranger", many, nil},
		{"read-only", "runsc", Confinement{}, "agent", many, nil},
		{"one kernel", "runc", Confinement{Permissions: []string{"@workspace"}}, "agent", many, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			platform := plantest.Platform(t)
			platform.Settings.Runtime, platform.Settings.EventsRuntime = tt.runtime, tt.runtime
			planner := plantest.New(t, rootfs.Config{UsersDir: filepath.Join(root, "users")}, plan.NewPlatforms(platform), nil)
			runner := opens{names: tt.names, looked: make(chan string, 100)}
			processes := openProcessesOf(t, root, runner)
			executor := &fakeExecutor{t: t}
			s := New(testConfig(), Parts{Planner: planner, Runner: executor, Executor: executor, Processes: processes, Trash: hostfs.NewTrash(nil)})
			for id, user := range map[string]string{"agent": "alice", "other": "alice", "stranger": "bob"} {
				if _, _, err := s.Put(id, Registration{UserID: user}); err != nil {
					t.Fatal(err)
				}
			}
			if _, _, err := s.StartProcess(t.Context(), "agent", process.Intent{Name: "web", Command: "x"}, nil); err != nil {
				t.Fatal(err)
			}
			home := filepath.Join(root, "users", "alice", "home")
			at := func(name string) string { return filepath.Join(home, name) }
			var begun time.Time
			executor.run = func(dockerexec.Spec, warm.Command, session.Output) (warm.Result, error) {
				if tt.want != nil { // what is looked up in the background is known before the command has ended
					waittest.Until(t, "a look", func() bool { return len(processes.OpenFiles("alice", "", begun)) > 0 })
				}
				return warm.Result{}, errors.Join(writeAll(at), os.Chtimes(at("old.db"), time.Time{}, time.Now().Add(-time.Minute)),
					os.Chtimes(at("later.db"), time.Time{}, time.Now().Add(time.Hour)), os.Chtimes(at("waled.db"), time.Time{}, time.Now().Add(-time.Minute)))
			}
			var got []string
			begun = time.Now()
			for range 3 {
				ended, err := s.Exec(t.Context(), tt.id, Request{Command: "x", Confinement: tt.asked}, nil)
				if err != nil {
					t.Fatal(err)
				}
				for _, h := range ended.Hints {
					got = append(got, strings.TrimPrefix(h.Path, policy.Home.String()+"/")+" "+h.Process)
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, tt.want) {
				t.Errorf("%q, want %q", got, tt.want)
			}
			if looks := len(runner.looked); looks > 1 || tt.want == nil && looks > 0 || tt.want != nil && fmt.Sprint(<-runner.looked) != "c of agent" {
				t.Errorf("looked at %d times", looks)
			}
		})
	}
}

// writeAll changes everything in a home.
func writeAll(at func(string) string) (err error) {
	for _, dir := range []string{"private", "ro", ".ssh", "mnt"} {
		err = errors.Join(err, os.MkdirAll(at(dir), 0o755))
	}
	for _, name := range []string{"app.db", "private/x.db", "ro/x.db", ".ssh/x.db", "old.db", "later.db", "waled.db", "waled.db-wal", "../out.db"} {
		err = errors.Join(err, os.WriteFile(at(name), []byte("x"), 0o644))
	}
	_ = os.Remove(at("link.db"))
	_ = os.Remove(at("fifo.lock"))
	return errors.Join(err, os.Symlink("app.db", at("link.db")), unix.Mkfifo(at("fifo.lock"), 0o644))
}
