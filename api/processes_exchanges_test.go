package api

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/process"
	"github.com/daycare-run/sandbox/internal/sandbox"
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

// keeper is a service whose calls on processes all end with err.
func keeper(err error) fakeService {
	return fakeService{fakeProcesses: fakeProcesses{
		start: func(sandbox.ProcessRequest) (process.Record, []string, error) {
			return web(), []string{"name was cut"}, err
		},
		processes: func() ([]process.Record, error) { return []process.Record{web(), crashed(), killed()}, err },
		process:   func(string) (process.Record, error) { return crashed(), err },
		stop:      func(context.Context, string, syscall.Signal) (process.Record, error) { return killed(), err },
		stopAll:   func() ([]process.Record, error) { return []process.Record{killed()}, err },
		removes:   func(string) error { return err },
		readLog: func(sandbox.LogQuery) (sandbox.LogPart, error) {
			return sandbox.LogPart{Data: []byte("a\n\xff"), Truncated: true, Notice: "cut"}, err
		},
	}}
}

// logs is a service with a log that is followed.
func logs(ends error, record func(string) (process.Record, error), parts ...sandbox.LogPart) fakeService {
	return fakeService{fakeProcesses: fakeProcesses{
		process: record,
		followLog: func(_ context.Context, _ sandbox.LogQuery, each func(sandbox.LogPart) error) error {
			for _, part := range parts {
				if err := each(part); err != nil {
					return err
				}
			}
			return ends
		},
	}}
}

// has makes a fake's process.
func has(r process.Record) func(string) (process.Record, error) {
	return func(string) (process.Record, error) { return r, nil }
}

func processExchanges() []exchange {
	const all = "/v1/sandboxes/agent-7/processes"
	const one = all + "/p-k3v7q2m5x4ta"
	const start, log = "POST " + all, "GET " + one + "/log"
	const body = `{"name":"web","command":"serve","permissions":["@workspace","@network"],"allowedDomains":["example.org"],"packageManagers":["node"],
		"home":"/home/project","cwd":"site","env":{"A":"1"},"secrets":{"B":""},"login":true,"keepAlive":true}`
	missing, invalid, stopping := classed(cerrdefs.ErrNotFound), classed(cerrdefs.ErrInvalidArgument), classed(cerrdefs.ErrUnavailable)
	broken := errors.New("no engine")
	list := []exchange{
		{name: "starts", route: start, body: body, service: keeper(nil), status: 201},
		{name: "starts a program", route: start, body: `{"argv":["serve",""]}`, service: keeper(nil), status: 201},
		{name: "empty command", route: start, body: `{"command":""}`, service: keeper(invalid), status: 400, breaks: true},
		{name: "both forms", route: start, body: `{"command":"ls","argv":["ls"]}`, service: keeper(invalid), status: 400, breaks: true},
		{name: "timeout", route: start, body: `{"command":"ls","timeoutMs":1}`, status: 400, breaks: true},
		{name: "unknown tag", route: start, body: `{"command":"ls","permissions":["@root"]}`, service: keeper(invalid), status: 400, breaks: true},
		{name: "outside", route: start, body: body, service: keeper(classed(cerrdefs.ErrPermissionDenied)), status: 403},
		{name: "too large", route: start, body: `{"command":"` + strings.Repeat("a", testMaxRequest) + `"}`, status: 413},
		{name: "too many", route: start, body: body, service: keeper(classed(cerrdefs.ErrResourceExhausted)), status: 429},

		{name: "lists", route: "GET " + all, service: keeper(nil), status: 200},
		{name: "finds", route: "GET " + one, service: keeper(nil), status: 200},
		{name: "removes", route: "DELETE " + one, service: keeper(nil), status: 204},
		{name: "stops", route: "POST " + one + "/stop", service: keeper(nil), status: 200},
		{name: "interrupts", route: "POST " + one + "/stop", body: `{"signal":"INT"}`, service: keeper(nil), status: 200},
		{name: "unknown signal", route: "POST " + one + "/stop", body: `{"signal":"SEGV"}`, status: 400, breaks: true},
		{name: "stops all", route: "POST " + all + "/stop-all", service: keeper(nil), status: 200},
		{name: "stops all with an empty object", route: "POST " + all + "/stop-all", body: `{}`, service: keeper(nil), status: 200},
		{name: "stops all with a signal", route: "POST " + all + "/stop-all", body: `{"signal":"KILL"}`, status: 400, breaks: true},

		{name: "reads", route: log, service: keeper(nil), status: 200},
		{name: "reads a part", route: log + "?lines=10000&bytes=1&follow=false", service: keeper(nil), status: 200},
		{name: "no lines", route: log + "?lines=0", status: 400, breaks: true},
		{name: "too many bytes", route: log + "?bytes=1048577", status: 400, breaks: true},
		{name: "bad follow", route: log + "?follow=yes", status: 400, breaks: true},
		{name: "follows to the end", route: log + "?follow=true", accept: ndjson, status: 200,
			service: logs(nil, has(killed()), sandbox.LogPart{Data: []byte("a\n\xff")}, sandbox.LogPart{Notice: "cut"})},
		{name: "follows to a fault", route: log + "?follow=true", accept: ndjson, service: logs(broken, has(web())), status: 200},
		{name: "follows what is not there", route: log + "?follow=true", accept: ndjson, service: keeper(missing), status: 404},
	}
	// The faults that several share. A user sees no difference between what is not there and what is another's.
	for route, faults := range map[string]map[int]error{
		start:                       {404: missing, 502: broken, 503: stopping},
		"GET " + all:                {404: missing},
		"GET " + one:                {404: missing},
		"DELETE " + one:             {404: missing, 502: broken, 503: stopping},
		"POST " + one + "/stop":     {404: missing, 502: broken, 503: stopping},
		"POST " + all + "/stop-all": {404: missing, 502: broken, 503: stopping},
		log:                         {404: missing, 502: broken, 503: stopping},
	} {
		x := exchange{name: "bad id", route: strings.Replace(route, "agent-7", "A..B", 1), service: keeper(invalid), status: 400, breaks: true}
		if route == start {
			x.body = body
		}
		list = append(list, x)
		for status, err := range faults {
			x.name, x.route, x.service, x.status, x.breaks = http.StatusText(status), route, keeper(err), status, false
			list = append(list, x)
		}
	}
	return list
}

// What a caller asks for reaches the service, and the record comes back as its users know it.
func TestProcessesAsJSON(t *testing.T) {
	asked := make(chan sandbox.ProcessRequest, 1)
	service := keeper(nil)
	service.start = func(r sandbox.ProcessRequest) (process.Record, []string, error) {
		asked <- r
		return web(), nil, nil
	}
	const body = `{"name":"web","command":"serve","argv":["a"],"login":true,"permissions":["@network"],"allowedDomains":["a.org"],"packageManagers":["go"],` +
		`"home":"/home","cwd":"site","env":{"A":"1"},"secrets":{"B":"2"},"keepAlive":true}`
	const running = `{"id":"p-k3v7q2m5x4ta","userId":"alice","sandboxId":"agent-7","name":"web","command":"serve","cwd":"/home/site","home":"/tmp",` +
		`"permissions":["@workspace"],"allowedDomains":[],"packageManagers":[],"pid":4711,"keepAlive":true,"desiredState":"running","status":"running",` +
		`"restartCount":0,"backoffMs":0,"createdAt":"2026-01-02T14:04:05.000000006Z","updatedAt":"2026-01-02T14:04:06.000000006Z",` +
		`"lastStartedAt":"2026-01-02T14:04:06.000000006Z","exitCode":null,"signal":null,"oomKilled":false,"lostBytes":0,` +
		`"logPath":"/data/users/alice/processes/p-k3v7q2m5x4ta/process.log"`
	if got := answered(t, &service, exchange{route: "POST /v1/sandboxes/a/processes", body: body}); got != running+`,"notices":[]}` {
		t.Errorf("started %s", got)
	}
	want := sandbox.ProcessRequest{
		Name: "web", Command: "serve", Argv: []string{"a"}, Login: true, Cwd: "site",
		Confinement: sandbox.Confinement{Permissions: []string{"@network"}, AllowedDomains: []string{"a.org"}, PackageManagers: []string{"go"}, Home: "/home"},
		Env:         map[string]string{"A": "1"}, Secrets: map[string]string{"B": "2"}, KeepAlive: true,
	}
	if diff := cmp.Diff(want, <-asked); diff != "" {
		t.Errorf("want (-), asked (+):\n%s", diff)
	}
	const waiting = `{"id":"p-k3v7q2m5x4ta","userId":"alice","sandboxId":"agent-7","name":"web","argv":["serve","caf` + "\uFFFD" + `"],"cwd":"/home/site","home":"/tmp",` +
		`"permissions":["@network"],"allowedDomains":["example.org"],"packageManagers":[],"pid":null,"keepAlive":true,"desiredState":"running","status":"exited",` +
		`"restartCount":3,"backoffMs":8000,"nextRestartAt":"2026-01-02T14:04:15.000000006Z","createdAt":"2026-01-02T14:04:05.000000006Z",` +
		`"updatedAt":"2026-01-02T14:04:06.000000006Z","lastStartedAt":"2026-01-02T14:04:06.000000006Z","lastExitedAt":"2026-01-02T14:04:07.000000006Z",` +
		`"exitCode":1,"signal":null,"oomKilled":false,"lostBytes":0,"logPath":"/data/users/alice/processes/p-k3v7q2m5x4ta/process.log"}`
	if got := answered(t, &service, exchange{route: "GET /v1/sandboxes/a/processes/p"}); got != waiting {
		t.Errorf("found %s", got)
	}
	list := answered(t, &service, exchange{route: "GET /v1/sandboxes/a/processes"})
	if !strings.HasPrefix(list, `{"processes":[`+running+`},`+waiting+`,{`) {
		t.Errorf("listed %s", list)
	}
	var stopped types.Process
	if err := json.Unmarshal([]byte(answered(t, &service, exchange{route: "POST /v1/sandboxes/a/processes/p/stop"})), &stopped); err != nil {
		t.Fatal(err)
	}
	if stopped.ExitCode != nil || *stopped.Signal != "SIGKILL" || !stopped.OOMKilled || stopped.Reason == "" || stopped.LostBytes != 1<<53 {
		t.Errorf("stopped %+v", stopped)
	}
	service.processes = func() ([]process.Record, error) { return nil, nil }
	if got := answered(t, &service, exchange{route: "GET /v1/sandboxes/a/processes"}); got != `{"processes":[]}` {
		t.Errorf("listed none as %s", got)
	}
}

// A signal reaches the service with the id of its process.
func TestSignalsOfStop(t *testing.T) {
	stopped := make(chan string, 1)
	service := &fakeService{fakeProcesses: fakeProcesses{stop: func(_ context.Context, id string, signal syscall.Signal) (process.Record, error) {
		stopped <- id + " " + signal.String()
		return killed(), nil
	}}}
	for body, want := range map[string]string{
		"": "terminated", `{}`: "terminated", `{"signal":""}`: "terminated", `{"signal":"TERM"}`: "terminated",
		`{"signal":"INT"}`: "interrupt", `{"signal":"HUP"}`: "hangup", `{"signal":"KILL"}`: "killed",
	} {
		answered(t, service, exchange{route: "POST /v1/sandboxes/a/processes/p-1/stop", body: body})
		if got := <-stopped; got != "p-1 "+want {
			t.Errorf("%s: %s, want %s", body, got, want)
		}
	}
}

// TestBadRequestsForProcesses sends what has to be refused before the service is asked.
func TestBadRequestsForProcesses(t *testing.T) {
	server := serveFake(t, &fakeService{})
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
		{log + "?lines=all", "", `lines "all" is not a number`},
		{log + "?bytes=-1", "", `bytes "-1" is not a number from 1 to 1048576`},
		{log + "?bytes=1048577", "", `bytes "1048577" is not a number`},
		{log + "?bytes=99999999999999999999", "", "is not a number"},
		{log + "?follow", "", `follow "" is neither true nor false`},
		{log + "?lines=1&lines=2", "", "parameter lines is given 2 times"},
		{log + "?tail=1", "", `unknown parameter "tail"; there are lines, bytes, follow`},
	} {
		req := exchange{route: tt.route, body: tt.body}.request(t, server.URL)
		if failure, status := refused(t, req); status != 400 || failure.Kind != types.Invalid || !strings.Contains(failure.Message, tt.message) {
			t.Errorf("%s %s: %d %+v, want %s", tt.route, tt.body, status, failure, tt.message)
		}
	}
}
