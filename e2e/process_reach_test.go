package e2e

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
)

// listens serves the same answer at addresses and ports, and says what it was asked.
func listens(answer string, at ...string) []string {
	return append([]string{"node", "-e", `const [answer, ...at] = process.argv.slice(1)
for (const each of at) {
	const [host, port] = each.split(/:(?=\d+$)/)
	require("http").createServer((request, response) => {
		let n = 0
		request.on("data", piece => n += piece.length)
		request.on("end", () => response.end(answer + " " + request.url + " " + n))
	}).listen(+port, host || undefined)
}`, answer}, at...)
}

// reaching is a call with @process tags.
func reaching(command string, names ...string) types.Exec {
	e := types.Exec{Command: command, Permissions: []string{}, TimeoutMs: unhurried}
	for _, name := range names {
		e.Permissions = append(e.Permissions, "@process:"+name)
	}
	return e
}

// asksAt asks at a port of localhost, again while nobody listens there.
func asksAt(port int) string {
	return fmt.Sprintf("curl -sS --retry 60 --retry-delay 1 --retry-connrefused localhost:%d/x", port)
}

// A call with the tag of a process reaches its ports at localhost, without a network. Nobody else does.
func TestPortsOfAProcess(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		const user, other = "reacher", "reacher-other"
		l.registerAs(t, user, types.Registration{UserID: user, Permissions: types.Permissions{Processes: []string{"web", "*"}}})
		l.registerAs(t, user+"-2", types.Registration{UserID: user, Permissions: types.Permissions{Processes: []string{"*"}}})
		l.registerAs(t, user+"-3", types.Registration{UserID: user})
		l.registerAs(t, other, types.Registration{UserID: other, Permissions: types.Permissions{Processes: []string{"web", "*"}}})
		web := l.startProcess(t, user, types.StartProcess{Name: "web", Permissions: []string{}, KeepAlive: true,
			Argv: listens("web", ":8000", "127.0.0.1:8001", "0.0.0.0:8002")})
		l.startProcess(t, user+"-3", types.StartProcess{Name: "api", Permissions: []string{}, Argv: listens("api", ":8001", ":8010")})

		said := func(id string, e types.Exec, want string) {
			t.Helper()
			if out := l.run(t, id, e); out.Failed || out.Stdout != want {
				t.Errorf("%s, %q: %s %q %.500q, want %q", id, e.Permissions, exitText(out), out.Stdout, out.Stderr, want)
			}
		}
		for _, port := range []int{8000, 8001, 8002} {
			said(user, reaching(asksAt(port), "web"), "web /x 0")
		}
		said(user, reaching("head -c 3000000 /dev/zero | curl -sS --data-binary @- -H Expect: localhost:8000/put", "web"), "web /put 3000000")
		said(user, reaching("(for i in $(seq 20); do curl -sS localhost:8000/$i & done; wait) | grep -o web | wc -l", "web"), "20\n")
		said(user, reaching(asksAt(8000), "*"), "web /x 0")
		said(user, reaching("ip -br addr 2>/dev/null | grep -v ^lo; cat /proc/net/route | wc -l", "web"), "1\n")

		// Without the tag, by another sandbox, by another user.
		for name, refused := range map[string]struct {
			id   string
			exec types.Exec
			says string
		}{
			"not held":         {user + "-3", reaching("true", "web"), "@process:web is not granted to this sandbox"},
			"none held":        {user + "-3", reaching("true", "*"), "@process:* is not granted to this sandbox"},
			"no name":          {user, types.Exec{Command: "true", Permissions: []string{"@process:"}}, "the name of a process is missing"},
			"not by processes": {user, types.Exec{Command: "true", Permissions: []string{"@process:api", "@process"}}, `unknown tag "@process"`},
		} {
			if _, err := l.client.Exec(t.Context(), refused.id, refused.exec); err == nil || !strings.Contains(err.Error(), refused.says) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := l.client.StartProcess(t.Context(), user, types.StartProcess{Command: "true", Permissions: []string{"@process:web"}}); kindOf(err) != types.Invalid ||
			!strings.Contains(err.Error(), "one persistent sandbox") {
			t.Errorf("a process of its own: %v", err)
		}
		closed := func(id string, e types.Exec, says string) {
			t.Helper()
			e.Command = "curl -sS --max-time 20 localhost:8000/x"
			out := l.run(t, id, e)
			if !out.Failed || out.Stdout != "" {
				t.Errorf("%s, %q: %q", id, e.Permissions, out.Stdout)
			}
			if says != "" && (len(out.Hints) != 1 || !strings.Contains(out.Hints[0].Message, says)) {
				t.Errorf("%s, %q is told %+v", id, e.Permissions, out.Hints)
			}
		}
		closed(user, types.Exec{Permissions: []string{}}, "ask for @process:NAME")
		closed(user, reaching("", "api"), "") // held as its own alone, and another sandbox has started it
		closed(user+"-2", reaching("", "*"), "no process that this call reaches runs")
		closed(other, reaching("", "web"), "no process that this call reaches runs")

		// A server that begins while the call waits is reached, and so is one that was started again.
		done := make(chan types.Output, 1)
		go func() {
			out, _ := l.client.Exec(t.Context(), user, reaching(""+asksAt(8020), "*"))
			done <- out
		}()
		late := l.startProcess(t, user, types.StartProcess{Name: "late", Permissions: []string{}, Argv: listens("late", ":8020")})
		if out := <-done; out.Stdout != "late /x 0" {
			t.Errorf("the late one: %+v", out)
		}
		if _, err := l.client.StopProcess(t.Context(), user, late.ID, ""); err != nil {
			t.Error(err)
		}
		for _, c := range l.processContainersOf(t, user) {
			if c.Labels["run.daycare.sandbox.process"] == web.ID {
				l.inside(t, c.ID, "sh", "-c", "pkill -KILL -f '[a]gent forward'")
				l.inside(t, c.ID, "pkill", "-KILL", "-f", "[c]reateServer")
			}
		}
		eventually(t, "it was started again", func() bool { return l.process(t, user, web.ID).RestartCount > 0 })
		said(user, reaching(asksAt(8000), "web"), "web /x 0")

		// What a call leaves running has nothing, and a port that the call itself has is its own.
		said(user, reaching("python3 -c 'import socket; s = socket.create_server((\"127.0.0.1\", 8000))' 2>&1 | grep -o 'in use'", "web"), "in use\n")
		said(user, reaching("python3 -c 'import socket; s = socket.create_server((\"127.0.0.1\", 8000)); print(1)'"), "1\n")
	})
}

// A process that takes each connection and says nothing, and calls that open many, cost themselves alone.
func TestAFloodToAProcess(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		const user, bystander = "flooding", "flooded-beside"
		l.registerAs(t, user, types.Registration{UserID: user, Permissions: types.Permissions{Processes: []string{"*"}}})
		l.registerAs(t, bystander, types.Registration{UserID: bystander, Permissions: types.Permissions{Processes: []string{"*"}}})
		silent := `import socket, time
all = [socket.create_server(("127.0.0.1", p), backlog=200) for p in range(9000, 9200)]
kept = []
while True: kept.append(all[0].accept()); print(len(kept), flush=True)`
		p := l.startProcess(t, user, types.StartProcess{Name: "silent", Permissions: []string{}, Argv: []string{"python3", "-c", silent}})
		l.startProcess(t, bystander, types.StartProcess{Name: "web", Permissions: []string{}, Argv: listens("web", ":8000")})
		var calls sync.WaitGroup
		for range 2 {
			calls.Go(func() {
				out := l.run(t, user, reaching(`python3 -c 'if 1:
	import socket, time
	all = []
	for i in range(300):
		s = socket.socket(); s.setblocking(False); s.connect_ex(("127.0.0.1", 9000)); all.append(s)
	time.sleep(5); print("done")'`, "silent"))
				if out.Stdout != "done\n" {
					t.Errorf("%s %q %.500q", exitText(out), out.Stdout, out.Stderr)
				}
			})
		}
		if out := l.run(t, bystander, reaching(asksAt(8000), "web")); out.Stdout != "web /x 0" {
			t.Errorf("beside it: %s %q %.500q", exitText(out), out.Stdout, out.Stderr)
		}
		calls.Wait()
		if n := len(strings.Fields(logOf(t, p))); n < 32 || n > 64 {
			t.Errorf("%d connections were made at a time", n)
		}
	})
}

// A proxy that runs as a process with a network is a way out for a call that was granted it, to the names of the process;
// for others it is not.
func TestAProxyAsAProcess(t *testing.T) {
	eachOutside(t, func(t *testing.T, l *lab, w *world) {
		const user = "deputy"
		l.registerAs(t, user, types.Registration{UserID: user, Permissions: types.Permissions{Network: true, Processes: []string{"proxy"}}})
		own := w.origin(t)
		name, denied := w.name(t, "through", own), w.name(t, "not-through", own)
		l.startProcess(t, user, types.StartProcess{Name: "proxy", Permissions: []string{"@network"}, AllowedDomains: []string{name},
			Argv: []string{"node", "-e", `const http = require("http")
http.createServer((asked, answer) => http.get(asked.url, got => got.pipe(answer)).on("error", () => answer.writeHead(502).end())).listen(3128)`}})
		ask := func(name string) string {
			return "curl -sS --fail --max-time 30 --retry 30 --retry-connrefused --retry-delay 1 -x http://localhost:3128 http://" + name + "/hello"
		}
		if out := l.run(t, user, reaching(ask(name), "proxy")); out.Stdout != "hello from "+name+"\n" {
			t.Errorf("with the tag: %s %q %.300q", exitText(out), out.Stdout, out.Stderr)
		}
		once := func(name string) string {
			return strings.ReplaceAll(ask(name), " --retry 30 --retry-connrefused --retry-delay 1", "")
		}
		if out := l.run(t, user, reaching(once(denied), "proxy")); !out.Failed || out.Stdout != "" || w.DNS.Asked(denied) != 0 {
			t.Errorf("beyond the names of the process: %q", out.Stdout)
		}
		sent := len(w.arrivals(name))
		for what, e := range map[string]types.Exec{
			"without a tag":  {Permissions: []string{}},
			"with a network": {Permissions: []string{"@network"}, AllowedDomains: []string{denied}},
		} {
			e.Command = once(name)
			if out := l.run(t, user, e); !out.Failed || out.Stdout != "" || len(w.arrivals(name)) != sent {
				t.Errorf("%s: %q", what, out.Stdout)
			}
		}
	})
}

// A call may run in a process's container, with what the process has, if its sandbox has started the process and holds that
// still. It ends with the process, and the process goes on without it.
func TestACallBesideAProcess(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		const user, other = "beside", "beside-other"
		l.register(t, user)
		l.register(t, other)
		l.registerAs(t, user+"-2", types.Registration{UserID: user})
		l.put(t, user, "dir/note", "a note")
		p := l.startProcess(t, user, types.StartProcess{Name: "web", Permissions: workspace, Cwd: "dir", Env: map[string]string{"GIVEN": "by the process"},
			Secrets: map[string]string{"SECRET": "s3cret"}, Command: "echo $$ > /tmp/pid; echo here > /tmp/mine; exec python3 -u -m http.server --bind 127.0.0.1 8000 2>&1"})
		prints(t, p, "Serving HTTP")
		beside := func(command string) types.Exec {
			return types.Exec{Process: "web", Command: command, TimeoutMs: unhurried}
		}
		run := func(e types.Exec) types.Output {
			t.Helper()
			out, err := l.client.Exec(t.Context(), user, e)
			if err != nil {
				t.Fatal(err)
			}
			return out
		}
		for _, c := range []struct{ command, want string }{
			{"curl -sS localhost:8000/note; echo; pwd; cat /tmp/mine", "a note\n/home/dir\nhere\n"},
			{"echo $GIVEN $SECRET; echo more > more; cat more; head -c 3000000 /dev/zero | wc -c", "by the process\nmore\n3000000\n"},
			{"ls /.daycare/run 2>/dev/null; cat /.daycare/process/* 2>/dev/null; kill -0 1 2>/dev/null || echo no", "no\n"},
		} {
			if out := run(beside(c.command)); out.Failed || out.Stdout != c.want {
				t.Errorf("%s: %s %q %.300q, want %q", c.command, exitText(out), out.Stdout, out.Stderr, c.want)
			}
		}
		e := beside("")
		e.Command, e.Argv, e.Process, e.Cwd = "", []string{"sh", "-c", "cat; pwd; exit 7"}, p.ID, "/tmp"
		e.Stdin = "typed\n"
		if out := run(e); out.Stdout != "typed\n/tmp\n" || out.ExitCode == nil || *out.ExitCode != 7 {
			t.Errorf("%s %q", exitText(out), out.Stdout)
		}
		if out := run(beside("sleep 7704 >/dev/null 2>&1 & echo left")); out.Stdout != "left\n" {
			t.Errorf("%+v", out)
		}
		if out := run(beside("curl -sS https://a.example")); len(out.Hints) != 1 || !strings.Contains(out.Hints[0].Message, "it has what the process has") {
			t.Errorf("without a network: %+v", out.Hints)
		}
		e = beside("sleep 7701 & sleep 7702")
		e.TimeoutMs = new(int64(1000))
		if out := run(e); !out.TimedOut {
			t.Errorf("%+v", out)
		}
		eventually(t, "what it has started has ended, and the process has not", func() bool {
			out := run(beside("ps -eo args"))
			return !strings.Contains(out.Stdout, "sleep 770") && strings.Contains(out.Stdout, "http.server")
		})
		for _, target := range []string{"--sandbox", "--user"} {
			if said, err := l.cli("process", "exec", target, user, "-C", "/home/dir", "web", "--", "cat note; echo; ps -eo args | grep -c '[h]ttp.server'").CombinedOutput(); string(said) != "a note\n1\n" {
				t.Errorf("the command line says %q, %v", said, err)
			}
		}

		for name, refused := range map[string]struct {
			id   string
			exec types.Exec
			kind types.Kind
			says string
		}{
			"grants":        {user, types.Exec{Process: "web", Permissions: workspace}, types.Invalid, "permissions: a call in a process's container"},
			"less":          {user, types.Exec{Process: "web", Restrictions: types.Restrictions{DenyRead: []string{"/home/x"}}}, types.Invalid, "denyRead"},
			"in":            {user, types.Exec{Process: "web", In: types.InSandbox}, types.Invalid, "exclude each other"},
			"another one's": {user + "-2", types.Exec{Process: "web"}, types.Denied, `was started by sandbox "beside"`},
			"another user":  {other, types.Exec{Process: "web"}, types.NotFound, "is not there"},
			"by its id":     {other, types.Exec{Process: p.ID}, types.NotFound, "is not there"},
			"nobody":        {user, types.Exec{Process: "wem"}, types.NotFound, "is not there"},
		} {
			refused.exec.Command = "true"
			if _, err := l.client.Exec(t.Context(), refused.id, refused.exec); kindOf(err) != refused.kind || !strings.Contains(err.Error(), refused.says) {
				t.Errorf("%s: %v", name, err)
			}
		}
		// What the sandbox holds has changed.
		l.registerAs(t, user, types.Registration{UserID: user, Permissions: types.Permissions{WorkingDir: "/home/dir"}})
		if _, err := l.client.Exec(t.Context(), user, beside("true")); kindOf(err) != types.Conflict || !strings.Contains(err.Error(), "which has changed") {
			t.Errorf("after another registration: %v", err)
		}
		l.register(t, user)

		// It ends with the process.
		ended := make(chan string, 1)
		go func() {
			out, err := l.client.Exec(t.Context(), user, beside("touch begun; sleep 7703"))
			ended <- fmt.Sprint(err, " ", out.Failed)
		}()
		eventually(t, "it runs", func() bool { return strings.Contains(run(beside("ps -eo args")).Stdout, "sleep 7703") })
		if _, err := l.client.StopProcess(t.Context(), user, p.ID, ""); err != nil {
			t.Error(err)
		}
		if how := <-ended; how != "<nil> true" && !strings.Contains(how, "the process has ended") {
			t.Errorf("the command ended with the process: %s", how)
		}
		if _, err := l.client.Exec(t.Context(), user, beside("true")); kindOf(err) != types.Conflict || !strings.Contains(err.Error(), "does not run") {
			t.Errorf("after its end: %v", err)
		}
	})
}

// Where a process runs inside its sandbox, a call beside it is one in the sandbox.
func TestACallBesideAProcessOfAMachine(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		const user = "beside-machine"
		l.registerPersistent(t, user)
		p, err := l.client.StartProcess(t.Context(), user, types.StartProcess{Name: "idle", In: types.InSandbox, Cwd: "/tmp", Env: map[string]string{"GIVEN": "given"}, Command: "sleep 7711"})
		if err != nil {
			t.Fatal(err)
		}
		beside := types.Exec{Process: p.Name, Command: "ps -eo args | grep -c '[s]leep 7711'; pwd; echo $GIVEN"}
		out, err := l.client.Exec(t.Context(), user, beside)
		if err != nil || out.Stdout != "1\n/tmp\ngiven\n" {
			t.Errorf("%+v, %v", out, err)
		}
		// Another registration would give the call another machine, without the process.
		l.registerAs(t, user, types.Registration{UserID: user, Persistent: true, Permissions: types.Permissions{WriteDirs: []string{"/home/more"}}})
		if out, err := l.client.Exec(t.Context(), user, beside); kindOf(err) != types.Conflict {
			t.Errorf("%+v, %v", out, err)
		}
	})
}

// keepsOpen has databases open, of which it writes to one all the time, and a FIFO and a database that it only reads.
const keepsOpen = `
import os, sqlite3, time
os.makedirs("private", exist_ok=True); os.makedirs("cache", exist_ok=True)
all = [sqlite3.connect(name, isolation_level=None) for name in ("quiet.db", "private/busy.db")]
for db in all: db.execute("create table rows (n)")
os.mkfifo("pipe.lock")
kept = [os.open("pipe.lock", os.O_RDWR), os.open("cache/data.mdb", os.O_RDWR | os.O_CREAT), os.open("notes.txt", os.O_RDWR | os.O_CREAT)]
read = sqlite3.connect("read.db"); read.execute("create table rows (n)"); read.close()
kept.append(os.open("read.db", os.O_RDONLY))
print("open", flush=True)
while True: all[1].execute("insert into rows values (1)"); time.sleep(0.05)`

// Who may write to a database that a process has open in another kernel is told so when it has changed: once, of what
// he sees and may write to, and not where all containers have one kernel.
func TestADatabaseThatIsOpenElsewhere(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		const user, other = "conflicted", "conflicted-2"
		l.registerAs(t, user, types.Registration{UserID: user})
		l.registerAs(t, other, types.Registration{UserID: user})
		p := l.startProcess(t, user, types.StartProcess{Name: "web", Permissions: workspace, Argv: []string{"python3", "-c", keepsOpen}})
		prints(t, p, "open\n")
		told := map[string]string{} // by path
		call := func(id string, e types.Exec) {
			t.Helper()
			out := l.run(t, id, e)
			if out.Failed {
				t.Fatalf("%s %.500q", exitText(out), out.Stderr)
			}
			for _, hint := range out.Hints {
				if told[hint.Path] != "" {
					t.Errorf("said again: %+v", hint)
				}
				told[hint.Path] = hint.Message
			}
		}
		private := types.Restrictions{DenyRead: []string{"/home/private"}}
		writes := types.Exec{Permissions: workspace, Restrictions: private, Command: "sqlite3 quiet.db 'insert into rows values (2)'; echo x | tee -a notes.txt cache/data.mdb >/dev/null; touch read.db pipe.lock; sleep 0.3"}
		if l.runtime() == "runc" {
			for range 3 {
				call(user, writes)
			}
			if len(told) > 0 {
				t.Errorf("with one kernel: %q", told)
			}
			return
		}
		eventually(t, "it is told of both that it has written to", func() bool {
			call(user, writes)
			return len(told) >= 2
		})
		for range 3 {
			call(user, writes)
			call(user, types.Exec{Permissions: []string{}, Command: "sleep 0.3"})
		}
		const words = " changed while the command ran, and the process web has it open in another container, where locks of this one are not seen; " +
			"run commands that use it in the process's container: process: web"
		if len(told) != 2 || told["/home/quiet.db"] != "/home/quiet.db"+words || told["/home/cache/data.mdb"] != "/home/cache/data.mdb"+words {
			t.Errorf("%q", told)
		}
		eventually(t, "who sees it is told of the one that the process writes to", func() bool {
			call(other, types.Exec{Permissions: workspace, Command: "sleep 0.3"})
			return strings.HasSuffix(told["/home/private/busy.db"], ", and a process of another sandbox has it open in another container, where locks of this one are not seen")
		})
		if len(told) != 3 {
			t.Errorf("%q", told)
		}
	})
}
