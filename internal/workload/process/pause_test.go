package process

import (
	"testing"
	"time"
)

// The processes of a paused sandbox are paused, also by the next service, and none of them is started again until it is
// resumed. Another sandbox's go on, and those of another user whose sandbox had the name before.
func TestProcessesFollowTheirSandbox(t *testing.T) {
	h := newHost(t)
	paused := map[string]bool{}
	asked := func(c *Config) {
		c.Sandboxes = pausedIf(func(user, id string) bool { return user == "alice" && paused[id] })
	}
	s := h.serve(asked)
	runs := s.start(Intent{SandboxID: "one"})
	ends := s.start(Intent{SandboxID: "one", KeepAlive: true})
	other := s.start(Intent{SandboxID: "two"})
	bobs := s.start(Intent{UserID: "bob", SandboxID: "one"})
	follow := func() {
		t.Helper()
		if err := s.FollowPause(t.Context(), "one"); err != nil {
			t.Fatal(err)
		}
	}
	paused["one"] = true
	follow()
	if got := s.run.paused; got[bobs.ID] || got[other.ID] || !got[runs.ID] || !got[ends.ID] || !s.Paused("alice", runs.ID) || s.Paused("alice", other.ID) || s.Paused("bob", bobs.ID) || s.Paused("alice", "none") {
		t.Fatalf("paused: %v", got)
	}
	told := func() [4]any {
		return [4]any{s.get(runs.ID).State(), s.get(other.ID).State(), s.get(runs.ID).Status, s.Stats().ByStatus[Paused]}
	}
	if got := told(); got != [4]any{Paused, Running, Running, 2} {
		t.Errorf("told: %v", got)
	}
	says(t, s.exits(ends.ID, Exit{Code: 1}), "running/exited exit 1, waits 2000ms")
	s.pass(time.Hour)
	if len(h.of(ends.ID)) > 0 {
		t.Error("it was started although its sandbox is paused")
	}
	s.shutdown()
	s = h.serve(asked)
	s.pass(time.Hour)
	if got := s.run.paused; got[bobs.ID] || got[other.ID] || !got[runs.ID] || len(h.of(ends.ID)) > 0 {
		t.Errorf("the next service paused %v", got)
	}
	if got := told(); got != [4]any{Paused, Running, Running, 1} {
		t.Errorf("the next service tells %v", got)
	}
	paused["one"] = false
	follow()
	if got := told(); got != [4]any{Running, Running, Running, 0} {
		t.Errorf("resumed: %v", got)
	}
	s.pass(time.Hour)
	if s.run.paused[runs.ID] || len(h.of(ends.ID)) != 1 {
		t.Errorf("resumed: %v, %v", s.run.paused, h.of(ends.ID))
	}
}
