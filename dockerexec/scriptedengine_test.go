package dockerexec

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/agent/agenttest"
	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/wire"
	"github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/engine/enginetest"
	"github.com/daycare-run/sandbox/internal/quota"
)

// scriptedEngine is an engine in memory. Its containers have agents that run every command at once,
// as exit says, or, if they are persistent, answer every request, unless a test serves something
// else.
type scriptedEngine struct {
	*enginetest.Engine
	t      *testing.T
	dir    string
	gVisor bool      // the platform is gVisor
	exit   wire.Exit // of each command
}

func newScriptedEngine(t *testing.T) *scriptedEngine {
	s := &scriptedEngine{Engine: enginetest.New(t.Context()), t: t, dir: t.TempDir()}
	s.Serve(s.obey)
	return s
}

// obey is an agent whose commands end at once, or a persistent container's that answers.
func (s *scriptedEngine) obey(p enginetest.Program) {
	if p.Container.Labels[labelPersistent] != "" {
		agenttest.Requests(p, func(control.Request) *control.Answer { return &control.Answer{} })
		return
	}
	agenttest.Commands(p, agenttest.Exit(s.exit))
}

// executor is one on this engine.
func (s *scriptedEngine) executor() *Executor {
	e := New(s.Engine, Config{
		Instance: "test", DataDir: s.dir, Mounts: &preparerLog{},
		Platforms: present(func() (Platform, error) { return s.platform(), nil }), Log: zerolog.Nop(),
	})
	e.gate.Store(new(Gate(anything{}))) // for tests without Start
	e.begin()
	return e
}

func (s *scriptedEngine) platform() Platform {
	return Platform{Instance: "test", DataDir: s.dir, GVisor: s.gVisor}
}

func (s *scriptedEngine) spec(user string) Spec {
	return Spec{
		Platform: s.platform(), User: user, SpoolDir: s.dir,
		UID: uint32(os.Getuid()), GID: uint32(os.Getgid()),
	}
}

// persistentSpec is what the container of a user's persistent sandbox is made from.
func (s *scriptedEngine) persistentSpec(user string) Spec {
	spec := s.spec(user)
	spec.Persistent = "s1"
	return spec
}

// startPersistent starts such a container.
func (s *scriptedEngine) startPersistent(t *testing.T, e *Executor) ProcessContainer {
	t.Helper()
	made, err := e.StartPersistent(t.Context(), s.persistentSpec("alice"), quota.Token{})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// has puts a container there that an earlier service made.
func (s *scriptedEngine) has(user string) (id string) {
	return s.Add(s.found(user, specs.StateRunning))
}

// sleeps has a container that an earlier service froze.
func (s *scriptedEngine) sleeps(user string) (id string) { return s.Add(s.found(user, engine.Paused)) }

// found is a container that an earlier service made.
func (s *scriptedEngine) found(user string, state specs.ContainerState) engine.Container {
	spool, err := makeSpool(s.spec(user))
	if err != nil {
		s.t.Fatal(err)
	}
	return engine.Container{
		State: state, Labels: s.spec(user).labels(),
		Mounts: []specs.Mount{engine.BindMount(spool, wire.SpoolPath, false)},
	}
}

// add puts a container of another kind there.
func (s *scriptedEngine) add(spec Spec) (id string) {
	return s.Add(engine.Container{Labels: spec.labels()})
}

// pauses are what was paused and resumed, as "Pause alice".
func (s *scriptedEngine) pauses() (list []string) {
	for _, call := range s.Calls("Pause", "Resume") {
		list = append(list, call.Verb+" "+call.Container.Labels[labelUser])
	}
	return list
}

// takes has the verbs take so long before they do anything, whether or not the caller waits.
func (s *scriptedEngine) takes(before time.Duration, verbs ...string) {
	s.script(func(do func() error) error {
		time.Sleep(before)
		return do()
	}, verbs...)
}

// script has the verbs do what step does, and all others as they do.
func (s *scriptedEngine) script(step func(do func() error) error, verbs ...string) {
	s.Script(func(call enginetest.Call, do func() error) error {
		for _, verb := range verbs {
			if call.Verb == verb {
				return step(do)
			}
		}
		return do()
	})
}

// fails has the next lists of an instance's containers fail.
func (s *scriptedEngine) fails(lists int) {
	s.Script(func(call enginetest.Call, do func() error) error {
		if call.Verb == "List" && lists > 0 && strings.HasPrefix(call.Labels[0], labelInstance+"=") {
			lists--
			return errNotNow
		}
		return do()
	})
}

// spools are those that are left.
func (s *scriptedEngine) spools() string {
	left, _ := filepath.Glob(filepath.Join(s.dir, spoolPrefix+"*"))
	return strings.Join(left, " ")
}
