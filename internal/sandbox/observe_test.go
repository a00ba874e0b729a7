package sandbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/calls"
	"github.com/daycare-run/sandbox/internal/events"
	"github.com/daycare-run/sandbox/internal/warm"
)

func TestExecOutcomesAreClassified(t *testing.T) {
	gone, leave := context.WithCancel(t.Context())
	leave()
	for _, tt := range []struct {
		name   string
		ctx    context.Context
		id     string
		result warm.Result
		err    error
		want   string
	}{
		{"exit 0", t.Context(), "agent", warm.Result{InContainer: true, Cold: true}, nil, calls.OK},
		{"exit 1", t.Context(), "agent", warm.Result{Result: session.Result{ExitCode: 1}, InContainer: true}, nil, calls.Failed},
		{"a signal", t.Context(), "agent", warm.Result{Result: session.Result{Signal: syscall.SIGKILL}, InContainer: true}, nil, calls.Failed},
		{"out of memory", t.Context(), "agent", warm.Result{Result: session.Result{Signal: syscall.SIGKILL}, InContainer: true, Exhausted: &dockerexec.Exhausted{Limit: dockerexec.LimitMemory, Value: 1 << 30}}, nil, calls.Failed},
		{"time is up", t.Context(), "agent", warm.Result{Result: session.Result{TimedOut: true, Signal: syscall.SIGTERM}, InContainer: true}, nil, calls.TimedOut},
		{"no such sandbox", t.Context(), "nobody", warm.Result{}, nil, calls.Refused},
		{"no such directory", t.Context(), "agent", warm.Result{Result: session.Result{CwdFault: "is not there"}, InContainer: true}, nil, calls.Refused},
		{"too many", t.Context(), "agent", warm.Result{}, cerrdefs.ErrResourceExhausted, calls.Refused},
		{"the container is lost", t.Context(), "agent", warm.Result{InContainer: true}, fmt.Errorf("%w: why", session.ErrBroken), calls.Lost},
		{"the caller is gone", gone, "agent", warm.Result{InContainer: true}, errors.New("hung up"), calls.Canceled},
		{"the service stops", t.Context(), "agent", warm.Result{InContainer: true}, cerrdefs.ErrUnavailable, calls.Canceled},
		{"the engine fails", t.Context(), "agent", warm.Result{}, errors.New("no space"), calls.Error},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.result.Waited, tt.result.Timing.Start, tt.result.Timing.Run = 1, 2, 3
			s := newService(t, &fakeExecutor{run: func(dockerexec.Spec, warm.Command, session.Output) (warm.Result, error) {
				return tt.result, tt.err
			}}, "")
			var told []calls.Event
			cfg := *s.cfg()
			cfg.Events = events.New(func(e *events.Event) { told = append(told, e.Detail.(calls.Event)) })
			s.Use(cfg)
			_, _ = s.Exec(tt.ctx, tt.id, Request{Command: "ls"}, nil)
			if len(told) != 2 || told[0].What != calls.Began || told[1].What != calls.Ended || told[0].ID != told[1].ID || told[1].Command != "ls" {
				t.Fatalf("%+v", told)
			}
			e := told[1]
			if reason := map[bool]string{true: "out of memory: this container may use 1Gi (limits.memory), its tmpfs included"}[tt.result.Exhausted != nil]; e.Reason != reason {
				t.Errorf("it says %q, not %q", e.Reason, reason)
			}
			if e.Outcome != tt.want || e.InContainer != tt.result.InContainer || e.Cold != tt.result.Cold || e.Total <= 0 {
				t.Errorf("%+v", e)
			}
			if ran := tt.id == "agent"; (e.Decide > 0) != ran || (e.Container == 1 && e.Start == 2 && e.Run == 3) != ran {
				t.Errorf("its phases took %+v", e)
			}
		})
	}
}

// Settings change while calls are made; each call sees those before or those after.
func TestUseWhileCallsAreMade(t *testing.T) {
	s := newService(t, &fakeExecutor{run: func(_ dockerexec.Spec, c warm.Command, _ session.Output) (warm.Result, error) {
		if c.Timeout/c.Grace != 15 {
			t.Errorf("timeout %v with grace %v", c.Timeout, c.Grace)
		}
		return warm.Result{}, nil
	}}, "")
	cfg := *s.cfg()
	cfg.Quotas = nil
	s.Use(cfg)
	var calls sync.WaitGroup
	for range 4 {
		calls.Go(func() {
			for range 200 {
				if _, err := s.Exec(t.Context(), "agent", Request{Command: "ls"}, nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range 200 {
		cfg.DefaultTimeout, cfg.KillGrace = time.Duration(30*(i%3+1))*time.Second, time.Duration(2*(i%3+1))*time.Second
		s.Use(cfg)
	}
	calls.Wait()
	minute := time.Minute
	cfg.MaxTimeout = 30 * time.Second
	s.Use(cfg)
	if _, err := s.Exec(t.Context(), "agent", Request{Command: "ls", Timeout: &minute}, nil); !cerrdefs.IsInvalidArgument(err) {
		t.Errorf("beyond the timeout of now: %v", err)
	}
}

func TestHealthTellsOfSettings(t *testing.T) {
	s := newService(t, nil, "")
	at := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	s.SetLoaded(Loaded{At: at, Pending: []string{"listen"}})
	if h := s.Health(t.Context()); !h.Settings.At.Equal(at) || len(h.Settings.Pending) != 1 || len(h.Warnings) != 0 {
		t.Errorf("%+v", h)
	}
	for _, tt := range []struct {
		loaded Loaded
		want   string
	}{
		{Loaded{At: at, Refused: true}, "the settings were read again and cannot be used"},
		{Loaded{At: at, TokensRefused: true}, "the tokens were read again and cannot be used"},
	} {
		s.SetLoaded(tt.loaded)
		if h := s.Health(t.Context()); len(h.Warnings) != 1 || !strings.Contains(h.Warnings[0], tt.want) {
			t.Errorf("%+v", h)
		}
	}
}
