package warm

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/agent/agenttest"
	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/agent/wire"
	"github.com/daycare-run/sandbox/internal/cgroup"
	"github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/engine/enginetest"
	"github.com/daycare-run/sandbox/internal/events"
	"github.com/daycare-run/sandbox/internal/quota"
)

// lab is an engine in memory, on which services run one after the other. Its containers have agents
// that run every command at once, as exit says, unless a test serves something else.
type lab struct {
	*enginetest.Engine
	t      testing.TB
	dir    string
	gVisor bool      // the platform is gVisor
	exit   wire.Exit // of each command
	before int       // what the engine had done before the test began

	// What services are made with.
	idle    Idle
	ahead   bool
	quotas  *quota.Ledger
	events  *events.Stream
	cgroups *cgroup.Host
	mounts  mounts
}

func newLab(t testing.TB) *lab {
	l := &lab{
		Engine: enginetest.New(t.Context()), t: t, dir: t.TempDir(),
		idle: Idle{RemoveAfter: time.Hour},
	}
	l.Serve(l.obey)
	return l
}

// obey is an agent whose commands end at once.
func (l *lab) obey(p enginetest.Program) { agenttest.Commands(p, agenttest.Exit(l.exit)) }

// hears reports whether the service says Hello to a program.
func hears(p enginetest.Program) bool {
	return wire.ReadMessage(p.Conn, wire.KindHello, &wire.Hello{}) == nil
}

// refuses is what comes from a program that Docker does not start: why, and from Docker.
func refuses(p enginetest.Program, why string) {
	if hears(p) {
		_, _ = p.Write([]byte(why + "\r\n"))
	}
}

// breaks is an agent whose connection breaks when a command has come and has printed something.
// before is called with its container.
func breaks(before func(id string)) func(enginetest.Program) {
	return func(p enginetest.Program) {
		agenttest.Commands(p, func(stream net.Conn, _ wire.Start) bool {
			header := wire.Header(wire.KindStdout, len("so far"))
			_, _ = stream.Write(append(header[:], "so far"...))
			time.Sleep(time.Millisecond) // which passes once it is read
			before(p.Container.ID)
			return false
		})
	}
}

// service is one on the lab's engine.
type service struct {
	*dockerexec.Executor
	*Runner
}

// service returns one that has not started.
func (l *lab) service() service {
	e := dockerexec.New(l.Engine, dockerexec.Config{
		Instance: "test", DataDir: l.dir, Ahead: l.ahead, Mounts: &l.mounts, Platforms: l,
		Quotas: l.quotas, Events: l.events, Cgroups: l.cgroups, Log: zerolog.Nop(),
	})
	return service{e, New(e, Config{
		Idle: l.idle, Quotas: l.quotas, Events: l.events,
	})}
}

// serve starts a service.
func (l *lab) serve() service {
	s := l.service()
	s.Executor.Start(l.t.Context(), l)
	s.Runner.Start()
	return s
}

// freezing starts a service that freezes after half a minute.
func (l *lab) freezing() service {
	l.idle.FreezeAfter = 30 * time.Second
	return l.serve()
}

func (s service) stop() {
	s.EndCommands()
	s.Shutdown()
}

// May implements dockerexec.Gate.
func (l *lab) May(string) error { return nil }

// Wanted implements dockerexec.Gate.
func (l *lab) Wanted(dockerexec.Spec) dockerexec.Wanted { return dockerexec.Wanted{Running: true} }

// Current returns the platform of all containers.
func (l *lab) Current(context.Context) (dockerexec.Platform, error) { return l.platform(), nil }

// Forget does nothing: the platform stays.
func (l *lab) Forget() {}

func (l *lab) platform() dockerexec.Platform {
	return dockerexec.Platform{Instance: "test", DataDir: l.dir, GVisor: l.gVisor}
}

func (l *lab) spec(user string) dockerexec.Spec {
	return dockerexec.Spec{
		Platform: l.platform(), User: user, SpoolDir: l.dir,
		UID: uint32(os.Getuid()), GID: uint32(os.Getgid()),
	}
}

// mounts prepare nothing; before, if it is set, is called for each container.
type mounts struct {
	mu     sync.Mutex
	before func()
}

func (m *mounts) Prepare(dockerexec.Spec) (dockerexec.Prepared, error) {
	m.mu.Lock()
	before := m.before
	m.mu.Unlock()
	if before != nil {
		before()
	}
	return dockerexec.Prepared{}, nil
}

func (m *mounts) Release(dockerexec.Spec) {}

func (m *mounts) Forget(dockerexec.Spec) {}

func (m *mounts) Follow(context.Context, dockerexec.Spec, []string, func(dockerexec.News)) {}

func (m *mounts) Rebind(dockerexec.Spec, dockerexec.Spec) error { return nil }

// has has containers of users that an earlier service made.
func (l *lab) has(users ...string) (ids []string) {
	l.t.Helper()
	first := l.serve()
	for _, user := range users {
		l.run(l.t, first, user)
	}
	first.stop()
	for _, c := range l.Containers() {
		ids = append(ids, c.ID)
	}
	l.before = len(l.Engine.Calls())
	return ids
}

// sleep has containers that an earlier service froze.
func (l *lab) sleep(users ...string) (ids []string) {
	l.t.Helper()
	for _, id := range l.has(users...) {
		if err := l.Pause(l.t.Context(), id); err != nil {
			l.t.Fatal(err)
		}
		ids = append(ids, id)
	}
	l.before = len(l.Engine.Calls())
	return ids
}

// aCommand is one with time enough.
var aCommand = Command{Command: session.Command{
	Command: launch.Command{Shell: "x"}, Timeout: time.Hour, Grace: 2 * time.Second,
}}

func discard(session.Stream, []byte) error { return nil }

// run runs a command of a user's.
func (l *lab) run(t testing.TB, s service, user string) {
	t.Helper()
	if _, err := s.Run(t.Context(), l.spec(user), aCommand, discard); err != nil {
		t.Fatalf("%s: %v", user, err)
	}
}

// states are those of all containers, by user.
func (s service) states() string {
	var list []string
	for _, c := range s.Containers() {
		list = append(list, c.User+" "+c.State)
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

// calls are what the engine has done since the test began.
func (l *lab) calls(verbs ...string) (list []enginetest.Call) {
	for _, call := range l.Engine.Calls()[l.before:] {
		if slices.Contains(verbs, call.Verb) {
			list = append(list, call)
		}
	}
	return list
}

// userOf returns whose container one of the engine's is.
func userOf(c engine.Container) string { return c.Labels["run.daycare.sandbox.user"] }

// users are those whose containers the engine has done something with, in this order.
func (l *lab) users(verbs ...string) (list []string) {
	for _, call := range l.calls(verbs...) {
		list = append(list, userOf(call.Container))
	}
	return list
}

// pauses are what was paused and resumed, as "Pause alice".
func (l *lab) pauses() (list []string) {
	for _, call := range l.calls("Pause", "Resume") {
		list = append(list, call.Verb+" "+userOf(call.Container))
	}
	return list
}

// takes has the verbs take so long before they do anything, whether or not the caller waits.
func (l *lab) takes(before time.Duration, verbs ...string) {
	l.script(func(do func() error) error {
		time.Sleep(before)
		return do()
	}, verbs...)
}

// script has the verbs do what step does, and all others as they do.
func (l *lab) script(step func(do func() error) error, verbs ...string) {
	l.Script(func(call enginetest.Call, do func() error) error {
		if slices.Contains(verbs, call.Verb) {
			return step(do)
		}
		return do()
	})
}

// spools are those that are left.
func (l *lab) spools() string {
	left, _ := filepath.Glob(filepath.Join(l.dir, ".spool-*"))
	return strings.Join(left, " ")
}

// firstID is the id of the first container.
var firstID = fmt.Sprintf("%064d", 1)
