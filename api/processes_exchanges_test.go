package api

import (
	"errors"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/workload/process"
)

// web is a process that runs, and crashed one that waits for its next start.
func web() process.Record {
	at := time.Date(2026, 1, 2, 15, 4, 5, 6, time.FixedZone("somewhere", 3600))
	return process.Record{
		ID: "p-k3v7q2m5x4ta", HasSecrets: true,
		Intent: process.Intent{
			UserID: "alice", SandboxID: "agent-7", Name: "web", Command: "serve", Cwd: "/home/site", Home: "/tmp",
			Env: map[string]string{"A": "hidden"}, Grants: []string{"@workspace"}, KeepAlive: true,
		},
		LogPath: "/data/users/alice/processes/p-k3v7q2m5x4ta/process.log", DesiredState: process.Running, Status: process.Running,
		PID: 4711, CreatedAt: at, UpdatedAt: at.Add(time.Second), LastStartedAt: at.Add(time.Second),
	}
}

func crashed() process.Record {
	r, code := web(), 1
	r.Command, r.Argv, r.Grants, r.AllowedDomains = "", []string{"serve", "caf\xe9"}, []string{"@network"}, []string{"example.org"}
	r.Status, r.PID, r.ExitCode, r.RestartCount, r.BackoffMs = process.Exited, 0, &code, 3, 8000
	r.LastExitedAt, r.NextRestartAt = r.UpdatedAt.Add(time.Second), r.UpdatedAt.Add(9*time.Second)
	return r
}

func killed() process.Record {
	r := web()
	r.Status, r.DesiredState, r.PID, r.Signal, r.OOMKilled, r.LostBytes = process.Stopped, process.Stopped, 0, "SIGKILL", true, 1<<53
	r.Reason, r.LastExitedAt, r.Login = "its container is gone", r.UpdatedAt, true
	return r
}

// withProcesses is a lab with a process that runs, one that waits for its next start, and one that was killed.
func withProcesses(t *testing.T) (l *lab, running process.Record) {
	t.Helper()
	l = newLab(t, nil)
	running = l.Start(process.Intent{Name: "web", Command: "serve", Env: map[string]string{"A": "hidden"}, KeepAlive: true})
	l.Print(running, "a\n\xff")
	l.End(l.Start(process.Intent{Argv: []string{"serve", "caf\xe9"}, KeepAlive: true}), process.Exit{Code: 1, At: time.Now()})
	l.End(l.Start(process.Intent{Command: "serve"}), process.Exit{Signal: syscall.SIGKILL, OOM: true, Lost: 1 << 53, At: time.Now()})
	return l, running
}

func processExchanges(t *testing.T) []exchange {
	const all, none = "/v1/sandboxes/agent-7/processes", "/v1/sandboxes/agent-7/processes/p-aaaaaaaaaaaa"
	const start, list, stopAll = "POST " + all, "GET " + all, "POST " + all + "/stop-all"
	const body = `{"name":"api","command":"serve","permissions":["@workspace","@network"],"allowedDomains":["example.org"],"packageManagers":["node"],
		"home":"/home/project","cwd":"site","env":{"A":"1"},"secrets":{"B":""},"login":true,"keepAlive":true}`
	l, running := withProcesses(t)
	toRemove, ended := l.Start(process.Intent{Command: "x"}), l.Start(process.Intent{Command: "x"})
	l.Print(ended, "a\n\xff")
	l.End(ended, process.Exit{Signal: syscall.SIGKILL})
	one, log := all+"/"+running.ID, "GET "+all+"/"+running.ID+"/log"
	bounded := newLab(t, nil, bounded(quota.Bounds{Processes: 1}))
	bounded.Start(process.Intent{Command: "x"})
	exchanges := []exchange{
		{name: "starts", route: start, body: body, lab: l, status: 201},
		{name: "starts one with a long name", route: start, body: `{"argv":["serve",""],"name":"` + strings.Repeat("x", 81) + `"}`, lab: l, status: 201},
		{name: "empty command", route: start, body: `{"command":""}`, lab: l, status: 400, breaks: true},
		{name: "both forms", route: start, body: `{"command":"ls","argv":["ls"]}`, lab: l, status: 400, breaks: true},
		{name: "timeout", route: start, body: `{"command":"ls","timeoutMs":1}`, status: 400, breaks: true},
		{name: "unknown tag", route: start, body: `{"command":"ls","permissions":["@root"]}`, lab: l, status: 400, breaks: true},
		{name: "outside", route: start, body: `{"command":"ls","cwd":"/etc"}`, lab: l, status: 403},
		{name: "too large", route: start, body: `{"command":"` + strings.Repeat("a", testMaxRequest) + `"}`, status: 413},
		{name: "too many", route: start, body: `{"command":"ls"}`, lab: bounded, status: 429},
		{name: "in no sandbox", route: strings.Replace(start, "agent-7", "none", 1), body: `{"command":"ls"}`, lab: l, status: 404},

		{name: "lists", route: list, lab: l, status: 200},
		{name: "lists those of nobody", route: strings.Replace(list, "agent-7", "none", 1), lab: l, status: 404},
		{name: "finds", route: "GET " + one, lab: l, status: 200},
		{name: "removes", route: "DELETE " + all + "/" + toRemove.ID, lab: l, status: 204},
		{name: "unknown signal", route: "POST " + one + "/stop", body: `{"signal":"SEGV"}`, status: 400, breaks: true},

		{name: "reads", route: log, lab: l, status: 200},
		{name: "reads a part", route: log + "?lines=10000&bytes=1&follow=false", lab: l, status: 200},
		{name: "no lines", route: log + "?lines=0", status: 400, breaks: true},
		{name: "too many bytes", route: log + "?bytes=1048577", status: 400, breaks: true},
		{name: "bad follow", route: log + "?follow=yes", status: 400, breaks: true},
		{name: "follows to the end", route: "GET " + all + "/" + ended.ID + "/log?follow=true", accept: ndjson, status: 200, lab: l},
		{name: "follows what is not there", route: "GET " + none + "/log?follow=true", accept: ndjson, lab: l, status: 404},

		{name: "waits for an end", route: "GET " + all + "/" + ended.ID + "/wait", lab: l, status: 200},
		{name: "waits in vain", route: "GET " + one + "/wait?until=end&timeoutMs=1", lab: l, status: 200},
		{name: "waits for what is not checked", route: "GET " + one + "/wait?until=ready", lab: l, status: 400},
		{name: "waits for what there is not", route: "GET " + one + "/wait?until=dawn", lab: l, status: 400, breaks: true},
		{name: "waits too long", route: "GET " + one + "/wait?timeoutMs=300001", lab: l, status: 400, breaks: true},

		{name: "a name that is taken", route: start, body: `{"name":"web","command":"x"}`, lab: l, status: 409},
		{name: "stops", route: "POST " + one + "/stop", lab: l, status: 200},
		{name: "interrupts", route: "POST " + one + "/stop", body: `{"signal":"INT"}`, lab: l, status: 200},
		{name: "stops all with a signal", route: stopAll, body: `{"signal":"KILL"}`, status: 400, breaks: true},
		{name: "stops all", route: stopAll, lab: l, status: 200},
		{name: "stops all with an empty object", route: stopAll, body: `{}`, lab: l, status: 200},
		{name: "stops all of nobody", route: strings.Replace(stopAll, "agent-7", "none", 1), lab: l, status: 404},
	}
	// A user sees no difference between what is not there and what is another's.
	for _, route := range []string{start, list, stopAll, "GET " + none, "DELETE " + none, "POST " + none + "/stop", "GET " + none + "/log", "GET " + none + "/wait"} {
		x := exchange{name: "bad id", route: strings.Replace(route, "agent-7", "A..B", 1), lab: l, status: 400, breaks: true}
		if route == start {
			x.body = body
		}
		exchanges = append(exchanges, x)
		if strings.Contains(route, none) {
			x.name, x.route, x.status, x.breaks = "not there", route, http.StatusNotFound, false
			exchanges = append(exchanges, x)
		}
	}
	return append(exchanges, brokenProcessExchanges(t, body)...)
}

// brokenProcessExchanges are those with a Docker that is away, and a service that stops.
func brokenProcessExchanges(t *testing.T, body string) (list []exchange) {
	const all = "/v1/sandboxes/agent-7/processes"
	for status, fault := range map[int]error{502: errors.New("no engine"), 503: classed(cerrdefs.ErrUnavailable)} {
		l := newLab(t, nil)
		one := all + "/" + l.Start(process.Intent{Command: "x"}).ID
		l.Runner.Fault = fault
		t.Cleanup(func() { l.Runner.Fault = nil })
		start := exchange{route: "POST " + all, body: body}
		log := exchange{route: "GET " + one + "/log", fault: fault}
		for _, x := range []exchange{start, log, {route: "DELETE " + one}, {route: "POST " + one + "/stop"}, {route: "POST " + all + "/stop-all"}} {
			x.name, x.lab, x.status = http.StatusText(status), l, status
			list = append(list, x)
		}
	}
	return list
}

// What a caller asks for is started, and the record shows what it asked for.
func TestProcessesAsTheyWereAskedFor(t *testing.T) {
	l := newLab(t, nil)
	const body = `{"name":"web","command":"serve","login":true,"permissions":["@network"],"allowedDomains":["a.org"],"packageManagers":["go"],` +
		`"home":"/tmp/x","cwd":"site","env":{"A":"1"},"secrets":{"B":"2"},"keepAlive":true,"denyWrite":["/home/a"],"ready":{"port":80},"expose":[{"port":80}]}`
	var started types.StartedProcess
	if err := json.Unmarshal([]byte(l.answered(exchange{route: "POST /v1/sandboxes/a/processes", body: body})), &started); err != nil {
		t.Fatal(err)
	}
	r, err := l.Process("a", started.ID)
	if err != nil {
		t.Fatal(err)
	}
	if r.Ready == nil || r.Ready.Port != 80 || len(r.Expose) != 1 || r.Expose[0].Port != 80 || l.Runner.Secrets["B"] != "2" || !r.HasSecrets {
		t.Errorf("%+v %v", r, l.Runner.Secrets)
	}
	want := process.Intent{
		UserID: "alice", SandboxID: "a", Name: "web", Command: "serve", Login: true, Cwd: "/home/site", Home: "/tmp/x", Env: map[string]string{"A": "1"},
		Grants: []string{"@network"}, AllowedDomains: []string{"a.org"}, PackageManagers: []string{"go"}, Restrictions: plan.Restrictions{DenyWrite: []string{"/home/a"}},
		KeepAlive: true,
	}
	if diff := cmp.Diff(want, r.Intent, cmpopts.IgnoreFields(process.Intent{}, "Ready", "Expose", "Egress")); diff != "" {
		t.Errorf("want (-), recorded (+):\n%s", diff)
	}
	if diff := cmp.Diff(processAnswer(r), started.Process, cmpopts.IgnoreFields(types.Readiness{}, "Since")); diff != "" || started.Notices == nil {
		t.Errorf("recorded (-), answered (+):\n%s", diff)
	}
	var second types.StartedProcess
	long := `{"argv":["serve","x"],"name":"` + strings.Repeat("x", 81) + `"}`
	if err := json.Unmarshal([]byte(l.answered(exchange{route: "POST /v1/sandboxes/a/processes", body: long})), &second); err != nil {
		t.Fatal(err)
	}
	if !cmp.Equal(second.Argv, []string{"serve", "x"}) || len(second.Notices) != 1 || len(second.Name) != 80 {
		t.Errorf("%+v", second)
	}
	var list types.ProcessList
	if err := json.Unmarshal([]byte(l.answered(exchange{route: "GET /v1/sandboxes/a/processes"})), &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Processes) != 2 || list.Processes[0].ID != started.ID || list.Processes[1].ID != second.ID {
		t.Errorf("listed %+v", list)
	}
	stopped := l.answered(exchange{route: "POST /v1/sandboxes/a/processes/" + started.ID + "/stop"})
	if !strings.Contains(stopped, `"status":"stopped"`) || !strings.Contains(stopped, `"exitCode":null,"signal":"SIGTERM"`) || !strings.Contains(stopped, `"pid":null`) {
		t.Errorf("stopped %s", stopped)
	}
}

// A record comes as its users know it.
func TestProcessesAsJSON(t *testing.T) {
	const running = `{"id":"p-k3v7q2m5x4ta","userId":"alice","sandboxId":"agent-7","name":"web","command":"serve","cwd":"/home/site","home":"/tmp",` +
		`"permissions":["@workspace"],"allowedDomains":[],"packageManagers":[],"pid":4711,"keepAlive":true,"desiredState":"running","status":"running",` +
		`"restartCount":0,"backoffMs":0,"createdAt":"2026-01-02T14:04:05.000000006Z","updatedAt":"2026-01-02T14:04:06.000000006Z",` +
		`"lastStartedAt":"2026-01-02T14:04:06.000000006Z","exitCode":null,"signal":null,"oomKilled":false,"lostBytes":0,` +
		`"logPath":"/data/users/alice/processes/p-k3v7q2m5x4ta/process.log"`
	const waiting = `{"id":"p-k3v7q2m5x4ta","userId":"alice","sandboxId":"agent-7","name":"web","argv":["serve","caf` + "\uFFFD" + `"],"cwd":"/home/site","home":"/tmp",` +
		`"permissions":["@network"],"allowedDomains":["example.org"],"packageManagers":[],"pid":null,"keepAlive":true,"desiredState":"running","status":"exited",` +
		`"restartCount":3,"backoffMs":8000,"nextRestartAt":"2026-01-02T14:04:15.000000006Z","createdAt":"2026-01-02T14:04:05.000000006Z",` +
		`"updatedAt":"2026-01-02T14:04:06.000000006Z","lastStartedAt":"2026-01-02T14:04:06.000000006Z","lastExitedAt":"2026-01-02T14:04:07.000000006Z",` +
		`"exitCode":1,"signal":null,"oomKilled":false,"lostBytes":0,"logPath":"/data/users/alice/processes/p-k3v7q2m5x4ta/process.log"}`
	started := types.StartedProcess{Process: processAnswer(web()), Notices: orEmpty(nil)}
	for _, tt := range []struct {
		value any
		want  string
	}{
		{started, running + `,"notices":[]}`},
		{processAnswer(crashed()), waiting},
		{processList([]process.Record{web(), crashed()}), `{"processes":[` + running + `},` + waiting + `]}`},
		{processList(nil), `{"processes":[]}`},
	} {
		if got := jsonText(t, tt.value); got != tt.want {
			t.Errorf("got  %s\nwant %s", got, tt.want)
		}
	}
	stopped := processAnswer(killed())
	if stopped.ExitCode != nil || *stopped.Signal != "SIGKILL" || !stopped.OOMKilled || stopped.Reason == "" || stopped.LostBytes != 1<<53 {
		t.Errorf("stopped %+v", stopped)
	}
}

// A signal reaches the process.
func TestSignalsOfStop(t *testing.T) {
	l := newLab(t, nil)
	for body, want := range map[string]string{
		"": "terminated", `{}`: "terminated", `{"signal":""}`: "terminated", `{"signal":"TERM"}`: "terminated",
		`{"signal":"INT"}`: "interrupt", `{"signal":"HUP"}`: "hangup", `{"signal":"KILL"}`: "killed",
	} {
		p := l.Start(process.Intent{Command: "x"})
		l.answered(exchange{route: "POST /v1/sandboxes/a/processes/" + p.ID + "/stop", body: body})
		if got := l.Runner.Signals[len(l.Runner.Signals)-1]; got != want+" "+p.ID {
			t.Errorf("%s: %s, want %s", body, got, want)
		}
	}
}

// TestBadRequestsForProcesses sends what has to be refused.
func TestBadRequestsForProcesses(t *testing.T) {
	server := newLab(t, nil).serve()
	const start, stop, stopAll, log = "POST /v1/sandboxes/a/processes", "POST /v1/sandboxes/a/processes/p/stop", "POST /v1/sandboxes/a/processes/stop-all", "GET /v1/sandboxes/a/processes/p/log"
	for _, tt := range []struct{ route, body, message string }{
		{start, "", "the body is empty"},
		{start, `{"command":"ls","keepalive":true}`, "keepalive: unknown key"},
		{start, `{"command":"ls","keepAlive":"yes"}`, "keepAlive: want true or false, got a string"},
		{start, `{"command":"ls","secrets":{"A":1}}`, "secrets.A: want a string, got a number"},
		{stop, `{"signal":"SIGTERM"}`, `signal "SIGTERM" is none of TERM, INT, HUP, KILL`},
		{stop, `{"signal":"term"}`, `signal "term" is none of`},
		{stop, `{"signal":9}`, "signal: want a string, got a number"},
		{stop, `{"sig":"TERM"}`, "sig: unknown key"},
		{stop, " ", "the body is empty"},
		{stopAll, `{"signal":"TERM"}`, "signal: unknown key"},
		{log + "?lines=0", "", `lines "0" is not a number from 1 to 10000`},
		{log + "?lines=10001", "", `lines "10001" is not a number`},
		{log + "?from=head", "", `from "head" is neither start nor end`},
		{log + "?from=start&follow=true&lines=3", "", "lines and bytes do not go with from=start and follow=true"},
		{log + "?lines=all", "", `lines "all" is not a number`},
		{log + "?bytes=-1", "", `bytes "-1" is not a number from 1 to 1048576`},
		{log + "?bytes=1048577", "", `bytes "1048577" is not a number`},
		{log + "?bytes=99999999999999999999", "", "is not a number"},
		{log + "?follow", "", `follow "" is neither true nor false`},
		{log + "?lines=1&lines=2", "", "parameter lines is given 2 times"},
		{log + "?tail=1", "", `unknown parameter "tail"; there are lines, bytes, from, follow`},
	} {
		req := exchange{route: tt.route, body: tt.body}.request(t, server.URL)
		if failure, status := refused(t, req); status != 400 || failure.Kind != types.Invalid || !strings.Contains(failure.Message, tt.message) {
			t.Errorf("%s %s: %d %+v, want %s", tt.route, tt.body, status, failure, tt.message)
		}
	}
}
