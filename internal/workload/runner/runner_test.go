package runner

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/hostfs"
	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/plantest"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/registry"
	"github.com/daycare-run/sandbox/internal/rootfs"
	"github.com/daycare-run/sandbox/internal/workload/process"
	"github.com/daycare-run/sandbox/pathmap"
)

// newPlanner makes a planner with sandbox "agent" of alice in a directory.
func newPlanner(t *testing.T, workingDir string) *plan.Planner {
	t.Helper()
	planner := plantest.New(t, rootfs.Config{UsersDir: filepath.Join(t.TempDir(), "users")}, plan.NewPlatforms(plantest.Platform(t)), nil)
	var box registry.Sandbox
	var faults [3]error
	box.ID, faults[0] = ids.ParseSandbox("agent")
	box.User, faults[1] = ids.ParseUser("alice")
	box.WorkingDir, faults[2] = pathmap.ParseContainer(workingDir)
	if err := errors.Join(faults[:]...); err != nil {
		t.Fatal(err)
	}
	if _, _, err := planner.Sandboxes().Put(box, time.Now()); err != nil {
		t.Fatal(err)
	}
	return planner
}

// fakeProcesses starts what a test says, and ends as it says.
type fakeProcesses struct {
	start func(dockerexec.Spec) error
	exit  dockerexec.ProcessContainer
	// tokens are those on behalf of which containers were made.
	tokens []quota.Token
	// tmp is the user's /tmp, and held how many hold it.
	tmp  string
	held int
}

func (f *fakeProcesses) StartProcess(_ context.Context, s dockerexec.Spec, token quota.Token) (dockerexec.ProcessContainer, error) {
	f.tokens = append(f.tokens, token)
	return dockerexec.ProcessContainer{Process: s.Process.ID, ID: "c", Spec: s, Running: true, PID: 7}, f.start(s)
}

func (f *fakeProcesses) Processes(context.Context) ([]dockerexec.ProcessContainer, error) {
	return nil, nil
}

func (f *fakeProcesses) StopProcess(context.Context, string, syscall.Signal, time.Duration) error {
	return nil
}

func (f *fakeProcesses) RemoveProcess(context.Context, string) error { return nil }

func (f *fakeProcesses) InspectProcess(context.Context, string) (dockerexec.ProcessContainer, error) {
	return f.exit, nil
}

func (f *fakeProcesses) Tmp(_ context.Context, _ dockerexec.Spec, token quota.Token, _ bool) (string, func(), error) {
	f.tokens = append(f.tokens, token)
	if f.tmp == "" {
		return "", nil, errors.New("no /tmp here")
	}
	f.held++
	return f.tmp, func() { f.held-- }, nil
}

func (f *fakeProcesses) PauseDetached(context.Context, string) error { return nil }

func (f *fakeProcesses) ResumeDetached(context.Context, string) error { return nil }

func (f *fakeProcesses) DialProcess(context.Context, string, int) (session.PortConn, error) {
	return session.PortConn{}, errors.New("nobody listens")
}

func (f *fakeProcesses) ProcessPorts(context.Context, string, func([]int) bool) error {
	return errors.New("nobody listens")
}

// What is to be run lies in the process's folder, for its user alone, and is taken away when nothing reads
// it; what is there already leads nowhere.
func TestRunnerLaysTheLaunch(t *testing.T) {
	planner := newPlanner(t, "/home")
	p := process.Record{ID: "p-aaaaaaaaaaaa", Token: "t", Intent: process.Intent{
		UserID: "alice", SandboxID: "agent", Command: "echo hi", Cwd: "/home", Home: "/tmp", Grants: []string{}, Env: map[string]string{"A": "1"},
	}}
	var text []byte
	fake := &fakeProcesses{start: func(s dockerexec.Spec) (err error) {
		if s.Process.ID != p.ID {
			t.Errorf("%+v", s.Process)
		}
		text, err = os.ReadFile(filepath.Join(s.Process.Dir, launch.File))
		return err
	}}
	runner := New(planner, fake, fake, hostfs.NewTrash(nil), 1<<20, zerolog.Nop())
	dir := runner.Dir(p)
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	if err := errors.Join(os.WriteFile(elsewhere, []byte("mine"), 0o600), os.MkdirAll(dir, 0o755), os.Symlink(elsewhere, filepath.Join(dir, launch.File)), os.Symlink(elsewhere, filepath.Join(dir, launch.StateFile))); err != nil {
		t.Fatal(err)
	}
	started, err := runner.Start(t.Context(), p, map[string]string{"TOKEN": "hush"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	l, err := launch.Parse(text)
	if err != nil || l.Shell != "echo hi" || l.Cwd != "/home" || l.Log.MaxBytes*int64(l.Log.Files+1) > 1<<20 {
		t.Errorf("%+v, %v", l, err)
	}
	env := strings.Join(l.Env, "\n")
	for _, want := range []string{"A=1", "TOKEN=hush", "HOME=/tmp", "PATH=/bin"} {
		if !strings.Contains("\n"+env+"\n", "\n"+want+"\n") {
			t.Errorf("no %s in %q", want, env)
		}
	}
	if mine, err := os.ReadFile(elsewhere); err != nil || string(mine) != "mine" {
		t.Errorf("what a link led to is %q, %v", mine, err)
	}
	if strings.Contains(string(started.Applied), "hush") || !json.Valid(started.Applied) {
		t.Errorf("%s", started.Applied)
	}
	fake.start = func(dockerexec.Spec) error { return errors.New("no") }
	if _, err := runner.Start(t.Context(), p, map[string]string{"TOKEN": "hush"}, nil); err == nil {
		t.Error("started")
	}
	if _, err := os.Lstat(filepath.Join(dir, launch.File)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the secrets stay: %v", err)
	}
	p.Home = "/tmp/home"
	if _, err := runner.Start(t.Context(), p, nil, nil); err == nil || !strings.Contains(err.Error(), "no /tmp here") {
		t.Errorf("with a home in /tmp: %v", err)
	}
	if !slices.Equal(fake.tokens, slices.Repeat([]quota.Token{{Name: "t"}}, 3)) {
		t.Errorf("on behalf of %+v", fake.tokens)
	}
	fake.tmp = t.TempDir()
	if err := unix.Mount("tmpfs", fake.tmp, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(fake.tmp, 0) })
	fake.start = func(dockerexec.Spec) error {
		if _, err := os.Stat(filepath.Join(fake.tmp, "home")); err != nil || fake.held != 1 {
			t.Errorf("%d hold /tmp while the process starts; its home: %v", fake.held, err)
		}
		return nil
	}
	if _, err := runner.Start(t.Context(), p, nil, nil); err != nil || fake.held != 0 {
		t.Errorf("%d hold /tmp in the end: %v", fake.held, err)
	}
	p.UserID = "bob"
	if _, err := runner.Start(t.Context(), p, nil, nil); err == nil {
		t.Error("started for another user than the sandbox's")
	}
}

// How a process ended is what Docker says; its own words count where they fit.
func TestRunnerExit(t *testing.T) {
	done := launch.State{StartedAt: time.Unix(1, 0), EndedAt: time.Unix(2, 0), Lost: 5}
	for _, c := range []struct {
		name   string
		code   int
		lay    func(dir string) error
		signal syscall.Signal
		lost   uint64
	}{
		{"nothing said", 3, func(string) error { return nil }, 0, 0},
		{"killed before it could", 137, func(string) error { return nil }, unix.SIGKILL, 0},
		{"a signal", 143, state(done, "SIGTERM"), unix.SIGTERM, 5},
		{"a code like a signal's", 143, state(done, ""), 0, 5},
		{"a signal that does not fit", 1, state(done, "SIGTERM"), 0, 5},
		{"still running", 137, state(launch.State{StartedAt: time.Unix(1, 0)}, ""), unix.SIGKILL, 0},
		{"a pipe", 3, func(dir string) error { return unix.Mkfifo(filepath.Join(dir, launch.StateFile), 0o600) }, 0, 0},
		{"a link", 3, func(dir string) error { return os.Symlink("/etc/passwd", filepath.Join(dir, launch.StateFile)) }, 0, 0},
		{"garbage", 3, func(dir string) error { return os.WriteFile(filepath.Join(dir, launch.StateFile), []byte("{"), 0o600) }, 0, 0},
	} {
		dir := t.TempDir()
		if err := c.lay(dir); err != nil {
			t.Fatal(err)
		}
		runner := New(newPlanner(t, "/home"), &fakeProcesses{exit: dockerexec.ProcessContainer{Why: "why", ExitCode: c.code, Spec: dockerexec.Spec{Process: dockerexec.Process{Dir: dir}}}}, nil, hostfs.NewTrash(nil), 1<<20, zerolog.Nop())
		exit, err := runner.Exit(t.Context(), process.Instance{})
		if err != nil || exit.Reason != "why" || exit.Code != c.code || exit.Signal != c.signal || exit.Lost != c.lost {
			t.Errorf("%s: %+v, %v", c.name, exit, err)
		}
	}
}

// Whoever reads of a process that ran out of memory, in its record or its log, learns how much it might use.
func TestRunnerExitOutOfMemory(t *testing.T) {
	const words = "out of memory: this container may use 128Mi (limits.memory), its tmpfs included"
	for name, tt := range map[string]struct {
		lay  func(log string) error
		want string // of the log; empty if it is not to be read
	}{
		"a log":           {func(log string) error { return os.WriteFile(log, []byte("printed\n"), 0o600) }, "printed\n[sandbox: " + words + "]\n"},
		"a line's middle": {func(log string) error { return os.WriteFile(log, []byte("print"), 0o600) }, "print\n[sandbox: " + words + "]\n"},
		"an empty log":    {func(log string) error { return os.WriteFile(log, nil, 0o600) }, "[sandbox: " + words + "]\n"},
		"no log":          {func(string) error { return nil }, ""},
		"a pipe":          {func(log string) error { return unix.Mkfifo(log, 0o600) }, ""},
		"a link": {func(log string) error {
			return errors.Join(os.WriteFile(log+".target", nil, 0o600), os.Symlink(log+".target", log))
		}, ""},
		"a file of two names": {func(log string) error {
			return errors.Join(os.WriteFile(log+".target", nil, 0o600), os.Link(log+".target", log))
		}, ""},
	} {
		dir := t.TempDir()
		log := filepath.Join(dir, launch.LogFile)
		if err := tt.lay(log); err != nil {
			t.Fatal(err)
		}
		spec := dockerexec.Spec{Process: dockerexec.Process{Dir: dir}, Platform: dockerexec.Platform{Limits: dockerexec.Limits{Memory: 128 << 20}}}
		runner := New(newPlanner(t, "/home"), &fakeProcesses{exit: dockerexec.ProcessContainer{ExitCode: 137, OOM: true, Spec: spec}}, nil, hostfs.NewTrash(nil), 1<<20, zerolog.Nop())
		exit, err := runner.Exit(t.Context(), process.Instance{})
		if err != nil || !exit.OOM || exit.Signal != unix.SIGKILL || exit.Reason != words {
			t.Errorf("%s: %+v, %v", name, exit, err)
		}
		if target, err := os.ReadFile(log + ".target"); err == nil && len(target) > 0 {
			t.Errorf("%s: %q was written elsewhere", name, target)
		}
		if tt.want == "" {
			continue
		}
		if text, err := os.ReadFile(log); string(text) != tt.want {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
}

// Docker may learn of the memory after the end, or never. The process's first program sees it, and is believed where that fits the
// end.
func TestAProcessOutOfMemoryIsToldWithoutDockersWord(t *testing.T) {
	const words = "out of memory: this container may use 128Mi (limits.memory), its tmpfs included"
	for name, tt := range map[string]struct {
		code        int
		outOfMemory bool
		want        string
	}{
		"killed for memory":      {137, true, words},
		"killed":                 {137, false, ""},
		"it says so, and exited": {0, true, ""},
	} {
		dir := t.TempDir()
		if err := state(launch.State{EndedAt: time.Unix(2, 0), OutOfMemory: tt.outOfMemory}, "SIGKILL")(dir); err != nil {
			t.Fatal(err)
		}
		spec := dockerexec.Spec{Process: dockerexec.Process{Dir: dir}, Platform: dockerexec.Platform{Limits: dockerexec.Limits{Memory: 128 << 20}}}
		runner := New(newPlanner(t, "/home"), &fakeProcesses{exit: dockerexec.ProcessContainer{ExitCode: tt.code, Spec: spec}}, nil, hostfs.NewTrash(nil), 1<<20, zerolog.Nop())
		exit, err := runner.Exit(t.Context(), process.Instance{})
		if err != nil || exit.OOM != (tt.want != "") || exit.Reason != tt.want {
			t.Errorf("%s: %+v, %v", name, exit, err)
		}
	}
}

// state lays what a process's first program says of its end.
func state(s launch.State, signal string) func(string) error {
	s.Signal = signal
	return func(dir string) error { return os.WriteFile(filepath.Join(dir, launch.StateFile), s.Encode(), 0o600) }
}

// A working directory that is not there any more is made anew, and that is said.
func TestAWorkingDirectoryIsNotMadeAnewInSilence(t *testing.T) {
	planner := newPlanner(t, "/home/app")
	p := process.Record{ID: "p-aaaaaaaaaaaa", Intent: process.Intent{UserID: "alice", SandboxID: "agent", Command: "true", Cwd: "/home/app", Grants: []string{}}}
	var note string
	fake := &fakeProcesses{start: func(s dockerexec.Spec) error {
		text, err := os.ReadFile(filepath.Join(s.Process.Dir, launch.File))
		if err == nil {
			l, fault := launch.Parse(text)
			note, err = l.Note, fault
		}
		return err
	}}
	runner := New(planner, fake, fake, hostfs.NewTrash(nil), 1<<20, zerolog.Nop())
	for i, want := range []string{"", "", "was made anew: it is empty"} {
		started, err := runner.Start(t.Context(), p, nil, nil)
		if err != nil || started.Notice != note || (note == "") != (want == "") || !strings.HasSuffix(note, want) {
			t.Errorf("start %d: %q, %q, %v", i, started.Notice, note, err)
		}
		p.LastStartedAt = time.Now()
		if i == 1 {
			home := filepath.Join(planner.Files().UsersDir(), "alice", "home")
			if err := os.Rename(filepath.Join(home, "app"), filepath.Join(home, "old")); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A directory in which a process ran is made anew, too, where it may write, and in a further mount as in the home; elsewhere
// it stays away, and so do the names that a link would lead to.
func TestADirectoryOfAProcessIsMadeAnew(t *testing.T) {
	planner := newPlanner(t, "/home")
	source, elsewhere := t.TempDir(), t.TempDir()
	if err := errors.Join(os.Chown(source, plantest.UID, plantest.GID), os.Chown(elsewhere, plantest.UID, plantest.GID), os.Symlink(elsewhere, filepath.Join(source, "link"))); err != nil {
		t.Fatal(err)
	}
	box, err := planner.Sandboxes().Find("agent")
	if err != nil {
		t.Fatal(err)
	}
	for at, readOnly := range map[string]bool{"/data": false, "/reference": true} {
		host, fault := pathmap.ParseHost(source)
		target, err := pathmap.ParseContainer(at)
		if err := errors.Join(fault, err); err != nil {
			t.Fatal(err)
		}
		box.Mounts = append(box.Mounts, registry.Mount{Source: host, Target: target, ReadOnly: readOnly})
		if !readOnly {
			box.WriteDirs = append(box.WriteDirs, target)
		}
	}
	if _, _, err := planner.Sandboxes().Put(box, time.Now()); err != nil {
		t.Fatal(err)
	}
	fake := &fakeProcesses{start: func(dockerexec.Spec) error { return nil }}
	runner := New(planner, fake, fake, hostfs.NewTrash(nil), 1<<20, zerolog.Nop())
	home := filepath.Join(planner.Files().UsersDir(), "alice", "home")
	for cwd, tt := range map[string]struct {
		grants []string
		made   string // on the host
	}{
		"/home/site/deep": {[]string{"@workspace"}, filepath.Join(home, "site/deep")},
		"/home/readonly":  {[]string{}, ""},
		"/data/job":       {[]string{"@write:/data"}, filepath.Join(source, "job")},
		"/data/link/job":  {[]string{"@write:/data"}, ""},
		"/reference/job2": {[]string{}, ""},
		"/home/.ssh/x":    {[]string{"@workspace"}, ""},
		"/tmp/gone":       {[]string{"@workspace"}, ""},
	} {
		p := process.Record{ID: "p-aaaaaaaaaaaa", Intent: process.Intent{UserID: "alice", SandboxID: "agent", Command: "true", Cwd: cwd, Grants: tt.grants}}
		for _, want := range []bool{false, tt.made != "", false} { // at the first start, at the next, and at the one after that
			started, err := runner.Start(t.Context(), p, nil, nil)
			if err != nil || (started.Notice != "") != want || want && !strings.Contains(started.Notice, cwd+" was not there any more") {
				t.Errorf("%s: %q, %v", cwd, started.Notice, err)
			}
			p.LastStartedAt = time.Now()
		}
		if tt.made == "" {
			continue
		}
		var st unix.Stat_t
		if err := unix.Lstat(tt.made, &st); err != nil || st.Mode != unix.S_IFDIR|0o755 || st.Uid == 0 {
			t.Errorf("%s: %+v, %v", cwd, st, err)
		}
	}
	for _, dir := range []string{filepath.Join(home, "readonly"), filepath.Join(elsewhere, "job"), filepath.Join(source, "job2")} {
		if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

// What was to be run, with its secrets, does not outlast the service that laid it; nothing else is touched, and no link
// is followed.
func TestLaunchesThatNobodyRead(t *testing.T) {
	planner := newPlanner(t, "/home")
	users := planner.Files().UsersDir()
	put := func(name string) string {
		t.Helper()
		name = filepath.Join(users, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte("secret"), 0o400)); err != nil {
			t.Fatal(err)
		}
		return name
	}
	gone := []string{put("alice/processes/p-a/launch.json"), put("bob/processes/p-b/launch.json")}
	kept := []string{put("alice/processes/p-a/process.log"), put("alice/home/processes/p/launch.json"), put("carol/processes/p-d/launch.json/x"), put("elsewhere/launch.json")}
	if err := os.Symlink(filepath.Join(users, "elsewhere"), filepath.Join(users, "bob/processes/p-c")); err != nil {
		t.Fatal(err)
	}
	if err := New(planner, &fakeProcesses{}, nil, hostfs.NewTrash(nil), 1<<20, zerolog.Nop()).DropUnread(""); err != nil {
		t.Fatal(err)
	}
	for _, name := range gone {
		if _, err := os.Lstat(name); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is there: %v", name, err)
		}
	}
	for _, name := range kept {
		if _, err := os.Lstat(name); err != nil {
			t.Error(err)
		}
	}
}
