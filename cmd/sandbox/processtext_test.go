package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/workload/process"
)

func TestProcessesFitTheTerminal(t *testing.T) {
	now := time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)
	list := shown(t, three(now))
	list[0].Name = "a-server-with-a-long-name"
	for columns, want := range map[int]string{
		96: `ID              NAME          STATUS   UP/ENDED      RESTARTS  EXIT     COMMAND
p-aaaaaaaaaaaa  a-server-wi…  running  up 3m         0         -        python3 -m http.server…
p-bbbbbbbbbbbb  twin          exited   again in 10s  12        1        ./worker "a b" "\x1b[31…
p-cccccccccccc  twin          stopped  2d ago        0         SIGKILL  sleep 9
`,
		0: `ID              NAME                       STATUS   UP/ENDED      RESTARTS  EXIT     COMMAND
p-aaaaaaaaaaaa  a-server-with-a-long-name  running  up 3m         0         -        python3 -m http.server 8000
p-bbbbbbbbbbbb  twin                       exited   again in 10s  12        1        ./worker "a b" "\x1b[31m"
p-cccccccccccc  twin                       stopped  2d ago        0         SIGKILL  sleep 9
`,
	} {
		var out bytes.Buffer
		if err := printProcesses(&out, list, columns, now); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("%d columns: want (-), got (+):\n%s", columns, diff)
		}
	}
	for columns := range 200 {
		var out bytes.Buffer
		_ = printProcesses(&out, list, columns, now)
		for line := range strings.Lines(out.String()) {
			if n := len([]rune(line)) - 1; columns >= 80 && n > columns {
				t.Errorf("%d columns of %d: %s", n, columns, line)
			}
		}
	}
}

// shown are records as the service answers with them.
func shown(t *testing.T, records []process.Record) (list []types.Process) {
	t.Helper()
	text, err := json.Marshal(records)
	if err == nil {
		err = json.Unmarshal(text, &list)
	}
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range records {
		list[i].Permissions = r.Grants
	}
	return list
}

func TestProcessIsReadable(t *testing.T) {
	now := time.Date(2026, 1, 2, 15, 4, 5, 0, time.Local)
	list := shown(t, three(now))
	for i, want := range []string{
		`id            p-aaaaaaaaaaaa
name          web
status        running for 3m, pid 4711
keep alive    no
command       python3 -m http.server 8000
cwd           /home/site
home          /tmp
user          alice, in sandbox agent-7
grants        @workspace, "@write:/a\x1b"
created       2025-12-31 03:04:05
last start    2026-01-02 15:01:05
log           /data/process.log
`,
		`id            p-bbbbbbbbbbbb
name          twin
status        exited 5s ago with code 1
keep alive    yes, 12 restarts, the next at 2026-01-02 15:04:15
command       ./worker "a b" "\x1b[31m"
user          alice, in sandbox agent-7
created       2025-12-31 03:04:05
last start    2026-01-02 15:03:05
last exit     2026-01-02 15:04:00 with code 1
lost          7 bytes of output could not be written to the log
`,
	} {
		var out bytes.Buffer
		if err := printProcess(&out, list[i], now); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("want (-), got (+):\n%s", diff)
		}
	}
	if got := newLab(t, nil, three(time.Now())...).ok("", "process", "get", "-u", "alice", "p-cccccccccccc"); !strings.Contains(got, `by SIGKILL: "odd\n"`) {
		t.Error(got)
	}
}

// How a process ended last is told while it runs again, too, and that it is paused.
func TestTheLastExitIsTold(t *testing.T) {
	at := time.Date(2026, 1, 2, 15, 4, 5, 0, time.Local)
	killed := "SIGKILL"
	p := types.Process{Status: types.ProcessPaused, LastStartedAt: at, LastExitedAt: at, Signal: &killed, ExitReason: "its view changed", Notice: "made\x1b anew"}
	for status, want := range map[types.ProcessState]string{
		types.ProcessPaused:  "paused with its sandbox, up for 3s",
		types.ProcessRunning: "running for 3s",
		types.ProcessExited:  "exited 3s ago by SIGKILL",
	} {
		p.Status = status
		exit := "last exit     2026-01-02 15:04:05 by SIGKILL: its view changed"
		if status == types.ProcessExited {
			exit = "last exit     2026-01-02 15:04:05 by SIGKILL"
		}
		var out bytes.Buffer
		if err := printProcess(&out, p, at.Add(3*time.Second)); err != nil {
			t.Fatal(err)
		}
		for _, line := range []string{"status        " + want, exit, `notice        "made\x1b anew"`} {
			if !strings.Contains(out.String(), line+"\n") {
				t.Errorf("%s: want %q in\n%s", status, line, out.String())
			}
		}
	}
	p = types.Process{Status: types.ProcessStopped, LastExitedAt: at}
	if got := lastExitText(p); got != "2026-01-02 15:04:05, nobody knows how" {
		t.Error(got)
	}
}

// What is asked of few is shown of few.
func TestReadinessAndPortsAreReadable(t *testing.T) {
	now := time.Date(2026, 1, 2, 15, 4, 5, 0, time.Local)
	ready := types.Readiness{Ready: types.Ready{Port: 80}, OK: true, Since: now.Add(-time.Minute)}
	not := types.Readiness{Ready: types.Ready{Command: "./up"}, Message: "code 1: \x1b[2J"}
	ports := []types.Exposed{{Port: 80, HostPort: 2000, Address: "127.0.0.1:2000"}, {Port: 81, HostPort: 2001, Address: "127.0.0.1:2001", Fault: "in use"}}
	for _, tt := range []struct {
		p            types.Process
		status, text string
	}{
		{types.Process{Status: types.ProcessRunning}, "running", ""},
		{types.Process{Status: types.ProcessRunning, Ready: &ready, Expose: ports}, "ready", `ready         yes, for 1m (port 80)
exposed       127.0.0.1:2000 leads to port 80
exposed       127.0.0.1:2001 leads to port 81, but not now: in use
`},
		{types.Process{Status: types.ProcessRunning, Ready: &not}, "unready", `ready         no: "code 1: \x1b[2J" (./up)
`},
		{types.Process{Status: types.ProcessPaused, Ready: &ready, Expose: ports[:1]}, "paused", `ready         no, it is paused (port 80)
exposed       127.0.0.1:2000 leads to port 80
`},
		{types.Process{Status: types.ProcessExited, Ready: &not, Expose: ports[:1]}, "exited", `ready         no, it does not run (./up)
exposed       127.0.0.1:2000 leads to port 80 when it runs
`},
	} {
		if got := listedStatus(tt.p); got != tt.status {
			t.Errorf("%s, want %s", got, tt.status)
		}
		var out bytes.Buffer
		if err := printProcess(&out, tt.p, now); err != nil {
			t.Fatal(err)
		}
		var text string
		for line := range strings.Lines(out.String()) {
			if strings.HasPrefix(line, "ready ") || strings.HasPrefix(line, "exposed ") {
				text += line
			}
		}
		if diff := cmp.Diff(tt.text, text); diff != "" {
			t.Errorf("%s: want (-), got (+):\n%s", tt.status, diff)
		}
	}
}

func TestPortsOnTheCommandLine(t *testing.T) {
	got, err := exposed([]string{"80", "2000:65535"})
	if diff := cmp.Diff([]types.Expose{{Port: 80}, {Port: 65535, HostPort: 2000}}, got); diff != "" || err != nil {
		t.Errorf("%v, want (-), got (+):\n%s", err, diff)
	}
	for _, word := range []string{"", "0", "65536", "-1", "web", ":80", "80:", "0:80", "1:2:3", "127.0.0.1:1:2"} {
		if _, err := exposed([]string{word}); err == nil || !strings.Contains(err.Error(), "--expose "+word) {
			t.Errorf("%q: %v", word, err)
		}
	}
}
