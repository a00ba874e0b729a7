package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/client"
)

func TestProcessesFitTheTerminal(t *testing.T) {
	now := time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)
	l := newLab(t)
	l.records = three(now)
	l.records[0].Name = "a-server-with-a-long-name"
	c := client.New(l.socket)
	defer c.Close()
	list, err := c.Processes(t.Context(), "agent-7")
	if err != nil {
		t.Fatal(err)
	}
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

func TestProcessIsReadable(t *testing.T) {
	now := time.Date(2026, 1, 2, 15, 4, 5, 0, time.Local)
	l := newLab(t)
	l.records = three(now)
	c := client.New(l.socket)
	defer c.Close()
	for id, want := range map[string]string{
		"p-aaaaaaaaaaaa": `id            p-aaaaaaaaaaaa
name          web
status        running for 3m, pid 4711
keep alive    no
command       python3 -m http.server 8000
cwd           /home/site
home          /tmp
user          alice, in sandbox agent-7
grants        @workspace, "@write:/a\x1b"
last start    2026-01-02 15:01:05
log           /data/process.log
`,
		"p-bbbbbbbbbbbb": `id            p-bbbbbbbbbbbb
name          twin
status        exited 5s ago with code 1
keep alive    yes, 12 restarts, the next at 2026-01-02 15:04:15
command       ./worker "a b" "\x1b[31m"
user          alice, in sandbox agent-7
last exit     2026-01-02 15:04:00
lost          7 bytes of output could not be written to the log
`,
	} {
		p, err := c.Process(t.Context(), "agent-7", id)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := printProcess(&out, p, now); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("want (-), got (+):\n%s", diff)
		}
	}
	if got := l.ok("", "process", "get", "-u", "alice", "p-cccccccccccc"); !strings.Contains(got, `by SIGKILL: "odd\n"`) {
		t.Error(got)
	}
}
