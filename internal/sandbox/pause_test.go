package sandbox

import (
	"strings"
	"testing"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/warm"
)

// A sandbox is not paused while a command runs; once it is, it stays so until something runs in it.
func TestPause(t *testing.T) {
	begun, end := make(chan struct{}), make(chan struct{})
	s := newService(t, &fakeExecutor{run: func(_ dockerexec.Spec, c warm.Command, _ session.Output) (warm.Result, error) {
		if c.Shell == "lasts" {
			close(begun)
			<-end
		}
		return warm.Result{}, nil
	}}, "")
	done := make(chan error)
	go func() {
		_, err := s.Exec(t.Context(), "agent", Request{Command: "lasts"}, nil)
		done <- err
	}()
	<-begun
	if _, err := s.Pause(t.Context(), "agent"); !cerrdefs.IsConflict(err) || !strings.Contains(err.Error(), "1 commands run") {
		t.Errorf("paused while a command runs: %v", err)
	}
	close(end)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for range 2 { // to do it again changes nothing
		if box, err := s.Pause(t.Context(), "agent"); err != nil || !box.Paused {
			t.Fatalf("%+v, %v", box, err)
		}
	}
	if !s.registry.IsPaused("alice", "agent") || s.registry.IsPaused("bob", "agent") || s.registry.IsPaused("alice", "other") || s.registry.IsPaused("alice", "A..B") {
		t.Error("who is paused is not known")
	}
	if _, err := s.Exec(t.Context(), "agent", Request{Command: "ls", OnlyIfRunning: true}, nil); !cerrdefs.IsConflict(err) {
		t.Errorf("only if it runs: %v", err)
	}
	// Registered again it stays so, also when it is changed.
	if box, _, err := s.Put("agent", Registration{UserID: "alice", Network: true}); err != nil || !box.Paused {
		t.Errorf("%+v, %v", box, err)
	}
	if _, err := s.Exec(t.Context(), "agent", Request{Command: "ls"}, nil); err != nil {
		t.Error(err)
	}
	if box, err := s.Get("agent"); err != nil || box.Paused {
		t.Errorf("it was not resumed: %+v, %v", box, err)
	}
	if box, err := s.Resume(t.Context(), "agent"); err != nil || box.Paused {
		t.Errorf("%+v, %v", box, err)
	}
	if err := s.Delete(t.Context(), "agent"); err != nil {
		t.Error(err)
	}
}

// What is left running in a sandbox that was deleted is none of the next one's of that id.
func TestADeletedSandboxKeepsNobodyFromPausing(t *testing.T) {
	begun, end := make(chan struct{}), make(chan struct{})
	s := newService(t, &fakeExecutor{run: func(dockerexec.Spec, warm.Command, session.Output) (warm.Result, error) {
		close(begun)
		<-end
		return warm.Result{}, nil
	}}, "")
	alices, err := s.Get("agent")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		_, err := s.Exec(t.Context(), "agent", Request{Command: "lasts"}, nil)
		done <- err
	}()
	<-begun
	if err := s.Delete(t.Context(), "agent"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.enter(t.Context(), alices, false); !cerrdefs.IsNotFound(err) {
		t.Errorf("a command begins in a sandbox that was deleted: %v", err)
	}
	if _, _, err := s.Put("agent", Registration{UserID: "bob"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.enter(t.Context(), alices, false); !cerrdefs.IsNotFound(err) {
		t.Errorf("a command begins in another's sandbox: %v", err)
	}
	if box, err := s.Pause(t.Context(), "agent"); err != nil || !box.Paused {
		t.Errorf("%+v, %v", box, err)
	}
	close(end)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := s.Delete(t.Context(), "agent"); err != nil {
		t.Error(err)
	}
}
