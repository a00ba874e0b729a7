package registry

import "testing"

// Nothing is kept of a sandbox that is deleted, whatever still runs in it.
func TestDeletedSandboxesLeaveNothing(t *testing.T) {
	r := open(t, t.TempDir())
	agent := box(t, "agent", "alice", "/home")
	put(t, r, agent, monday)
	end, paused, err := r.Begin(agent)
	if err != nil || paused {
		t.Fatalf("%t, %v", paused, err)
	}
	if !r.IsBusy(agent.User) {
		t.Error("nobody knows of the command")
	}
	if err := r.Delete(agent.ID); err != nil {
		t.Fatal(err)
	}
	end()
	if len(r.active)+len(r.commands) != 0 || r.IsBusy(agent.User) {
		t.Errorf("left: %v, %v", r.active, r.commands)
	}
}

func TestPausedIsKept(t *testing.T) {
	dir := t.TempDir()
	for _, want := range []bool{true, false} {
		r := open(t, dir)
		kept := box(t, "agent", "alice", "/home")
		put(t, r, kept, monday)
		if _, err := r.SetPaused(kept.ID, want); err != nil {
			t.Fatal(err)
		}
		if got, err := open(t, dir).Get(kept.ID); err != nil || got.Paused != want {
			t.Errorf("%+v, %v", got, err)
		}
	}
}

// Nothing of a paused sandbox goes on because its user is being removed.
func TestPausedWhileTheUserIsRemoved(t *testing.T) {
	r := open(t, t.TempDir())
	agent := box(t, "agent", "alice", "/home")
	put(t, r, agent, monday)
	if _, err := r.SetPaused(agent.ID, true); err != nil {
		t.Fatal(err)
	}
	if _, err := r.CloseUser(agent.User); err != nil {
		t.Fatal(err)
	}
	if !r.IsPaused("alice", "agent") {
		t.Error("it is not paused any more")
	}
}

func TestNothingIsKeptOfWhatIsNotRegistered(t *testing.T) {
	r := open(t, t.TempDir())
	if _, err := r.SetPaused(box(t, "agent", "alice", "/home").ID, true); err == nil || len(r.active) != 0 {
		t.Errorf("%v, %v", r.active, err)
	}
}

// A sandbox that is kept can be paused, but its user is not removed meanwhile.
func TestKeep(t *testing.T) {
	r := open(t, t.TempDir())
	agent := box(t, "agent", "alice", "/home")
	if _, err := r.Keep(agent); err == nil {
		t.Error("of none")
	}
	put(t, r, agent, monday)
	done, err := r.Keep(agent)
	if err != nil || !r.IsBusy(agent.User) {
		t.Fatalf("nobody waits: %v", err)
	}
	if _, err := r.SetPaused(agent.ID, true); err != nil {
		t.Error(err)
	}
	if done(); r.IsBusy(agent.User) {
		t.Error("somebody waits for ever")
	}
	if _, err := r.CloseUser(agent.User); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Keep(agent); err == nil {
		t.Error("while the user is being removed")
	}
}
