package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
	"github.com/daycare-run/sandbox/internal/process"
	"github.com/daycare-run/sandbox/internal/sandbox"
)

// keeper has one process and its log.
type keeper struct {
	record  process.Record
	removed bool
	follow  func(context.Context, func(sandbox.LogPart) error) error
}

func (k *keeper) StartProcess(_ context.Context, _ string, r sandbox.ProcessRequest) (process.Record, []string, error) {
	k.record = process.Record{
		ID: "p-k3v7q2m5x4ta", Intent: process.Intent{UserID: "alice", SandboxID: "agent-7", Name: r.Name, Command: r.Command, KeepAlive: r.KeepAlive},
		DesiredState: process.Running, Status: process.Running, PID: 4711, CreatedAt: at, UpdatedAt: at, LastStartedAt: at,
	}
	return k.record, []string{"name was cut"}, nil
}

func (k *keeper) Processes(string) ([]process.Record, error) {
	if k.removed {
		return nil, nil
	}
	return []process.Record{k.record}, nil
}

func (k *keeper) Process(_, id string) (process.Record, error) {
	if k.removed || id != k.record.ID {
		return process.Record{}, fmt.Errorf("process %q is not there: %w", id, cerrdefs.ErrNotFound)
	}
	return k.record, nil
}

func (k *keeper) StopProcess(_ context.Context, box, id string, signal syscall.Signal) (process.Record, error) {
	k.record.Status, k.record.DesiredState, k.record.PID, k.record.Signal = process.Stopped, process.Stopped, 0, fmt.Sprint(signal)
	return k.Process(box, id)
}

func (k *keeper) StopProcesses(context.Context, string) ([]process.Record, error) {
	return k.Processes("")
}

func (k *keeper) RemoveProcess(_ context.Context, box, id string) error {
	_, err := k.Process(box, id)
	k.removed = true
	return err
}

func (k *keeper) ReadProcessLog(_ context.Context, _, _ string, q sandbox.LogQuery) (sandbox.LogPart, error) {
	return sandbox.LogPart{Data: fmt.Appendf([]byte{0xff}, "%d %d", q.Lines, q.Bytes), Truncated: true, Notice: "cut"}, nil
}

func (k *keeper) FollowProcessLog(ctx context.Context, _, _ string, _ sandbox.LogQuery, each func(sandbox.LogPart) error) error {
	return k.follow(ctx, each)
}

// A process is started, seen, stopped and removed.
func TestProcesses(t *testing.T) {
	c, ctx := dial(t, &fakeService{ProcessCalls: &keeper{}}), t.Context()
	pid := 4711
	want := types.Process{
		ID: "p-k3v7q2m5x4ta", UserID: "alice", SandboxID: "agent-7", Name: "web", Command: "serve", PID: &pid, KeepAlive: true,
		Permissions: []string{}, AllowedDomains: []string{}, PackageManagers: []string{},
		DesiredState: types.ProcessRunning, Status: types.ProcessRunning, CreatedAt: at, UpdatedAt: at, LastStartedAt: at,
	}
	started, startErr := c.StartProcess(ctx, "agent-7", types.StartProcess{Name: "web", Command: "serve", KeepAlive: true})
	list, listErr := c.Processes(ctx, "agent-7")
	found, findErr := c.Process(ctx, "agent-7", want.ID)
	if err := errors.Join(startErr, listErr, findErr); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]types.Process{want, want, want}, append(list, started.Process, found)); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
	if !cmp.Equal(started.Notices, []string{"name was cut"}) {
		t.Errorf("notices %q", started.Notices)
	}
	for signal, name := range map[string]string{"": "terminated", "TERM": "terminated", "INT": "interrupt", "HUP": "hangup", "KILL": "killed"} {
		stopped, err := c.StopProcess(ctx, "agent-7", want.ID, signal)
		if err != nil || stopped.PID != nil || *stopped.Signal != name || stopped.Status != types.ProcessStopped {
			t.Errorf("%q: %+v %v", signal, stopped, err)
		}
	}
	all, allErr := c.StopProcesses(ctx, "agent-7")
	removeErr := c.RemoveProcess(ctx, "agent-7", want.ID)
	left, leftErr := c.Processes(ctx, "agent-7")
	if err := errors.Join(allErr, removeErr, leftErr); err != nil || len(all) != 1 || len(left) > 0 {
		t.Errorf("stopped %d, left %d: %v", len(all), len(left), err)
	}
	var failure *client.Error
	_, signalErr := c.StopProcess(ctx, "agent-7", want.ID, "SEGV")
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
	c := dial(t, &fakeService{ProcessCalls: &keeper{}})
	for q, want := range map[client.LogQuery]string{{}: "\xff0 0", {Lines: 7, Bytes: 9}: "\xff7 9"} {
		log, err := c.ProcessLog(t.Context(), "agent-7", "p", q)
		if err != nil {
			t.Fatal(err)
		}
		if data, err := client.Decode(log.Data, log.Encoding); string(data) != want || err != nil || !log.Truncated || log.Notice != "cut" {
			t.Errorf("%q %+v %v", data, log, err)
		}
	}
	var failure *client.Error
	if _, err := c.ProcessLog(t.Context(), "agent-7", "p", client.LogQuery{Lines: -1}); !errors.As(err, &failure) || failure.Kind != types.Invalid {
		t.Errorf("%#v", err)
	}
}

// followed is what a sequence has, and its last error.
func followed(ctx context.Context, c *client.Client, each func(types.ProcessLogEvent)) (seen []string, end error) {
	for event, err := range c.FollowProcessLog(ctx, "agent-7", "p-k3v7q2m5x4ta", client.LogQuery{Lines: 1}) {
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
	parts := func(ends error) func(context.Context, func(sandbox.LogPart) error) error {
		return func(_ context.Context, each func(sandbox.LogPart) error) error {
			return errors.Join(each(sandbox.LogPart{Data: []byte("a")}), each(sandbox.LogPart{Notice: "cut"}), ends)
		}
	}
	for _, tt := range []struct {
		name string
		ends error
		seen []string
		want string // of the error; empty for none
	}{
		{"the process ends", nil, []string{"a", "notice cut", "end exited"}, ""},
		{"the log fails", errors.New("no disk"), []string{"a", "notice cut"}, "no disk"},
		{"the service stops", cerrdefs.ErrUnavailable, []string{"a", "notice cut"}, client.ErrStopped.Error()},
	} {
		k := &keeper{record: process.Record{ID: "p-k3v7q2m5x4ta", Status: process.Exited}, follow: parts(tt.ends)}
		seen, end := followed(t.Context(), dial(t, &fakeService{ProcessCalls: k}), func(types.ProcessLogEvent) {})
		if diff := cmp.Diff(tt.seen, seen); diff != "" {
			t.Errorf("%s: want (-), seen (+):\n%s", tt.name, diff)
		}
		if tt.want == "" && end != nil || tt.want != "" && (end == nil || end.Error() != tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, end, tt.want)
		}
	}
}

// Who is not there any more is followed no further, on either side.
func TestFollowingALogIsLeft(t *testing.T) {
	over := make(chan error, 1)
	k := &keeper{record: process.Record{ID: "p-k3v7q2m5x4ta"}, follow: func(ctx context.Context, each func(sandbox.LogPart) error) error {
		err := each(sandbox.LogPart{Data: []byte("a")})
		<-ctx.Done()
		over <- errors.Join(err, ctx.Err())
		return ctx.Err()
	}}
	service := &fakeService{ProcessCalls: k, stopping: make(chan struct{})}
	c := dial(t, service)
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	if seen, end := followed(ctx, c, func(types.ProcessLogEvent) { cancel(why) }); !errors.Is(end, why) || len(seen) != 1 {
		t.Errorf("cancelled: %q %v", seen, end)
	}
	<-over
	for event, err := range c.FollowProcessLog(t.Context(), "agent-7", "p-k3v7q2m5x4ta", client.LogQuery{}) {
		if err != nil || event.Data != "a" {
			t.Errorf("left: %+v %v", event, err)
		}
		break
	}
	<-over
	var failure *client.Error
	for _, err := range c.FollowProcessLog(t.Context(), "agent-7", "p-other", client.LogQuery{}) {
		if !errors.As(err, &failure) || failure.Kind != types.NotFound {
			t.Errorf("another's: %v", err)
		}
	}
	if seen, end := followed(t.Context(), c, func(types.ProcessLogEvent) { close(service.stopping) }); !errors.Is(end, client.ErrStopped) || len(seen) != 1 {
		t.Errorf("the service stops: %q %v", seen, end)
	}
	<-over
}

// The lines are another's: what comes after the end is not looked at, and what is new is passed over.
func TestStreamsOfALog(t *testing.T) {
	for _, tt := range []struct{ name, body, seen, end string }{
		{"more after the end", "\n" + `{"data":"a"}` + "\n\n" + `{"end":true,"exitCode":0,"signal":null,"new":1}` + "\n" + `{"data":"b"}`, "a, end ", ""},
		{"cut in a line", `{"data":"a"}` + "\n" + `{"da`, "a", "connection to the service was lost"},
		{"no JSON", "hello\n", "", "cannot read the service's answer"},
	} {
		c := dialHandler(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(tt.body)) }))
		seen, end := followed(t.Context(), c, func(types.ProcessLogEvent) {})
		if got := strings.Join(seen, ", "); got != tt.seen || (tt.end == "") != (end == nil) || !strings.Contains(fmt.Sprint(end), tt.end) {
			t.Errorf("%s: %q %v", tt.name, got, end)
		}
	}
}
