package sandbox

import (
	"context"
	"errors"
	"strings"
	"testing"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/warm"
	"github.com/daycare-run/sandbox/internal/workload/persistent"
)

// A user goes with all sandboxes, whatever runs in them ends first, and another user's stay.
func TestAUserIsRemoved(t *testing.T) {
	running, ended := make(chan struct{}), make(chan struct{})
	executor := &fakeExecutor{runIn: func(ctx context.Context, _ dockerexec.Spec, c warm.Command) (warm.Result, error) {
		c.Started()
		close(running)
		<-ended
		return warm.Result{}, errors.New("its container is gone")
	}}
	s := newService(t, executor, "")
	alice := user(t, "alice")
	register(t, s, "second", "alice")
	register(t, s, "bobs", "bob")
	over := make(chan error, 1)
	go func() {
		_, err := s.Exec(t.Context(), "agent", Request{Command: "sleep 9"}, nil)
		over <- err
	}()
	select {
	case <-running:
	case err := <-over:
		t.Fatal(err)
	}
	executor.leave = func(_ context.Context, name string) error {
		if name != "alice" {
			t.Errorf("the containers of %s are removed", name)
		}
		_, exec := s.Exec(t.Context(), "second", Request{Command: "true"}, nil)
		_, _, put := s.Put("third", Registration{UserID: "alice"})
		_, remove := s.RemoveUser(t.Context(), alice, false)
		for what, err := range map[string]error{"exec": exec, "register": put, "remove": remove} {
			if !cerrdefs.IsConflict(err) || !strings.Contains(err.Error(), "is being removed") {
				t.Errorf("%s meanwhile: %v", what, err)
			}
		}
		executor.leave = nil
		close(ended)
		return nil
	}
	got, err := s.RemoveUser(t.Context(), alice, false)
	if err != nil || got != (RemovedUser{Sandboxes: 2}) {
		t.Errorf("%+v, %v", got, err)
	}
	if err := <-over; err == nil {
		t.Error("the command has succeeded")
	}
	if left := s.List(); len(left) != 1 || left[0].ID.String() != "bobs" || !hasFolder(t, s, "alice") {
		t.Errorf("left: %v", left)
	}
	if got, err = s.RemoveUser(t.Context(), alice, true); err != nil || got != (RemovedUser{Home: true}) || hasFolder(t, s, "alice") {
		t.Errorf("with the home: %+v, %v", got, err)
	}
	if _, err = s.RemoveUser(t.Context(), alice, true); !cerrdefs.IsNotFound(err) {
		t.Errorf("what is no more: %v", err)
	}
	register(t, s, "again", "alice")
}

// A removal that fails keeps the sandboxes, so that all can be seen and ended, and can be repeated.
func TestARemovalThatFailsIsRepeated(t *testing.T) {
	executor := &fakeExecutor{leave: func(context.Context, string) error { return errors.New("Docker is down") }}
	s := newService(t, executor, "")
	if _, err := s.RemoveUser(t.Context(), user(t, "alice"), true); err == nil || !strings.Contains(err.Error(), "remove the user again: Docker is down") {
		t.Errorf("%v", err)
	}
	if _, err := s.Get("agent"); err != nil {
		t.Errorf("its sandbox: %v", err)
	}
	bobs := s.Scoped(ids.OnlyUsers(user(t, "bob")), quota.Token{})
	if _, err := bobs.RemoveUser(t.Context(), user(t, "alice"), true); !cerrdefs.IsNotFound(err) {
		t.Errorf("another's: %v", err)
	}
	executor.leave = nil
	if got, err := s.RemoveUser(t.Context(), user(t, "alice"), true); err != nil || got.Sandboxes != 1 {
		t.Errorf("again: %+v, %v", got, err)
	}
}

// A command whose sandbox is deleted meanwhile is waited for, too: it could make what is removed anew.
func TestARemovalWaitsForCommandsOfDeletedSandboxes(t *testing.T) {
	running, ended := make(chan struct{}), make(chan struct{})
	executor := &fakeExecutor{runIn: func(context.Context, dockerexec.Spec, warm.Command) (warm.Result, error) {
		close(running)
		<-ended
		return warm.Result{}, errors.New("its container is gone")
	}}
	s := newService(t, executor, "")
	over := make(chan struct{})
	go func() {
		_, _ = s.Exec(t.Context(), "agent", Request{Command: "sleep 9"}, nil)
		close(over)
	}()
	<-running
	if err := s.Delete(t.Context(), "agent"); err != nil {
		t.Fatal(err)
	}
	looks := 0
	executor.leave = func(context.Context, string) error {
		if looks++; looks == 3 {
			close(ended)
			<-over
		}
		return nil
	}
	if _, err := s.RemoveUser(t.Context(), user(t, "alice"), true); err != nil || looks < 3 {
		t.Errorf("after %d looks: %v", looks, err)
	}
	if looks < 3 {
		close(ended)
		<-over
	}
}

// A container that is to be warm makes no home for a user who is gone when its turn comes.
func TestAWarmContainerOfARemovedUser(t *testing.T) {
	var plan func(context.Context, func(dockerexec.Spec)) error
	executor := &fakeExecutor{later: func(p func(context.Context, func(dockerexec.Spec)) error) { plan = p }}
	s := newService(t, executor, "")
	if _, _, err := s.Put("warm", Registration{UserID: "carol", Warm: []string{}}); err != nil {
		t.Fatal(err)
	}
	made := func(dockerexec.Spec) {
		if !s.registry.IsBusy(user(t, "carol")) {
			t.Error("whoever removes the user does not wait for it")
		}
	}
	if err := plan(t.Context(), made); err != nil {
		t.Error(err)
	}
	if _, err := s.RemoveUser(t.Context(), user(t, "carol"), true); err != nil {
		t.Fatal(err)
	}
	if err := plan(t.Context(), made); !cerrdefs.IsNotFound(err) || hasFolder(t, s, "carol") {
		t.Errorf("it is planned: %v", err)
	}
}

func hasFolder(t *testing.T, s *Service, user string) bool {
	t.Helper()
	has, err := s.planner.Files().HasFolder(user)
	if err != nil {
		t.Fatal(err)
	}
	return has
}

func register(t *testing.T, s *Service, id, user string) {
	t.Helper()
	if _, _, err := s.Put(id, Registration{UserID: user}); err != nil {
		t.Fatal(err)
	}
}

// noRecords are shared records of which there are none.
type noRecords struct{ persistent.Shared }

func (noRecords) Seat(string) (host string, epoch int64) { return "h1", 1 }

// Who may not remove a user cannot have the user's seat given up.
func TestTheSeatOfAnothersUserStays(t *testing.T) {
	s := newService(t, nil, "")
	boxes, err := persistent.Open(persistent.Config{Shared: noRecords{}, Planner: s.planner, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	s.persistent = boxes
	bob := user(t, "bob")
	for _, tt := range []struct {
		caller *Service
		given  int
	}{{s.Scoped(ids.OnlyUsers(user(t, "alice")), quota.Token{}), 0}, {s, 1}} {
		if _, err := tt.caller.RemoveUser(t.Context(), bob, true); !cerrdefs.IsNotFound(err) {
			t.Errorf("%v", err)
		}
		given := 0
		boxes.Leave(func(func() error) { given++ }, nil)
		if given != tt.given {
			t.Errorf("%d seats are given up, not %d", given, tt.given)
		}
	}
}
