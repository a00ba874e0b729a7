package api

import (
	"context"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/calls"
	"github.com/daycare-run/sandbox/internal/events"
	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/sandbox"
	"github.com/daycare-run/sandbox/internal/sandboxtest"
	"github.com/daycare-run/sandbox/internal/warm"
)

// call starts a command of alice's that lasts as long as the test, and returns the id of its call when it has printed something.
func (l *lab) call(t *testing.T) uint64 {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	printed := make(chan struct{}, 1)
	go func() {
		defer close(done)
		_, _ = l.Exec(ctx, "agent-7", sandbox.Request{Command: "make"}, func(session.Stream, []byte) error { printed <- struct{}{}; return nil })
	}()
	t.Cleanup(func() { cancel(); <-done })
	<-printed
	stream, _ := l.Events()
	list, _, err := stream.Follow(events.Filter{Kinds: []events.Kind{events.Call}}, 0).Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return list[0].Detail.(calls.Event).ID
}

// called is a lab in which calls have ended.
func called(t *testing.T) *lab {
	hour := calls.NewHour()
	l := newLab(t, nil, func(o *sandboxtest.Options) {
		o.Config = func(cfg *sandbox.Config) { cfg.Hour, cfg.Events = hour, events.New(hour.Observe) }
	})
	for range 3 {
		if _, err := l.Exec(t.Context(), "agent-7", sandbox.Request{Command: "true"}, func(session.Stream, []byte) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// A caller who acts for bob only learns nothing of alice's calls.
func TestCallsOfOthers(t *testing.T) {
	l := newLab(t, sandboxtest.Started(func(ctx context.Context, _ warm.Command, out session.Output) (warm.Result, error) {
		err := out(session.Stdout, []byte("secret"))
		<-ctx.Done()
		return warm.Result{}, err
	}), func(o *sandboxtest.Options) {
		hour := calls.NewHour()
		o.Config = func(cfg *sandbox.Config) { cfg.Hour, cfg.Events = hour, events.New(hour.Observe) }
	})
	id := l.call(t)
	bob, err := ids.ParseUser("bob")
	if err != nil {
		t.Fatal(err)
	}
	caller := access.Caller{Name: "of-bob", Users: ids.OnlyUsers(bob)}
	his := l.Scoped(caller.Users, quota.Token{})
	if text, _, err := his.Output("agent-7", id); err == nil {
		t.Errorf("%s", text)
	}
	if text, _, err := l.Output("agent-7", id); err != nil || string(text) != "secret" {
		t.Errorf("%s, %v", text, err)
	}
	if text, _, err := l.Output("a", id); err == nil {
		t.Errorf("of another sandbox: %s", text)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, _ = l.Exec(ctx, "agent-7", sandbox.Request{Command: "true"}, func(session.Stream, []byte) error { return nil })
	if _, all := his.Calls(); all.Calls != 0 {
		t.Errorf("%+v", all)
	}
	if _, all := l.Calls(); all.Calls != 1 {
		t.Errorf("%+v", all)
	}
	if err := l.Delete(t.Context(), "agent-7"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := his.Put("agent-7", sandbox.Registration{UserID: "bob"}); err != nil {
		t.Fatal(err)
	}
	if text, _, err := his.Output("agent-7", id); err == nil {
		t.Errorf("of another user's sandbox that had this name: %s", text)
	}
}
