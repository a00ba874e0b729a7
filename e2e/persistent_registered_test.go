package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/daycare-run/sandbox/api/types"
)

// registerPersistent registers a persistent sandbox named after the user.
func (l *lab) registerPersistent(t *testing.T, user string) {
	t.Helper()
	l.registerAs(t, user, types.Registration{UserID: user, Persistent: true})
}

// runIn runs a command in a persistent sandbox.
func (l *lab) runIn(t *testing.T, id string, e types.Exec) types.Output {
	t.Helper()
	e.In = types.InSandbox
	out, err := l.client.Exec(t.Context(), id, e)
	if err != nil {
		t.Fatalf("exec %.200q %.200q: %v", e.Command, e.Argv, err)
	}
	return out
}

// shIn runs a shell command there, which must succeed without a word on stderr, and returns its stdout without the last
// newline.
func (l *lab) shIn(t *testing.T, id, command string) string {
	t.Helper()
	out := l.runIn(t, id, types.Exec{Command: command})
	if out.Failed || out.Stderr != "" {
		t.Fatalf("%.200s: %s %.500q %.500q", command, exitText(out), out.Stdout, out.Stderr)
	}
	return strings.TrimSuffix(out.Stdout, "\n")
}

// serves leaves a server running that says the same to everybody, at a port and at a Unix socket; asks asks both.
func serves(answer string) string {
	return fmt.Sprintf(`python3 -c 'if 1:
	import os, socket, threading
	all = [socket.create_server(("127.0.0.1", 8000)), socket.socket(socket.AF_UNIX)]
	all[1].bind("/tmp/%[1]s"); all[1].listen()
	if os.fork(): os._exit(0)
	os.setsid()
	for fd in range(3): os.dup2(os.open("/dev/null", os.O_RDWR), fd)
	def serve(s):
		while True:
			c, _ = s.accept(); c.sendall(b"%[1]s"); c.close()
	threading.Thread(target=serve, args=(all[0],)).start(); serve(all[1])'`, answer)
}

func asks(answer string) string {
	return fmt.Sprintf(`python3 -c 'if 1:
	import socket
	u = socket.socket(socket.AF_UNIX); u.connect("/tmp/%s")
	print(socket.create_connection(("127.0.0.1", 8000)).recv(99).decode(), u.recv(99).decode())'`, answer)
}

// watches notes in /tmp/event the name of the first file of the working directory that is changed.
const watches = `cat > /tmp/watch.py <<'END'
import ctypes, os, struct
libc = ctypes.CDLL(None)
fd = libc.inotify_init(); libc.inotify_add_watch(fd, b".", 2)
open("/tmp/ready", "w").close()
data = os.read(fd, 4096)
open("/tmp/event", "w").write(data[16:].rstrip(b"\0").decode())
END
timeout 100 python3 /tmp/watch.py >/tmp/watch.log 2>&1 &
timeout 100 tail -f page >/tmp/heard 2>&1 &
while [ ! -e /tmp/ready ] || [ ! -s /tmp/heard ]; do sleep 0.05; done`

// rowsOfEach is how many rows each of two writers adds to a database.
const rowsOfEach = 150

// writesRows adds rows to a database, each acknowledged by itself.
func writesRows(who string) string {
	return fmt.Sprintf(`python3 -c 'if 1:
	import sqlite3
	db = sqlite3.connect("data.db", timeout=200, isolation_level=None)
	for n in range(%d): db.execute("insert into rows values (?, ?)", ("%s", n))'`, rowsOfEach, who)
}

// A step is commands that run at once in calls of their own. Each must succeed, with these words as its output and none on stderr.
type step struct {
	Commands []string `json:"commands"`
	Says     string   `json:"says"`
}

// oneMachine is what holds where calls have one machine, at whichever door they come in: what one call has left is reached by the
// next, at a port and in /tmp; who watches hears of changes; locks lose nothing; and no program complains of the home.
var oneMachine = []step{
	{[]string{serves("hello")}, ""},
	{[]string{asks("hello")}, "hello hello\n"},
	{[]string{"echo a line > page; " + watches}, ""},
	{[]string{"echo one more line >> page"}, ""},
	{[]string{"for i in $(seq 400); do grep -q more /tmp/heard && [ -s /tmp/event ] && break; sleep 0.05; done; cat /tmp/event /tmp/heard"}, "pagea line\none more line\n"},
	{[]string{"sqlite3 data.db 'pragma journal_mode=wal; create table rows (who, n)' >/dev/null"}, ""},
	{[]string{writesRows("one"), writesRows("two")}, ""},
	{[]string{"sqlite3 data.db 'select count(*) from rows; pragma integrity_check'"}, fmt.Sprintf("%d\nok\n", 2*rowsOfEach)},
	{[]string{everywhere + inTheHome}, ""},
}

// Calls in a persistent sandbox have one machine, by each door (by E2B's: machine.test.mjs). A call without "in" has none of it.
func TestOneMachine(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		for door, open := range map[string]func(user string) (says func(command string) (string, error)){
			"api": func(user string) func(string) (string, error) {
				return func(command string) (string, error) {
					out, err := l.client.Exec(t.Context(), user, types.Exec{In: types.InSandbox, Command: command, TimeoutMs: unhurried})
					if err == nil && (out.Failed || out.Stderr != "" || len(out.Hints) != 0) {
						err = fmt.Errorf("%s %.500q, %+v", exitText(out), out.Stderr, out.Hints)
					}
					return out.Stdout, err
				}
			},
			"cli": func(user string) func(string) (string, error) {
				return func(command string) (string, error) {
					out, err := l.cli("exec", "--sandbox", user, "--timeout", "4m", "--", command).CombinedOutput()
					return string(out), err
				}
			},
			"mcp": func(user string) func(string) (string, error) {
				a := l.agent(t, "--sandbox", user)
				return func(command string) (string, error) {
					text, failed := a.call(t, "exec", anything{"command": command, "timeoutMs": *unhurried}, nil)
					if failed {
						return "", errors.New(text)
					}
					return strings.TrimPrefix(text, "[exit code 0, nothing printed]"), nil
				}
			},
		} {
			user := "machine-" + door
			l.registerPersistent(t, user)
			says := open(user)
			for _, step := range oneMachine {
				var calls sync.WaitGroup
				for _, command := range step.Commands {
					calls.Go(func() {
						if got, err := says(command); err != nil || got != step.Says {
							t.Errorf("%s: %.200s: %.500q, %v", door, command, got, err)
						}
					})
				}
				calls.Wait()
			}
			if out := l.run(t, user, types.Exec{Command: asks("hello")}); !out.Failed {
				t.Errorf("a call with a container of its own reaches the server: %+v", out)
			}
			out := l.run(t, user, types.Exec{Command: "curl -sS localhost:8000"})
			if len(out.Hints) != 1 || out.Hints[0].Kind != types.HintOwnLocalhost || !strings.Contains(out.Hints[0].Message, "in: sandbox") {
				t.Errorf("it is told %+v", out.Hints)
			}
		}
	})
}

// A command in a persistent sandbox is told as any other, and ends with its time and its caller. What it asks for beyond the
// sandbox is refused.
func TestCommandsOfAMachine(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		const user = "machinist"
		l.registerPersistent(t, user)
		for _, c := range []struct {
			exec   types.Exec
			stdout string
			code   int
		}{
			{types.Exec{Command: "cat; pwd; echo $A $B", Stdin: "typed\n", Env: map[string]string{"A": "a"}, Secrets: map[string]string{"B": "b"}}, "typed\n/home\na b\n", 0},
			{types.Exec{Argv: []string{"sh", "-c", "exit 7"}}, "", 7},
			{types.Exec{Argv: []string{"no-such-program"}}, "", 127},
			{types.Exec{Argv: []string{"/home"}}, "", 126},
			{types.Exec{Command: "shopt -q login_shell && echo login", Login: true}, "login\n", 0},
			{types.Exec{Command: "pwd", Cwd: "/tmp"}, "/tmp\n", 0},
			{types.Exec{Command: "echo x > z && cat z; ls -A ~/.ssh"}, "x\n", 0},
			{types.Exec{Command: "head -c 5000000 /dev/zero | tr '\\0' a | tee /dev/stderr | wc -c"}, "5000000\n", 0},
		} {
			out := l.runIn(t, user, c.exec)
			if out.Stdout != c.stdout || out.ExitCode == nil || *out.ExitCode != c.code {
				t.Errorf("%q %q: %s %q %.500q", c.exec.Command, c.exec.Argv, exitText(out), out.Stdout, out.Stderr)
			}
		}
		out := l.runIn(t, user, types.Exec{Command: "curl -sS https://a.example"})
		if len(out.Hints) != 1 || !strings.Contains(out.Hints[0].Message, "register the sandbox with permissions.network") {
			t.Errorf("without a network: %+v", out.Hints)
		}
		if out := l.runIn(t, user, types.Exec{Command: "kill -TERM $$"}); out.Signal == nil || *out.Signal != "SIGTERM" {
			t.Errorf("%+v", out)
		}

		l.shIn(t, user, serves("here"))
		out = l.runIn(t, user, types.Exec{Command: "sleep 7601 & trap 'echo asked; exit' TERM; wait", TimeoutMs: new(int64(1500))})
		if !out.TimedOut || out.Stdout != "asked\n" {
			t.Errorf("its time was up: %+v", out)
		}
		runs := func() bool { return strings.Contains(l.shIn(t, user, "ps -eo args"), "sleep 760") }
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan error)
		go func() {
			_, err := l.client.Exec(ctx, user, types.Exec{In: types.InSandbox, Command: "sleep 7602; true"})
			left <- err
		}()
		eventually(t, "it runs", runs)
		if cancel(); <-left == nil {
			t.Error("a call goes on without its caller")
		}
		eventually(t, "nothing of these runs", func() bool { return !runs() })
		if got := l.shIn(t, user, asks("here")); got != "here here" {
			t.Errorf("the server says %q", got)
		}

		for name, refused := range map[string]struct {
			exec types.Exec
			kind types.Kind
			says string
		}{
			"grants":  {types.Exec{In: types.InSandbox, Permissions: workspace}, types.Invalid, "permissions: a call in the sandbox has all"},
			"names":   {types.Exec{In: types.InSandbox, AllowedDomains: []string{"a.example"}}, types.Invalid, "allowedDomains"},
			"less":    {types.Exec{In: types.InSandbox, Restrictions: types.Restrictions{DenyRead: []string{"/home/out"}}}, types.Invalid, "denyRead"},
			"nowhere": {types.Exec{In: "cloud"}, types.Invalid, `in is "cloud"`},
			"cwd":     {types.Exec{In: types.InSandbox, Cwd: "gone"}, types.Invalid, "cannot run in cwd"},
			"outside": {types.Exec{In: types.InSandbox, Cwd: "/etc"}, types.Denied, "outside of the working directory"},
		} {
			refused.exec.Command = "true"
			if _, err := l.client.Exec(t.Context(), user, refused.exec); kindOf(err) != refused.kind || !strings.Contains(err.Error(), refused.says) {
				t.Errorf("%s: %v", name, err)
			}
		}
		l.register(t, "plain")
		if _, err := l.client.Exec(t.Context(), "plain", types.Exec{In: types.InSandbox, Command: "true"}); kindOf(err) != types.Conflict {
			t.Errorf("a sandbox that is not persistent: %v", err)
		}
		for name, r := range map[string]types.Registration{
			"not persistent": {AllowedDomains: []string{"a.example"}, Permissions: types.Permissions{Network: true}},
			"no network":     {Persistent: true, PackageManagers: []string{"node"}},
			"no name":        {Persistent: true, AllowedDomains: []string{"10.0.0.1"}, Permissions: types.Permissions{Network: true}},
		} {
			r.UserID = "plain"
			if _, err := l.client.Put(t.Context(), "odd", r); kindOf(err) != types.Invalid {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// What runs in a persistent sandbox goes on while the service is killed, or ends, and starts again. When its container is
// lost, it goes on from its home. It goes with its sandbox.
func TestAMachineOutlivesTheService(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		const user = "lasting"
		l.registerPersistent(t, user)
		l.shIn(t, user, serves("here"))
		for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
			if signal == syscall.SIGKILL { // which waits for no call
				go func() {
					_, _ = l.client.Exec(context.Background(), user, types.Exec{In: types.InSandbox, Command: "sleep 7606; true"})
				}()
				eventually(t, "a call runs", func() bool { return l.shIn(t, user, "pgrep -fc 'sleep 760[6]' || true") != "0" })
			}
			l.stop(signal)
			if err := l.start(); err != nil {
				t.Fatal(err)
			}
			if got := l.shIn(t, user, asks("here")); got != "here here" {
				t.Errorf("after %v: %q", signal, got)
			}
			eventually(t, "the call's command has ended with it", func() bool { return l.shIn(t, user, "pgrep -fc 'sleep 760[6]' || true") == "0" })
		}
		l.shIn(t, user, "echo kept > file")
		l.removeByForce(l.containerOf(t, user).ID)
		var out types.Output
		eventually(t, "it goes on from its home", func() (on bool) {
			var err error
			out, err = l.client.Exec(t.Context(), user, types.Exec{In: types.InSandbox, Command: "cat file; ls /tmp"})
			return err == nil
		})
		if out.Stdout != "kept\n" || len(out.Hints) != 1 || out.Hints[0].Kind != types.HintRestarted {
			t.Errorf("%+v", out)
		}
		if out := l.runIn(t, user, types.Exec{Command: "true"}); len(out.Hints) != 0 {
			t.Errorf("it is told again: %+v", out)
		}

		none := func() bool { return len(l.containersOf(t, user)) == 0 }
		l.shIn(t, user, "sleep 7603 >/dev/null & true")
		if err := l.client.Delete(t.Context(), user); err != nil {
			t.Fatal(err)
		}
		eventually(t, "its container is gone with it", none)
		l.registerPersistent(t, user)
		if got := l.shIn(t, user, "cat file; pgrep -c sleep || true"); got != "kept\n0" {
			t.Errorf("the next one has %q", got)
		}
		l.register(t, user)
		eventually(t, "its container is gone as it is not persistent any more", none)
		l.registerPersistent(t, user)
		l.shIn(t, user, "true")
		if _, err := l.client.RemoveUser(t.Context(), user, true); err != nil || !none() {
			t.Errorf("a container is left of a user who was removed: %v", err)
		}
	})
}

// A persistent sandbox has what its registration says. Other names are set while it runs. What ran with other grants ends.
func TestAMachineFollowsItsRegistration(t *testing.T) {
	eachOutside(t, func(t *testing.T, l *lab, w *world) {
		const user = "follower"
		one, other := w.name(t, "one", w.shared), w.name(t, "other", w.shared)
		l.put(t, user, "ca.pem", string(w.CA()))
		mkdir(t, l.at(user, "project"))
		asked := types.Registration{UserID: user, Permissions: types.Permissions{Network: true, WriteDirs: []string{"/home/out"}}, Persistent: true, AllowedDomains: []string{one}}
		l.registerAs(t, user, asked)
		l.shIn(t, user, serves("up"))
		reaches := func(name string) bool {
			t.Helper()
			out := l.runIn(t, user, types.Exec{Command: hello("https://" + name), Env: map[string]string{"CURL_CA_BUNDLE": "/home/ca.pem"}, TimeoutMs: new(int64(60_000))})
			if verdict, _ := refused(out, name); out.Failed != (verdict != "") {
				t.Errorf("%s: %+v", name, out)
			}
			return !out.Failed
		}
		if !reaches(one) || reaches(other) {
			t.Error("it does not reach what it was registered with")
		}
		asked.AllowedDomains = []string{other}
		l.registerAs(t, user, asked)
		if reaches(one) || !reaches(other) {
			t.Error("other names are not set while it runs")
		}
		asked.AllowedDomains = nil
		l.registerAs(t, user, asked)
		if reaches(one) || reaches(other) {
			t.Error("without names it reaches something")
		}
		if got := l.shIn(t, user, asks("up")); got != "up up" {
			t.Errorf("the server says %q", got)
		}

		// Another sandbox of the user becomes an app, which others do not see.
		l.shIn(t, user, "mkdir -p project/apps/mine && echo theirs > project/apps/mine/file")
		l.registerAs(t, "app", types.Registration{UserID: user, Permissions: types.Permissions{WorkingDir: "/home/project", AppID: "mine"}})
		if out := l.runIn(t, user, types.Exec{Command: "cat project/apps/mine/file"}); !out.Failed {
			t.Errorf("it reads an app's file: %+v", out)
		}

		id := l.containerOf(t, user).ID
		asked.Permissions.WorkingDir = "/home/project"
		l.registerAs(t, user, asked)
		eventually(t, "what ran with other grants has ended", func() bool {
			_, err := l.engine.ContainerInspect(t.Context(), id)
			return err != nil
		})
		out := l.runIn(t, user, types.Exec{Command: "pwd; mkdir -p ../out && echo y > ../out/y && cat ../out/y; echo z > ../z"})
		if out.Stdout != "/home/project\ny\n" || !out.Failed || len(out.Hints) == 0 || out.Hints[0].Kind != types.HintRestarted {
			t.Errorf("%+v", out)
		}
	})
}

// A persistent sandbox in which nothing runs is paused until the next call, and one in which something runs is not. Paused by
// its caller, it stands still whatever runs.
func TestAnIdleMachineIsPaused(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		const user = "sleepy"
		l.registerPersistent(t, user)
		l.shIn(t, user, "echo kept > /tmp/file")
		id := l.containerOf(t, user).ID
		isPaused := func() bool {
			found, err := l.engine.ContainerInspect(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			return found.State.Paused
		}
		eventually(t, "it is paused", isPaused)
		if got := l.shIn(t, user, "cat /tmp/file; while :; do date +%s%N > beat; sleep 0.1; done >/dev/null 2>&1 &"); got != "kept" {
			t.Errorf("resumed, it has %q", got)
		}
		beat := func() string { return holds(l.at(user, "beat")) }
		eventually(t, "it beats", func() bool { return beat() != "" })
		if _, err := l.client.Pause(t.Context(), user); err != nil || !isPaused() {
			t.Fatalf("its caller cannot pause it: %v", err)
		}
		before := beat()
		l.stop(syscall.SIGKILL)
		if err := l.start(); err != nil {
			t.Fatal(err)
		}
		if _, err := l.client.Exec(t.Context(), user, types.Exec{In: types.InSandbox, Command: "true", OnlyIfRunning: true}); kindOf(err) != types.Conflict {
			t.Errorf("only if it runs: %v", err)
		}
		time.Sleep(time.Second)
		if beat() != before {
			t.Error("it beats although it is paused")
		}
		if _, err := l.client.Resume(t.Context(), user); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it goes on", func() bool { return beat() != before })
		time.Sleep(11 * time.Second) // longer than one in which nothing runs has until it is paused
		if isPaused() {
			t.Error("it is paused although something runs in it")
		}
	}, "SANDBOXD_IDLE_FREEZE_AFTER=1s")
}

// Out of memory, it says so and goes on from its home.
func TestAMachineOutOfMemory(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		const user = "hungry"
		l.registerPersistent(t, user)
		l.shIn(t, user, "echo kept > file; echo lost > /tmp/file")
		out := l.runIn(t, user, types.Exec{Command: eats, TimeoutMs: unhurried})
		if out.Signal == nil || *out.Signal != "SIGKILL" || !says(out.Hints, outOfMemory) {
			t.Errorf("%s %q %+v", exitText(out), out.Stderr, out.Hints)
		}
		eventually(t, "it goes on", func() bool {
			var err error
			out, err = l.client.Exec(t.Context(), user, types.Exec{In: types.InSandbox, Command: "cat file; ls /tmp"})
			return err == nil
		})
		told := len(out.Hints) == 1 && out.Hints[0].Kind == types.HintRestarted && strings.Contains(out.Hints[0].Message, "memory")
		if want := map[string]string{"runc": "kept\nfile\n", "runsc": "kept\n"}[l.runtime()]; out.Stdout != want || told != (l.runtime() == "runsc") {
			t.Errorf("%q %+v", out.Stdout, out.Hints)
		}
	}, "SANDBOXD_LIMITS_MEMORY=256Mi")
}

// The command line and an agent over MCP have the same machine.
func TestAMachineByTheOtherDoors(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		const user = "doors"
		mkdir(t, l.home(user))
		sandbox := func(args ...string) string {
			t.Helper()
			cmd := l.cli(append([]string{"exec"}, args...)...)
			cmd.Stderr = os.Stderr
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%q: %v: %s", args, err, out)
			}
			return strings.TrimSuffix(string(out), "\n")
		}
		persistent := []string{"--user", user, "--persistent", "--grant", "@workspace", "--"}
		sandbox(append(persistent, serves("cli"))...)
		if got := sandbox(append(persistent, asks("cli"))...); got != "cli cli" {
			t.Errorf("by the command line: %q", got)
		}
		if out, err := l.cli("exec", "--user", user, "--persistent", "--", "true").CombinedOutput(); err == nil || !strings.Contains(string(out), "--grant @workspace") {
			t.Errorf("without a grant: %s, %v", out, err)
		}
		s := l.openPTY(t, pty.Winsize{Rows: 33, Cols: 101}, append([]string{"exec", "-it"}, persistent[:len(persistent)-1]...)...)
		s.types("stty size; curl -s --http0.9 localhost:8000; echo; exit 3\n")
		s.sees("33 101")
		s.sees("cli")
		s.leaves(3)

		l.registerAs(t, "agent-7", types.Registration{UserID: user, Persistent: true})
		sandbox("--sandbox", "agent-7", "--", "sleep 7605 >/dev/null 2>&1 & true")
		sandbox("--sandbox", "agent-7", "--", serves("agent"))
		a := l.agent(t, "--sandbox", "agent-7")
		if text, failed := a.call(t, "exec", anything{"command": asks("agent")}, nil); failed || text != "agent agent\n" {
			t.Errorf("by MCP: %q", text)
		}
		if text, _ := a.call(t, "exec", anything{"command": asks("agent"), "permissions": []string{"@workspace"}}, nil); !strings.Contains(text, "exit code 1") {
			t.Errorf("by MCP, with permissions: %q", text)
		}
		own := l.agent(t, "--user", user, "--persistent", "--grant", "@workspace")
		if text, failed := own.call(t, "exec", anything{"command": asks("agent")}, nil); failed || !strings.Contains(text, "exit code 1") {
			t.Errorf("a server of MCP has a machine of its own: %q", text)
		}
		const count = "pgrep -fc 'sleep 760[5]' || true"
		if got := sandbox("--sandbox", "agent-7", "--", count); got != "1" {
			t.Errorf("a persistent --sandbox is not used as one: %q", got)
		}
		if got := sandbox("--sandbox", "agent-7", "--in", "call", "--", count); got != "0" {
			t.Errorf("--in call: %q", got)
		}
		explained, err := l.cli("explain", "--sandbox", "agent-7").CombinedOutput()
		if home := regexp.MustCompile(`(?m)^/home +writable `); err != nil || !home.Match(explained) || !strings.Contains(string(explained), "warm") {
			t.Errorf("%s, %v", explained, err)
		}
	})
}

// A process of a persistent sandbox runs beside its calls, with its log, its checks and its restarts, whatever the service does.
func TestProcessesOfAMachine(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		const user = "worker"
		l.registerPersistent(t, user)
		started := l.startProcess(t, user, types.StartProcess{In: types.InSandbox, Name: "web", KeepAlive: true, Secrets: map[string]string{"KEY": "s3cret"},
			Ready: &types.Ready{Port: 8000}, Command: "echo begun with $KEY; exec python3 -u -m http.server 8000"})
		if started.In != types.InSandbox {
			t.Errorf("%+v", started)
		}
		ready := func() bool {
			p := l.process(t, user, started.ID)
			return p.Status == types.ProcessRunning && p.Ready != nil && p.Ready.OK
		}
		eventually(t, "it is ready", ready)
		l.shIn(t, user, "echo hello > page; mkfifo pipe")
		if got := l.shIn(t, user, "curl -sS localhost:8000/page"); got != "hello" {
			t.Errorf("a call gets %q", got)
		}
		if n := len(l.containersOf(t, user)); n != 1 {
			t.Errorf("%d containers", n)
		}
		log := func() string {
			text, err := os.ReadFile(l.process(t, user, started.ID).LogPath)
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		}
		eventually(t, "its log has what it printed", func() bool {
			return strings.Contains(log(), "begun with s3cret\n") && strings.Contains(log(), "GET /page")
		})
		if out := l.runIn(t, user, types.Exec{Command: "ls /.daycare/processes/*; cat /.daycare/processes/" + started.ID + "/process.log"}); !out.Failed || out.Stdout != "" {
			t.Errorf("a command reads the logs: %+v", out)
		}
		for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
			l.stop(signal)
			if err := l.start(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "it is found", ready)
			if got := l.process(t, user, started.ID); got.RestartCount != 0 || l.shIn(t, user, "curl -sS localhost:8000/page") != "hello" {
				t.Errorf("after %v: %+v", signal, got)
			}
		}
		again := func(n int) func() bool {
			return func() bool { return l.process(t, user, started.ID).RestartCount == n && ready() }
		}
		l.shIn(t, user, "pkill -9 -f http.server")
		eventually(t, "it is started again", again(1))
		l.removeByForce(l.containerOf(t, user).ID)
		eventually(t, "it is started again in another container", again(2))

		short := l.startProcess(t, user, types.StartProcess{In: types.InSandbox, Command: "trap 'echo asked; exit 5' TERM; echo on; while :; do sleep 0.1; done"})
		eventually(t, "it runs", func() bool { return strings.Contains(holds(short.LogPath), "on\n") })
		if got, err := l.client.StopProcess(t.Context(), user, short.ID, ""); err != nil || got.Status != types.ProcessStopped || got.ExitCode == nil || *got.ExitCode != 5 {
			t.Errorf("stopped: %+v, %v", got, err)
		}
		ends := l.startProcess(t, user, types.StartProcess{In: types.InSandbox, Command: "echo done; exit 7"})
		eventually(t, "it ends by itself", func() bool {
			got := l.process(t, user, ends.ID)
			return got.Status == types.ProcessExited && got.ExitCode != nil && *got.ExitCode == 7
		})
		if _, err := l.client.StartProcess(t.Context(), user, types.StartProcess{In: types.InSandbox, Argv: []string{"no-such-program"}}); kindOf(err) != types.Invalid {
			t.Errorf("one that does not start: %v", err)
		}
		if _, err := l.client.StartProcess(t.Context(), user, types.StartProcess{In: types.InSandbox, Command: "true", Permissions: workspace}); kindOf(err) != types.Invalid {
			t.Errorf("one that asks for grants: %v", err)
		}
		other := l.startProcess(t, user, types.StartProcess{In: types.InSandbox, Argv: []string{"sleep", "7608"}}).ID
		// It stands still with its sandbox, and can be stopped then.
		if _, err := l.client.Pause(t.Context(), user); err != nil {
			t.Fatal(err)
		}
		if got := l.process(t, user, started.ID); got.Status != types.ProcessPaused {
			t.Errorf("%+v", got)
		}
		id := l.containerOf(t, user).ID
		isPaused := func() bool {
			found, err := l.engine.ContainerInspect(t.Context(), id)
			return err == nil && found.State.Paused
		}
		l.stop(syscall.SIGKILL)
		if err := l.start(); err != nil {
			t.Fatal(err)
		}
		if time.Sleep(2 * time.Second); !isPaused() {
			t.Error("a service that starts resumes it")
		}
		if got, err := l.client.StopProcess(t.Context(), user, started.ID, ""); err != nil || got.Status != types.ProcessStopped {
			t.Errorf("stopped while it is paused: %+v, %v", got, err)
		}
		eventually(t, "it is paused again", isPaused)
		if _, err := l.client.Resume(t.Context(), user); err != nil {
			t.Fatal(err)
		}
		l.shIn(t, user, "pkill -9 -f 'sleep 760[8]'")
		eventually(t, "the end of another one, which was found paused, is noticed", func() bool { return l.process(t, user, other).Status == types.ProcessExited })
	})
}
