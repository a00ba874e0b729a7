package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
	"github.com/daycare-run/sandbox/internal/workload/process"
)

// A process is started, seen, stopped and removed.
func TestProcesses(t *testing.T) {
	l := newLab(t, nil)
	c, ctx := l.dial(t), t.Context()
	start := func(name string) types.StartedProcess {
		started, err := c.StartProcess(ctx, "agent-7", types.StartProcess{Name: name, Command: "serve", KeepAlive: true})
		if err != nil {
			t.Fatal(err)
		}
		return started
	}
	started := start(strings.Repeat("x", 81))
	list, listErr := c.Processes(ctx, "agent-7")
	found, findErr := c.Process(ctx, "agent-7", started.ID)
	everyones, everyonesErr := c.AllProcesses(ctx)
	if err := errors.Join(listErr, findErr, everyonesErr); err != nil {
		t.Fatal(err)
	}
	pid := 4711
	want := types.Process{
		ID: started.ID, UserID: "alice", SandboxID: "agent-7", Name: strings.Repeat("x", 80), Command: "serve", Cwd: "/home", PID: &pid, KeepAlive: true,
		Permissions: []string{}, AllowedDomains: []string{}, PackageManagers: []string{}, LogPath: found.LogPath,
		DesiredState: types.ProcessRunning, Status: types.ProcessRunning, CreatedAt: found.CreatedAt, UpdatedAt: found.UpdatedAt, LastStartedAt: found.LastStartedAt,
	}
	if diff := cmp.Diff([]types.Process{want, want, want, want}, slices.Concat(list, everyones.Processes, []types.Process{started.Process, found})); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
	if len(started.Notices) != 1 || !strings.HasPrefix(started.Notices[0], "name has 81 characters and was cut") {
		t.Errorf("notices %q", started.Notices)
	}
	for signal, name := range map[string]string{"": "SIGTERM", "TERM": "SIGTERM", "INT": "SIGINT", "HUP": "SIGHUP", "KILL": "SIGKILL"} {
		stopped, err := c.StopProcess(ctx, "agent-7", start("").ID, signal)
		if err != nil || stopped.PID != nil || *stopped.Signal != name || stopped.Status != types.ProcessStopped {
			t.Errorf("%q: %+v %v", signal, stopped, err)
		}
	}
	all, allErr := c.StopProcesses(ctx, "agent-7")
	removeErr := c.RemoveProcess(ctx, "agent-7", want.ID)
	left, leftErr := c.Processes(ctx, "agent-7")
	if err := errors.Join(allErr, removeErr, leftErr); err != nil || len(all) != 1 || all[0].ID != want.ID || len(left) != 5 {
		t.Errorf("stopped %d, left %d: %v", len(all), len(left), err)
	}
	var failure *client.Error
	_, signalErr := c.StopProcess(ctx, "agent-7", left[0].ID, "SEGV")
	if !errors.As(signalErr, &failure) || failure.Kind != types.Invalid {
		t.Error(signalErr)
	}
	for _, id := range []string{want.ID, "p-other", "stop-all", "..", "a/../../b", ""} {
		if err := c.RemoveProcess(ctx, "agent-7", id); !errors.As(err, &failure) {
			t.Errorf("removed %q: %v", id, err)
		}
	}
}

func TestProcessLog(t *testing.T) {
	l := newLab(t, nil)
	c, p := l.dial(t), l.Start(process.Intent{Command: "x"})
	l.Print(p, strings.Repeat("\xff\n", 200))
	for q, want := range map[client.LogQuery]int{{}: 200, {Lines: 7}: 14, {Lines: 7, Bytes: 9}: 9} {
		log, err := c.ProcessLog(t.Context(), "agent-7", p.ID, q)
		if err != nil {
			t.Fatal(err)
		}
		data, err := client.Decode(log.Data, log.Encoding)
		if !strings.HasSuffix(strings.Repeat("\xff\n", 200), string(data)) || len(data) != want || err != nil || log.Truncated != (q.Bytes > 0) {
			t.Errorf("%+v: %q %+v %v", q, data, log, err)
		}
	}
	l.Print(p, "last\n")
	if log, err := c.ProcessLog(t.Context(), "agent-7", p.ID, client.LogQuery{First: true, Lines: 201}); err != nil || strings.Contains(log.Data, "last") || log.Truncated {
		t.Errorf("the first lines: %+v, %v", log, err)
	}
	var failure *client.Error
	if _, err := c.ProcessLog(t.Context(), "agent-7", p.ID, client.LogQuery{Lines: -1}); !errors.As(err, &failure) || failure.Kind != types.Invalid {
		t.Errorf("%#v", err)
	}
}

// followed is what a sequence has, and its last error.
func followed(ctx context.Context, c *client.Client, id string, each func(types.ProcessLogEvent)) (seen []string, end error) {
	for event, err := range c.FollowProcessLog(ctx, "agent-7", id, client.LogQuery{Lines: 1}) {
		switch {
		case err != nil:
			end = err
			continue
		case event.ProcessLogEnd != nil:
			seen = append(seen, "end "+string(event.Status))
		case event.Notice != "":
			seen = append(seen, "notice "+event.Notice)
		default:
			seen = append(seen, event.Data)
		}
		each(event)
	}
	return seen, end
}

func TestFollowProcessLog(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(*lab, process.Record)
		seen []string
		want error
	}{
		{"the process ends", func(l *lab, p process.Record) { l.End(p, process.Exit{Code: 3}) }, []string{"a", "b", "end exited"}, nil},
		{"the service stops", func(l *lab, _ process.Record) { close(l.stopping) }, []string{"a", "b"}, client.ErrStopped},
	} {
		l := newLab(t, nil)
		p := l.Start(process.Intent{Command: "x"})
		l.Print(p, "a")
		seen, end := followed(t.Context(), l.dial(t), p.ID, func(event types.ProcessLogEvent) {
			switch event.Data {
			case "a":
				l.Print(p, "b")
			case "b":
				tt.end(l, p)
			}
		})
		if diff := cmp.Diff(tt.seen, seen); diff != "" {
			t.Errorf("%s: want (-), seen (+):\n%s", tt.name, diff)
		}
		if !errors.Is(end, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, end, tt.want)
		}
	}
}

// A follower of a log that was cut is told so.
func TestFollowedLogIsCut(t *testing.T) {
	l := newLab(t, nil)
	p := l.Start(process.Intent{Command: "x"})
	l.Print(p, "aaaa")
	seen, end := followed(t.Context(), l.dial(t), p.ID, func(event types.ProcessLogEvent) {
		switch {
		case event.Data == "aaaa":
			if err := os.Truncate(p.LogPath, 1); err != nil {
				t.Error(err)
			}
		case event.Notice != "":
			l.End(p, process.Exit{})
		}
	})
	if want := []string{"aaaa", "notice the log was cut from 4 to 1 bytes; what was written meanwhile may be missing", "end exited"}; !cmp.Equal(seen, want) || end != nil {
		t.Errorf("%q %v", seen, end)
	}
}

// A caller that has gone is sent nothing more.
func TestFollowingALogIsLeft(t *testing.T) {
	l := newLab(t, nil)
	c, p := l.dial(t), l.Start(process.Intent{Command: "x"})
	l.Print(p, "a")
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	if seen, end := followed(ctx, c, p.ID, func(types.ProcessLogEvent) { cancel(why) }); !errors.Is(end, why) || len(seen) != 1 {
		t.Errorf("cancelled: %q %v", seen, end)
	}
	for event, err := range c.FollowProcessLog(t.Context(), "agent-7", p.ID, client.LogQuery{}) {
		if err != nil || event.Data != "a" {
			t.Errorf("left: %+v %v", event, err)
		}
		break
	}
	var failure *client.Error
	for _, err := range c.FollowProcessLog(t.Context(), "agent-7", "p-other", client.LogQuery{}) {
		if !errors.As(err, &failure) || failure.Kind != types.NotFound {
			t.Errorf("another's: %v", err)
		}
	}
}

// The lines come from a fake: lines after the end are ignored, and unknown ones are skipped.
func TestStreamsOfALog(t *testing.T) {
	for _, tt := range []struct{ name, body, seen, end string }{
		{"more after the end", "\n" + `{"data":"a"}` + "\n\n" + `{"end":true,"exitCode":0,"signal":null,"new":1}` + "\n" + `{"data":"b"}`, "a, end ", ""},
		{"the log fails", `{"data":"a"}` + "\n" + `{"notice":"cut"}` + "\n" + `{"error":{"kind":"engine","message":"no disk"}}` + "\n", "a, notice cut", "no disk"},
		{"cut in a line", `{"data":"a"}` + "\n" + `{"da`, "a", "connection to the service was lost"},
		{"no JSON", "hello\n", "", "cannot read the service's answer"},
	} {
		c := dialHandler(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(tt.body)) }))
		seen, end := followed(t.Context(), c, "p", func(types.ProcessLogEvent) {})
		if got := strings.Join(seen, ", "); got != tt.seen || (tt.end == "") != (end == nil) || !strings.Contains(fmt.Sprint(end), tt.end) {
			t.Errorf("%s: %q %v", tt.name, got, end)
		}
	}
}
