package sandbox

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/hints"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/plantest"
	"github.com/daycare-run/sandbox/internal/warm"
)

// TestBadInputStartsNothing runs what has to be refused, on an executor that fails the test when it
// is called.
func TestBadInputStartsNothing(t *testing.T) {
	timeout := func(d time.Duration) *time.Duration { return &d }
	ls := func(r Request) Request { r.Command = "ls"; return r }
	for _, tt := range []struct {
		name    string
		request Request
		class   func(error) bool
		message string
	}{
		{"nothing", Request{}, cerrdefs.IsInvalidArgument, "command is empty"},
		{"blank command", Request{Command: " \n\t"}, cerrdefs.IsInvalidArgument, "command is empty"},
		{"empty list", Request{Argv: []string{}}, cerrdefs.IsInvalidArgument, "command is empty"},
		{"empty program", Request{Argv: []string{"", "x"}}, cerrdefs.IsInvalidArgument, "argv[0] is empty"},
		{"both forms", Request{Command: "ls", Argv: []string{"ls"}}, cerrdefs.IsInvalidArgument, "both set"},
		{"NUL in the command", Request{Command: "ls\x00"}, cerrdefs.IsInvalidArgument, "command has a NUL"},
		{"NUL in an argument", Request{Argv: []string{"ls", "a\x00"}}, cerrdefs.IsInvalidArgument, "argv[1] has a NUL"},
		{"login with argv", Request{Argv: []string{"ls"}, Login: true}, cerrdefs.IsInvalidArgument, "login"},
		{"name with =", ls(Request{Env: map[string]string{"A=B": ""}}), cerrdefs.IsInvalidArgument, `env has the name "A=B"`},
		{"empty name", ls(Request{Env: map[string]string{"": "x"}}), cerrdefs.IsInvalidArgument, "env has a variable without a name"},
		{"NUL in a value", ls(Request{Env: map[string]string{"A": "\x00"}}), cerrdefs.IsInvalidArgument, "env.A"},
		{"NUL in a secret", ls(Request{Secrets: map[string]string{"A": "\x00"}}), cerrdefs.IsInvalidArgument, "secrets.A"},
		{"secret's name with =", ls(Request{Secrets: map[string]string{"A=": "1"}}), cerrdefs.IsInvalidArgument, "secrets has the name"},
		{"timeout 0", ls(Request{Timeout: timeout(0)}), cerrdefs.IsInvalidArgument, "timeoutMs 0 is not between 1 and 300000"},
		{"timeout below 0", ls(Request{Timeout: timeout(-time.Millisecond)}), cerrdefs.IsInvalidArgument, "timeoutMs -1"},
		{"timeout above the limit", ls(Request{Timeout: timeout(300*time.Second + time.Millisecond)}), cerrdefs.IsInvalidArgument, "timeoutMs 300001"},
		{"timeout above the limit, with a terminal", ls(Request{Terminal: &specs.Box{}, Timeout: timeout(8*time.Hour + time.Millisecond)}), cerrdefs.IsInvalidArgument, "timeoutMs 28800001 is not between 1 and 28800000"},
		{"too large", Request{Command: strings.Repeat("a", 2<<20+1)}, cerrdefs.IsInvalidArgument, "2097153 bytes"},
		{"too large with its environment", ls(Request{Env: map[string]string{"A": strings.Repeat("a", 2<<20)}}), cerrdefs.IsInvalidArgument, "bytes"},
		{"too many arguments", Request{Argv: slices.Repeat([]string{"a"}, 1<<20+1)}, cerrdefs.IsInvalidArgument, "2097154 bytes"},
		{"cwd outside", ls(Request{Cwd: "/etc"}), cerrdefs.IsPermissionDenied, `cwd "/etc" is outside of the working directory /home/project`},
		{"cwd above", ls(Request{Cwd: ".."}), cerrdefs.IsPermissionDenied, `cwd "/home"`},
		{"cwd beside", ls(Request{Cwd: "/home/project2"}), cerrdefs.IsPermissionDenied, `cwd "/home/project2"`},
		{"cwd that climbs out", ls(Request{Cwd: "a/../../../etc"}), cerrdefs.IsPermissionDenied, `cwd "/etc"`},
		{"cwd beside /tmp", ls(Request{Cwd: "/tmpx"}), cerrdefs.IsPermissionDenied, `cwd "/tmpx"`},
		{"cwd that climbs out of /tmp", ls(Request{Cwd: "/tmp/../etc"}), cerrdefs.IsPermissionDenied, `cwd "/etc"`},
		{"cwd with NUL", ls(Request{Cwd: "a\x00"}), cerrdefs.IsInvalidArgument, "cwd"},
		{"cwd too long", ls(Request{Cwd: strings.Repeat("a/", 3000)}), cerrdefs.IsInvalidArgument, "cwd"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newService(t, nil, "/home/project")
			_, err := s.Exec(t.Context(), "agent", tt.request, nil)
			if !tt.class(err) || !strings.Contains(err.Error(), tt.message) {
				t.Errorf("%.200v, want %s", err, tt.message)
			}
		})
	}
}

func TestUnknownSandboxes(t *testing.T) {
	s := newService(t, nil, "")
	if _, err := s.Exec(t.Context(), "other", Request{Command: "ls"}, nil); !cerrdefs.IsNotFound(err) || !strings.Contains(err.Error(), `"other"`) {
		t.Error(err)
	}
	for _, id := range []string{"", "..", "Agent", "a/b"} {
		if _, err := s.Exec(t.Context(), id, Request{Command: "ls"}, nil); !cerrdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v", id, err)
		}
	}
}

// ran is a request's way to the executor.
func ran(t *testing.T, workingDir string, r func(*Service) Request) (dockerexec.Spec, warm.Command, Result) {
	t.Helper()
	var spec dockerexec.Spec
	var command warm.Command
	s := newService(t, &fakeExecutor{run: func(s dockerexec.Spec, c warm.Command, _ session.Output) (warm.Result, error) {
		spec, command = s, c
		return warm.Result{Result: session.Result{ExitCode: 3}}, nil
	}}, workingDir)
	result, err := s.Exec(t.Context(), "agent", r(s), nil)
	if err != nil {
		t.Fatal(err)
	}
	return spec, command, result
}

func TestDirectoriesToRunIn(t *testing.T) {
	for _, tt := range []struct{ name, cwd, want string }{
		{"none", "", "/home/project"},
		{"the working directory", "/home/project", "/home/project"},
		{"relative", "src/./x/../y", "/home/project/src/y"},
		{"absolute", "/home/project/src", "/home/project/src"},
		{"with a slash at its end", "/home/project/src/", "/home/project/src"},
		{"the user's own /tmp", "/tmp", "/tmp"},
		{"below it", "/tmp/x/../y", "/tmp/y"},
		{"on the host", "HOST/alice/home/project/src", "/home/project/src"},
	} {
		_, command, result := ran(t, "/home/project", func(s *Service) Request {
			return Request{Command: "ls", Cwd: strings.Replace(tt.cwd, "HOST", s.usersDir(), 1)}
		})
		if command.Cwd != tt.want || result.Cwd != tt.want {
			t.Errorf("%s: command in %q, result in %q, want %q", tt.name, command.Cwd, result.Cwd, tt.want)
		}
	}
}

// Another user's home on the host is outside, however it is written.
func TestAnotherUsersHomeIsOutside(t *testing.T) {
	t.Setenv("TMPDIR", "/var/tmp") // below /tmp they would be names in the call's own /tmp
	s := newService(t, nil, "")
	for _, cwd := range []string{"/bob/home", "/alice/home/../../bob/home", "/alice2/home", "/alice"} {
		_, err := s.Exec(t.Context(), "agent", Request{Command: "ls", Cwd: s.usersDir() + cwd}, nil)
		if !cerrdefs.IsPermissionDenied(err) {
			t.Errorf("%s: %v", cwd, err)
		}
	}
}

func TestExecBecomesSpecAndCommand(t *testing.T) {
	timeout := 300 * time.Second
	spec, command, result := ran(t, "", func(*Service) Request {
		return Request{
			Command: "make", Login: true, Timeout: &timeout,
			Env: map[string]string{"A": "env", "HOME": "/home/other"}, Secrets: map[string]string{"A": "secret"},
		}
	})
	if spec.User != "alice" || spec.UID != testUID || spec.GID != testGID || spec.Platform.ImageID != "sha256:aa" ||
		len(spec.Mounts) != 1 || spec.Mounts[0].Target != "/home" || !spec.Mounts[0].ReadOnly || !strings.HasSuffix(spec.Mounts[0].Source, "/alice/home") {
		t.Errorf("%+v", spec)
	}
	want := planFor(t, newService(t, nil, ""), Confinement{}).Environment(map[string]string{"A": "secret", "HOME": "/home/other"})
	if diff := cmp.Diff(want, command.Env); diff != "" {
		t.Errorf("environment: want (-), got (+):\n%s", diff)
	}
	if command.Shell != "make" || !command.Login || command.Args != nil || command.Stdin != nil ||
		command.Timeout != timeout || command.Grace != 2*time.Second {
		t.Errorf("%+v", command)
	}
	if result.ExitCode != 3 || !result.Failed() || result.Duration <= 0 {
		t.Errorf("%+v", result)
	}
	if _, command, _ := ran(t, "", func(*Service) Request { return Request{Argv: []string{"ls", ""}} }); command.Timeout != 30*time.Second {
		t.Errorf("default timeout %v", command.Timeout)
	}
}

// A call that failed is told what to ask for; one that did not is told nothing.
func TestHintsOfWhatWasPrinted(t *testing.T) {
	const printed = "fatal: unable to access 'https://a.org/': Could not resolve host: a.org\nerror: /home/x: Read-only file system\n"
	none := []hints.Hint{{Kind: types.HintNoNetwork}, {Kind: types.HintReadOnly, Path: "/home/x"}}
	for _, tt := range []struct {
		name    string
		printed string
		result  warm.Result
		network bool
		want    []hints.Hint
	}{
		{"failed", printed, warm.Result{Result: session.Result{ExitCode: 128}}, false, none},
		{"failed silently", "", warm.Result{Result: session.Result{ExitCode: 128}}, false, nil},
		{"time was up", printed, warm.Result{Result: session.Result{TimedOut: true}}, false, none},
		{"time was up, without a word", "", warm.Result{Result: session.Result{TimedOut: true}}, false, none[:1]},
		{"time was up, with a network", "", warm.Result{Result: session.Result{TimedOut: true}}, true, nil},
		{"with a network", printed, warm.Result{Result: session.Result{ExitCode: 128}}, true, none[1:]},
		{"succeeded", printed, warm.Result{}, false, nil},
	} {
		s := newService(t, &fakeExecutor{run: func(_ dockerexec.Spec, c warm.Command, out session.Output) (warm.Result, error) {
			retries := slices.Contains(c.Env, "npm_config_fetch_retries=0")
			if retries == tt.network {
				t.Errorf("%s: gives up at once: %t", tt.name, retries)
			}
			return tt.result, out(session.Stderr, []byte(tt.printed))
		}}, "")
		cfg := *s.cfg()
		cfg.Decisions = decisions.New(1)
		s.Use(cfg)
		s.planner.Use(plan.Config{MaxDomains: 1})
		if _, _, err := s.Put("agent", Registration{UserID: "alice", Network: true}); err != nil {
			t.Fatal(err)
		}
		r := Request{Command: "x"}
		if tt.network {
			r.Permissions, r.AllowedDomains = []string{"@network"}, []string{"b.org"}
		}
		got, err := s.Exec(t.Context(), "agent", r, func(session.Stream, []byte) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, got.Hints); diff != "" {
			t.Errorf("%s: want (-), got (+):\n%s", tt.name, diff)
		}
	}
}

// A call that used up a limit is told which and how much that is, whether the kernel or a program says so.
func TestHintsOfLimits(t *testing.T) {
	memory := hints.Hint{Kind: types.HintOutOfMemory, Limit: "limits.memory", Value: "128Mi"}
	pids := hints.Hint{Kind: types.HintOutOfProcesses, Limit: "limits.pids", Value: "64 processes and threads"}
	for name, tt := range map[string]struct {
		result  warm.Result
		printed string
		want    []hints.Hint
	}{
		"killed for memory":     {warm.Result{Result: session.Result{Signal: 9}, Exhausted: &dockerexec.Exhausted{Limit: dockerexec.LimitMemory, Value: 128 << 20}}, "", []hints.Hint{memory}},
		"processes refused":     {warm.Result{Result: session.Result{ExitCode: 1}, Exhausted: &dockerexec.Exhausted{Limit: dockerexec.LimitPids, Value: 64}}, "can't fork", []hints.Hint{pids}},
		"processes, as it says": {warm.Result{Result: session.Result{ExitCode: 1}}, "bash: fork: Resource temporarily unavailable", []hints.Hint{pids}},
		"failed":                {warm.Result{Result: session.Result{ExitCode: 1}}, "no", nil},
		"succeeded":             {warm.Result{}, "bash: fork: Resource temporarily unavailable", nil},
	} {
		s := newService(t, &fakeExecutor{run: func(_ dockerexec.Spec, _ warm.Command, out session.Output) (warm.Result, error) {
			return tt.result, out(session.Stderr, []byte(tt.printed))
		}}, "")
		cfg := plantest.Platform(t)
		cfg.Settings.Limits.Pids = 64
		s.planner.Platforms().Use(cfg)
		if _, _, err := s.Put("agent", Registration{UserID: "alice"}); err != nil {
			t.Fatal(err)
		}
		got, err := s.Exec(t.Context(), "agent", Request{Command: "x"}, func(session.Stream, []byte) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, got.Hints); diff != "" {
			t.Errorf("%s: want (-), got (+):\n%s", name, diff)
		}
	}
}

func TestCallsWithATerminal(t *testing.T) {
	size, timeout := specs.Box{Height: 50, Width: 132}, 4*time.Hour
	_, command, _ := ran(t, "", func(*Service) Request { return Request{Command: "top", Terminal: &size} })
	if !command.Terminal || *command.ConsoleSize != size || command.Timeout != 8*time.Hour || !slices.Contains(command.Env, "TERM=xterm-256color") {
		t.Errorf("%+v", command)
	}
	_, command, _ = ran(t, "", func(*Service) Request {
		return Request{Command: "top", Terminal: &size, Timeout: &timeout, Env: map[string]string{"TERM": "dumb"}}
	})
	if command.Timeout != timeout || !slices.Contains(command.Env, "TERM=dumb") {
		t.Errorf("%+v", command)
	}
	_, command, _ = ran(t, "", func(*Service) Request { return Request{Command: "top"} })
	if slices.Contains(command.Env, "TERM=xterm-256color") {
		t.Errorf("without a terminal: %+v", command)
	}
}

func TestFailuresOfTheExecutor(t *testing.T) {
	down := errors.New("no engine")
	for _, tt := range []struct {
		name   string
		result warm.Result
		err    error
		is     func(error) bool
	}{
		{"engine down", warm.Result{}, down, func(err error) bool { return errors.Is(err, down) }},
		{"directory not there", warm.Result{Result: session.Result{ExitCode: 126, CwdFault: "/home/x: no such file or directory"}}, nil, func(err error) bool {
			return cerrdefs.IsInvalidArgument(err) && strings.Contains(err.Error(), "/home/x: no such file")
		}},
		{"program not there", warm.Result{Result: session.Result{ExitCode: 127, CommandFault: "x: command not found"}}, nil, func(err error) bool { return err == nil }},
	} {
		s := newService(t, &fakeExecutor{run: func(dockerexec.Spec, warm.Command, session.Output) (warm.Result, error) {
			return tt.result, tt.err
		}}, "")
		if _, err := s.Exec(t.Context(), "agent", Request{Command: "x"}, nil); !tt.is(err) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// Of those that are too many at a time none has been started, and the others are not touched.
func TestCommandsInFlightAreBounded(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	s := newService(t, &fakeExecutor{run: func(dockerexec.Spec, warm.Command, session.Output) (warm.Result, error) {
		entered <- struct{}{}
		<-leave
		return warm.Result{}, nil
	}}, "")
	ended := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := s.Exec(t.Context(), "agent", Request{Command: "x"}, nil)
			ended <- err
		}()
		<-entered
	}
	for range 2 {
		if _, err := s.Exec(t.Context(), "agent", Request{Command: "x"}, nil); !cerrdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "user \"alice\" has 2 commands that run or wait to, which is the most (quotas.perUser.commands)") {
			t.Error(err)
		}
	}
	for range 2 {
		leave <- struct{}{}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if _, err := s.Exec(t.Context(), "agent", Request{}, nil); !cerrdefs.IsInvalidArgument(err) {
		t.Errorf("when they have ended: %v", err)
	}
}

func TestRegistrationsThatAreRefused(t *testing.T) {
	for _, tt := range []struct {
		name, id, user, dir string
		class               func(error) bool
		message             string
	}{
		{"no user", "x", "", "", cerrdefs.IsInvalidArgument, "userId is empty"},
		{"upper case", "x", "Alice", "", cerrdefs.IsInvalidArgument, `userId "Alice"`},
		{"..", "x", "..", "", cerrdefs.IsInvalidArgument, `userId ".."`},
		{"bad id", "X", "alice", "", cerrdefs.IsInvalidArgument, `sandbox id "X"`},
		{"outside of the home", "x", "alice", "/etc", cerrdefs.IsPermissionDenied, `"/etc"`},
		{"beside the home", "x", "alice", "/home2", cerrdefs.IsPermissionDenied, `"/home2"`},
		{"above the home", "x", "alice", "..", cerrdefs.IsPermissionDenied, `"/"`},
		{"NUL", "x", "alice", "a\x00", cerrdefs.IsInvalidArgument, "permissions.workingDir"},
		{"another user's", "agent", "bob", "", cerrdefs.IsConflict, `"alice"`},
	} {
		s := newService(t, nil, "")
		_, _, err := s.Put(tt.id, Registration{UserID: tt.user, WorkingDir: tt.dir})
		if !tt.class(err) || !strings.Contains(err.Error(), tt.message) {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.message)
		}
		if list := s.List(); len(list) != 1 {
			t.Errorf("%s: registered %v", tt.name, list)
		}
	}
	s, long := newService(t, nil, ""), Registration{UserID: "alice", Network: true}
	for i := range 20 {
		long.WriteDirs = append(long.WriteDirs, fmt.Sprintf("/home/%s%d", strings.Repeat("a/", 1900), i))
	}
	if _, _, err := s.Put("long", long); !cerrdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "bytes together") {
		t.Errorf("paths of more than may be: %v", err)
	}
}
