package persistent

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/libp2p/go-yamux/v5"

	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/agent/wire"
	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/registry"
	"github.com/daycare-run/sandbox/pathmap"
)

// put registers a persistent sandbox of a user's, as how changes it.
func (l *lab) put(id string, how func(*registry.Sandbox)) registry.Sandbox {
	l.t.Helper()
	user, err := ids.ParseUser("carol")
	if err != nil {
		l.t.Fatal(err)
	}
	box := registry.Sandbox{User: user, WorkingDir: policy.Home, Network: true, Persistent: true}
	if box.ID, err = ids.ParseSandbox(id); err != nil {
		l.t.Fatal(err)
	}
	if how != nil {
		how(&box)
	}
	made, _, err := l.planner.Sandboxes().Scoped(ids.Everyone(), alice).Put(box, time.Now().UTC())
	if err != nil {
		l.t.Fatal(err)
	}
	return made
}

func (l *lab) of(s *Sandboxes, box registry.Sandbox) *Sandbox {
	l.t.Helper()
	b, err := s.Of(box, alice)
	if err != nil {
		l.t.Fatal(err)
	}
	return b
}

// wakes has a call use the sandbox, which tells why it was started again.
func (l *lab) wakes(b *Sandbox) Ended {
	l.t.Helper()
	ended, _, err := b.wake(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	return ended
}

// answers answers calls with their command's end.
func answers(exit wire.Exit) func(*yamux.Stream, control.Request) {
	return func(s *yamux.Stream, r control.Request) {
		_ = wire.WriteMessage(s, wire.KindAnswer, control.Answer{PID: 7})
		if r.Do == control.Begin {
			_ = wire.WriteMessage(s, wire.KindExit, exit)
		}
	}
}

// A registered sandbox is made by its first call, from all that it holds, and is no client's.
func TestARegisteredSandbox(t *testing.T) {
	l := newLab(t)
	l.quotas = quota.New(quota.Limits{})
	s := l.open()
	box := l.put("agent", func(b *registry.Sandbox) { b.Domains = []string{"one.example"} })
	b := l.of(s, box)
	if len(l.made) != 0 || b.Warm() {
		t.Error("it has a container before it is used")
	}
	if ended := l.wakes(b); !ended.Cold || ended.Again != "" || !b.Warm() {
		t.Errorf("%+v", ended)
	}
	spec := l.made["c-"+b.ID()]
	if spec.User != "carol" || spec.Persistent != b.ID() || spec.Root || len(spec.Masks) == 0 || !strings.HasSuffix(spec.Process.Dir, "carol/processes") || len(spec.Egress.Domains) != 1 {
		t.Errorf("%+v", spec)
	}
	if ended := l.wakes(l.of(s, box)); ended.Cold || len(l.made) != 1 {
		t.Errorf("another call has another container: %+v", ended)
	}
	if _, err := s.Any(b.ID()); !cerrdefs.IsNotFound(err) || len(s.All())+len(s.List(alice)) != 0 {
		t.Errorf("it is a client's: %v", err)
	}
	other := l.put("other", nil)
	if l.of(s, other).ID() == b.ID() {
		t.Error("another sandbox is the same")
	}

	// The next service finds it. One that is deleted and registered again is another one.
	s.Shutdown()
	l.quotas = quota.New(quota.Limits{})
	s = l.open()
	if ended := l.wakes(l.of(s, box)); ended.Cold {
		t.Errorf("after a restart: %+v", ended)
	}
	if err := l.planner.Sandboxes().Delete(box.ID); err != nil {
		t.Fatal(err)
	}
	s.Registered("carol")
	eventually(t, "it goes with its registration", func() bool { return len(l.containerIDs()) == 0 })
	if again := l.of(s, l.put("agent", nil)); again.ID() == b.ID() {
		t.Error("it has the id of the one before")
	}
	eventually(t, "its place is free", func() bool { return l.quotas.Stats().InUse[quota.Containers] == 0 })
	if _, err := os.Stat(l.usersDir() + "/carol/home"); err != nil {
		t.Errorf("the home: %v", err)
	}
}

// containerIDs are the ids of the containers.
func (l *lab) containerIDs() (list []string) {
	all, _ := l.Persistent(context.Background())
	for _, c := range all {
		list = append(list, c.ID)
	}
	return list
}

// One that is not persistent for a moment has another container as soon as the one before is gone.
func TestARegisteredSandboxComesBack(t *testing.T) {
	l := newLab(t)
	s := l.open()
	box := l.put("agent", nil)
	l.wakes(l.of(s, box))
	removing, goOn := make(chan bool), make(chan bool)
	l.beforeRemoved = func(string) { removing <- true; <-goOn }
	l.put("agent", func(b *registry.Sandbox) { b.Persistent = false })
	s.Registered("carol")
	<-removing
	box = l.put("agent", nil)
	time.AfterFunc(10*time.Millisecond, func() { close(goOn) })
	if ended := l.wakes(l.of(s, box)); !ended.Cold || ended.Again != "" {
		t.Errorf("%+v", ended)
	}
}

// What is registered, which other sandboxes there are, and what the settings allow decide at each call, and without one.
func TestARegisteredSandboxFollows(t *testing.T) {
	l := newLab(t)
	s := l.open()
	b := l.of(s, l.put("agent", nil))
	l.wakes(b)
	container := "c-" + b.ID()
	l.put("agent", func(b *registry.Sandbox) { b.Domains = []string{"one.example"} })
	if l.wakes(b); len(l.reach[container].Domains) != 1 || len(l.removed) != 0 {
		t.Errorf("names: %v, removed %v", l.reach, l.removed)
	}
	l.put("agent", func(b *registry.Sandbox) { b.Presets = []string{"python"} })
	s.Registered("carol")
	eventually(t, "names are set without a call", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.reach[container].Domains) > 1
	})
	apps, err := pathmap.ParseContainer("/home/project")
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(){
		"it holds less":  func() { l.put("agent", func(b *registry.Sandbox) { b.WriteDirs = append(b.WriteDirs, policy.Home) }) },
		"an app appears": func() { l.put("app", func(b *registry.Sandbox) { b.WorkingDir, b.AppID = apps, "mine" }) },
	} {
		change()
		if ended := l.wakes(b); !ended.Cold || !strings.Contains(ended.Again, "holds other things") {
			t.Errorf("%s: %+v", name, ended)
		}
		l.mu.Lock()
		if len(l.removed) == 0 {
			t.Errorf("%s: the container before is there", name)
		}
		l.removed = nil
		l.mu.Unlock()
	}
}

// A container that was given up is removed, although nothing can be recorded, and by the next service if this one is killed.
func TestARegisteredSandboxIsGivenUp(t *testing.T) {
	l := newLab(t)
	s := l.open()
	b := l.of(s, l.put("agent", nil))
	l.wakes(b)
	aside := l.records() + ".aside"
	if err := errors.Join(os.Rename(l.records(), aside), os.WriteFile(l.records(), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	l.put("agent", func(b *registry.Sandbox) { b.WriteDirs = append(b.WriteDirs, policy.Home) })
	_, _, _ = b.wake(t.Context())
	if left := l.containerIDs(); len(left) != 0 {
		t.Errorf("on a full disk, %v is left", left)
	}
	if err := errors.Join(os.Remove(l.records()), os.Rename(aside, l.records())); err != nil {
		t.Fatal(err)
	}
	l.wakes(b)
	l.put("agent", nil)
	l.refuses = map[string]error{"c-" + b.ID(): errors.New("killed before that")}
	if _, _, err := b.wake(t.Context()); err == nil {
		t.Error("it goes on")
	}
	s.Shutdown()
	l.refuses = nil
	s = l.open()
	eventually(t, "the next service removes it", func() bool { return len(l.containerIDs()) == 0 })
	if ended := l.wakes(l.of(s, l.put("agent", nil))); !ended.Cold {
		t.Errorf("%+v", ended)
	}
}

// One whose container is lost goes on from its home, and takes no place meanwhile.
func TestARegisteredSandboxIsLost(t *testing.T) {
	l := newLab(t)
	l.quotas = quota.New(quota.Limits{})
	s := l.open()
	b := l.of(s, l.put("agent", nil))
	l.wakes(b)
	l.lose("c-" + b.ID())
	s.recount()
	eventually(t, "its place is free", func() bool { return l.quotas.Stats().InUse[quota.Containers] == 0 })
	if ended := l.wakes(b); !ended.Cold || !strings.Contains(ended.Again, "was lost") {
		t.Errorf("%+v", ended)
	}
	l.lose("c-" + b.ID())
	l.refuse = errors.New("no engine")
	if _, _, err := b.wake(t.Context()); err == nil || l.quotas.Stats().InUse[quota.Containers] != 0 {
		t.Errorf("one that does not start: %v, in use: %v", err, l.quotas.Stats().InUse)
	}
}

// One in which nothing runs is paused, but not under a call.
func TestAnIdleSandboxIsFrozen(t *testing.T) {
	l := newLab(t)
	s := l.open()
	s.SetFreezeAfter(time.Nanosecond)
	b := l.of(s, l.put("agent", nil))
	l.wakes(b)
	idle := false
	l.answer = func(s *yamux.Stream, r control.Request) {
		_ = wire.WriteMessage(s, wire.KindAnswer, control.Answer{Idle: idle})
	}
	frozen := func() bool { return b.Info().State == StatePaused }
	b.entry.freeze()
	if idle = true; frozen() {
		t.Error("it is frozen although something runs")
	}
	leave := b.entry.enter()
	b.entry.freeze()
	if frozen() {
		t.Error("it is frozen under a call")
	}
	leave()
	b.entry.freeze()
	if !frozen() {
		t.Error("it is not frozen")
	}
	if ended := l.wakes(b); !ended.Thawed || frozen() {
		t.Errorf("%+v", ended)
	}
}

// A call's command is told as that of a session.
func TestACallInASandbox(t *testing.T) {
	l := newLab(t)
	s := l.open()
	b := l.of(s, l.put("agent", nil))
	call := Call{Command: session.Command{Command: launch.Command{Shell: "true"}, Timeout: time.Minute, Grace: time.Second}}
	l.answer = answers(wire.Exit{Code: 3})
	if got, err := b.Run(t.Context(), call, nil); err != nil || got.ExitCode != 3 || got.TimedOut || !got.Cold {
		t.Errorf("%+v, %v", got, err)
	}
	l.answer = func(s *yamux.Stream, _ control.Request) {
		_ = wire.WriteMessage(s, wire.KindAnswer, control.Answer{Fault: wire.FaultCommand, Code: 127, Message: "gone: command not found"})
	}
	if got, err := b.Run(t.Context(), call, nil); err != nil || got.ExitCode != 127 || got.CommandFault != "gone: command not found" {
		t.Errorf("%+v, %v", got, err)
	}

	// One that has ended in time has not timed out, however slow its reader is; one that has not is ended.
	for name, late := range map[string]bool{"in time": false, "late": true} {
		asked := make(chan struct{})
		l.answer = func(s *yamux.Stream, r control.Request) {
			answer := control.Answer{PID: 7}
			if r.Do == control.End {
				if !late {
					answer = control.Answer{Fault: control.FaultMissing}
				}
				_ = wire.WriteMessage(s, wire.KindAnswer, answer)
				close(asked)
				return
			}
			_ = wire.WriteMessage(s, wire.KindAnswer, answer)
			_, _ = s.Write(append(append([]byte{}, header(wire.KindStdout, 1)...), 'x'))
			<-asked
			_ = wire.WriteMessage(s, wire.KindExit, wire.Exit{})
		}
		call.Timeout = time.Millisecond
		got, err := b.Run(t.Context(), call, func(session.Stream, []byte) error { <-asked; return nil })
		if err != nil || got.TimedOut != late {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}

	// The caller leaves, or its container is lost.
	call.Timeout = time.Minute
	ctx, cancel := context.WithCancel(t.Context())
	l.answer = func(s *yamux.Stream, r control.Request) {
		_ = wire.WriteMessage(s, wire.KindAnswer, control.Answer{PID: 7})
		if r.Do == control.Begin {
			cancel()
			_ = wire.WriteMessage(s, wire.KindExit, wire.Exit{Signal: 15})
		}
	}
	if _, err := b.Run(ctx, call, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	l.answer = func(s *yamux.Stream, _ control.Request) {
		_ = wire.WriteMessage(s, wire.KindAnswer, control.Answer{PID: 7})
		l.lose("c-" + b.ID())
	}
	if _, err := b.Run(t.Context(), call, nil); !cerrdefs.IsUnavailable(err) || !strings.Contains(err.Error(), `"agent" lost its container`) {
		t.Errorf("%v", err)
	}
}

func header(kind wire.Kind, length int) []byte {
	h := wire.Header(kind, length)
	return h[:]
}

// In a cluster only the host that holds the user has it, and it moves with the user.
func TestARegisteredSandboxMoves(t *testing.T) {
	c := newHosts(t)
	one, two := c.start("one", newLab(t).fakeEngine), c.start("two", newLab(t).fakeEngine)
	box := c.put("agent", nil)
	if _, err := two.s.Of(box, alice); !cerrdefs.IsUnavailable(err) {
		t.Errorf("nobody holds the user: %v", err)
	}
	one.hold("carol")
	b := c.of(one.s, box)
	c.wakes(b)
	if !one.s.Busy("carol") || two.s.Busy("carol") {
		t.Error("who is busy is not the one that has it")
	}
	two.hold("carol")
	if one.engine.PersistentRuns("c-" + b.ID()) {
		t.Error("two hosts may have it")
	}
	if ended := c.wakes(c.of(two.s, box)); !ended.Cold || !strings.Contains(ended.Again, `host "one"`) {
		t.Errorf("%+v", ended)
	}
	if err := c.planner.Sandboxes().Delete(box.ID); err != nil {
		t.Fatal(err)
	}
	if due := one.s.Due(); len(due) != 0 {
		t.Errorf("another host is to act: %v", due)
	}
	two.s.Registered("carol")
	eventually(t, "its holder removes it", func() bool { return !two.engine.PersistentRuns("c-" + b.ID()) })
	two.s.Leave(func(do func() error) { _ = do() }, func(id string) error {
		t.Errorf("the seat of %q is given up with it", id)
		return nil
	})
}
