package persistent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/libp2p/go-yamux/v5"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/images"
	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/wire"
	"github.com/daycare-run/sandbox/internal/hostfs"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/plantest"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/rootfs"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// lab is a service of persistent sandboxes over a folder, on a fake engine.
type lab struct {
	*fakeEngine
	dir   string
	trash *hostfs.Trash
	// quotas count for all services over the folder; nil does not.
	quotas *quota.Ledger
	// idle are containers for calls, each of which makes room.
	idle []func()
	// recount is how often commands are counted again.
	recount time.Duration
	// planner is that of the last service.
	planner *plan.Planner
	root    bool
}

func newLab(t *testing.T) *lab {
	l := &lab{
		fakeEngine: &fakeEngine{t: t, made: map[string]dockerexec.Spec{}, paused: map[string]bool{}, reach: map[string]dockerexec.Egress{}, left: map[string]bool{}},
		dir:        t.TempDir(), trash: hostfs.NewTrash(func(string, error) {}),
	}
	return l
}

func (l *lab) records() string { return filepath.Join(l.dir, "lasting") }

// usersDir holds the users' folders.
func (l *lab) usersDir() string { return filepath.Join(l.dir, "users") }

// open is what a service does that starts.
func (l *lab) open() *Sandboxes {
	l.t.Helper()
	s := l.unstarted()
	s.Start(context.Background())
	l.t.Cleanup(s.Shutdown)
	return s
}

// unstarted is a service that ends, counts and looks for nothing by itself.
func (l *lab) unstarted() *Sandboxes {
	l.t.Helper()
	platform := plantest.Platform(l.t)
	platform.Settings.Limits.NanoCPUs = 1e9
	platform.Overrides = func(context.Context, string) (*images.Overrides, error) {
		return images.NewOverrides(filepath.Join(l.dir, "image"), images.Original{Passwd: []byte("root:x:0:0::/root:/bin/bash\n"), Group: []byte("root:x:0:\n")}), nil
	}
	l.planner = plantest.New(l.t, rootfs.Config{UsersDir: l.usersDir()}, plan.NewPlatforms(platform), l.quotas)
	l.allowRoot(l.root)
	s, err := Open(l.config())
	if err != nil {
		l.t.Fatal(err)
	}
	return s
}

func (l *lab) config() Config {
	return Config{
		Dir: l.records(), Planner: l.planner, Executor: l, Places: l, Owners: l, Processes: noProcesses{}, Quotas: l.quotas,
		Trash: l.trash, Log: zerolog.Nop(), recountEvery: l.recount,
	}
}

// allowRoot sets whether commands may be root's.
func (l *lab) allowRoot(is bool) {
	l.root = is
	l.planner.Use(plan.Config{MaxDomains: 256, Egress: policy.EgressRules{AllowGlobalWildcard: true}, Root: is})
}

// TakePlace takes a place, for which an idle container makes room.
func (l *lab) TakePlace(_ context.Context, a quota.Account) (give func(), err error) {
	give, err = l.quotas.Take(a, quota.Containers, 1)
	if err == nil || len(l.idle) == 0 {
		return give, err
	}
	l.idle[0]()
	l.idle = l.idle[1:]
	return l.quotas.Take(a, quota.Containers, 1)
}

// noProcesses are those of sandboxes in which nobody starts any.
type noProcesses struct{}

func (noProcesses) FollowPause(context.Context, string) error { return nil }

func (noProcesses) Ended(string) {}

// Owner knows everybody but those who are gone.
func (l *lab) Owner(name string) (quota.Token, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return quota.Token{Name: name, Own: l.bounds}, !l.left[name]
}

var alice, bob = quota.Token{Name: "alice"}, quota.Token{Name: "bob"}

func (l *lab) create(s *Sandboxes, c Create) *Sandbox {
	l.t.Helper()
	b, err := s.Create(context.Background(), alice, c)
	if err != nil {
		l.t.Fatal(err)
	}
	return b
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	waittest.Until(t, what, holds)
}

func TestCreateMakesSpecAndHome(t *testing.T) {
	l := newLab(t)
	s := l.open()
	b := l.create(s, Create{
		Template: Template{Name: "base", CPUs: 0.5, Memory: 1 << 20, Env: map[string]string{"A": "template", "B": "template"}},
		Env:      map[string]string{"A": "create"}, Network: Network{Allow: []string{"*.example.org"}, Deny: []string{"no.example.org"}},
	})
	spec := l.made["c-"+b.ID()]
	if len(spec.Mounts) != 1 || spec.Mounts[0].Target != "/home" || spec.Mounts[0].ReadOnly || len(spec.Masks)+len(spec.Pins)+len(spec.Links) != 0 {
		t.Errorf("%+v", spec)
	}
	if spec.Platform.ReadOnlyRoot || spec.User != b.ID() || spec.Persistent != b.ID() || spec.Platform.Limits.NanoCPUs != 5e8 || spec.Platform.Limits.Memory != 1<<20 {
		t.Errorf("%+v", spec)
	}
	if e := spec.Egress; e.Profile != "isolated" || fmt.Sprint(e.Domains, e.Denied) != "[*.example.org] [no.example.org]" {
		t.Errorf("%+v", e)
	}
	passwd, err := os.ReadFile(spec.Passwd)
	if want := fmt.Sprintf("user:x:%d:%d::/home/user:/bin/bash\n", spec.UID, spec.GID); err != nil || !strings.HasPrefix(string(passwd), want) {
		t.Errorf("%q, %v", passwd, err)
	}
	if at, err := os.Stat(filepath.Join(l.usersDir(), b.ID(), "home", "user")); err != nil || !at.IsDir() {
		t.Error(err)
	}
	if env := b.entry.record.Env; env["A"] != "create" || env["B"] != "template" || env["HOME"] != "/home/user" || env["PATH"] != "/bin" || env["USER"] != "user" {
		t.Errorf("%v", env)
	}
	for name, c := range map[string]Create{
		"too many CPUs":       {Template: Template{CPUs: 100}},
		"a deadline before":   {Deadline: time.Now().Add(-time.Second)},
		"too much metadata":   {Metadata: map[string]string{"a": strings.Repeat("x", maxKept)}},
		"a name that is none": {Env: map[string]string{"A=B": ""}},
		"no such pattern":     {Network: Network{Allow: []string{"a*b.example.org"}}},
	} {
		if _, err := s.Create(context.Background(), alice, c); !cerrdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(s.All()) != 1 {
		t.Errorf("%+v", s.All())
	}
}

// Policy decides once about a sandbox, and its container is planned once, at its creation and when it has lost the container.
func TestASandboxIsDecidedOnceAndPlannedOnce(t *testing.T) {
	l := newLabOf(t)
	counts := func(what string, do func()) {
		t.Helper()
		decisions, plans := l.planner.Counts()
		do()
		if d, p := l.planner.Counts(); d != decisions+1 || p != plans+1 {
			t.Errorf("%s: policy decided %d times, and %d containers were planned", what, d-decisions, p-plans)
		}
	}
	var b *Sandbox
	counts("a creation", func() { b = l.create(l.s, Create{Network: Network{Allow: []string{"*"}}}) })
	counts("a start from the home", func() {
		l.exhaust("c-" + b.ID())
		b, _ = l.s.Find(alice, b.ID())
		if err := b.Connect(t.Context(), time.Time{}); err != nil {
			t.Fatal(err)
		}
	})
}

// After a create that has failed nothing is left.
func TestASandboxThatIsNotMade(t *testing.T) {
	l := newLab(t)
	s := l.open()
	l.refuse = errors.New("no engine")
	if _, err := s.Create(context.Background(), alice, Create{}); err == nil {
		t.Fatal("made")
	}
	for _, pattern := range []string{"lasting/*", "users/s*", "sandboxes/*"} {
		if left, _ := filepath.Glob(filepath.Join(l.dir, pattern)); len(left) > 0 {
			t.Errorf("%v are left", left)
		}
	}
}

func TestOwners(t *testing.T) {
	s := newLabOf(t).s
	b, err := s.Create(context.Background(), alice, Create{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Find(alice, b.ID()); err != nil {
		t.Error(err)
	}
	for _, owner := range []quota.Token{bob, {}} {
		if _, err := s.Find(owner, b.ID()); !cerrdefs.IsNotFound(err) {
			t.Errorf("%q: %v", owner.Name, err)
		}
		if list := s.List(owner); len(list) != 0 {
			t.Errorf("%q: %+v", owner.Name, list)
		}
	}
	if list := s.List(alice); len(list) != 1 || list[0].ID != b.ID() {
		t.Errorf("%+v", list)
	}
}

func TestNetworks(t *testing.T) {
	l := newLabOf(t)
	b := l.create(l.s, Create{Network: Network{Allow: []string{"a.example.org"}}})
	reaches := func(want string) {
		t.Helper()
		if reach, known := l.s.Egress(b.ID()); fmt.Sprint(reach.Profile, reach.Domains, reach.Denied, known) != want {
			t.Errorf("%+v, want %s", reach, want)
		}
	}
	reaches("isolated[a.example.org] [] true")
	if err := b.SetNetwork(t.Context(), Network{}); err != nil {
		t.Fatal(err)
	}
	reaches("isolated[] [] true")
	if err := b.SetNetwork(t.Context(), Network{Allow: []string{"refused.example.org"}}); err == nil {
		t.Error("no error")
	}
	reaches("isolated[] [] true")
	none := l.create(l.s, Create{Network: Network{None: true}})
	for b, n := range map[*Sandbox]Network{none: {Allow: []string{"*"}}, b: {None: true}} {
		if err := b.SetNetwork(t.Context(), n); !cerrdefs.IsFailedPrecondition(err) {
			t.Errorf("%+v: %v", n, err)
		}
	}
}

// What a container says is bounded and checked.
func TestAgentAnswersAreChecked(t *testing.T) {
	l := newLabOf(t)
	b := l.create(l.s, Create{})
	write := func(s *yamux.Stream, kind wire.Kind, message any) { _ = wire.WriteMessage(s, kind, message) }
	for name, c := range map[string]struct {
		says func(*yamux.Stream, control.Request)
		want string
	}{
		"a command": {func(s *yamux.Stream, _ control.Request) {
			write(s, wire.KindAnswer, control.Answer{PID: 7})
			write(s, wire.KindAnswer, control.Answer{Lost: 5})
			for _, kind := range []wire.Kind{wire.KindStdout, wire.KindStderr} {
				h := wire.Header(kind, 2)
				_, _ = s.Write(append(h[:], "ab"...))
			}
			write(s, wire.KindExit, wire.Exit{Code: 3})
		}, "7: 5 0ab 0 1ab {3 0 false} EOF"},
		"too slow": {func(s *yamux.Stream, _ control.Request) {
			write(s, wire.KindAnswer, control.Answer{PID: 7})
			write(s, wire.KindAnswer, control.Answer{Fault: control.FaultCut})
		}, "7: ResourceExhausted"},
		"nothing more": {func(s *yamux.Stream, _ control.Request) { write(s, wire.KindAnswer, control.Answer{PID: 7}) }, "7: Unavailable"},
		"nonsense": {func(s *yamux.Stream, _ control.Request) {
			write(s, wire.KindAnswer, control.Answer{PID: 7})
			_, _ = s.Write([]byte{99, 255, 255, 255})
		}, "7: Unavailable"},
		"no answer":     {func(*yamux.Stream, control.Request) {}, "Unavailable"},
		"another frame": {func(s *yamux.Stream, _ control.Request) { write(s, wire.KindExit, wire.Exit{}) }, "Unavailable"},
		"no such": {func(s *yamux.Stream, _ control.Request) {
			write(s, wire.KindAnswer, control.Answer{Fault: wire.FaultCommand, Message: "no"})
		}, "InvalidArgument"},
		"too many": {func(s *yamux.Stream, _ control.Request) {
			write(s, wire.KindAnswer, control.Answer{Fault: control.FaultMany})
		}, "ResourceExhausted"},
		"an odd fault": {func(s *yamux.Stream, _ control.Request) { write(s, wire.KindAnswer, control.Answer{Fault: "odd"}) }, "error"},
		"a large signal": {func(s *yamux.Stream, _ control.Request) {
			write(s, wire.KindAnswer, control.Answer{PID: 7})
			write(s, wire.KindExit, wire.Exit{Signal: 1 << 20, Code: 1 << 20})
		}, "7: {0 0 false} EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			l.answer = c.says
			if got := said(t, b); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
	l.answer = func(s *yamux.Stream, _ control.Request) {
		write(s, wire.KindAnswer, control.Answer{})
		for i := range control.MaxCommands + 2 {
			write(s, wire.KindEntry, control.Entry{PID: i + 1, Note: json.RawMessage(`"no note"`)})
		}
	}
	if list, err := b.Commands(t.Context()); err == nil {
		t.Errorf("%d commands", len(list))
	}
}

// said is what starting a command comes to.
func said(t *testing.T, b *Sandbox) string {
	t.Helper()
	class := func(err error) string {
		switch {
		case cerrdefs.IsUnavailable(err):
			return "Unavailable"
		case cerrdefs.IsResourceExhausted(err):
			return "ResourceExhausted"
		case cerrdefs.IsInvalidArgument(err):
			return "InvalidArgument"
		case err.Error() == "EOF":
			return "EOF"
		}
		return "error"
	}
	r, err := b.Start(t.Context(), Command{Argv: []string{"true"}})
	if err != nil {
		return class(err)
	}
	defer r.Close()
	text := fmt.Sprintf("%d:", r.PID())
	for {
		e, err := r.Next(t.Context())
		switch {
		case err != nil:
			return text + " " + class(err)
		case e.End != nil:
			text += fmt.Sprintf(" {%d %d %v}", e.End.Code, e.End.Signal, e.End.TimedOut)
		default:
			text += fmt.Sprintf(" %d %d%s", e.Lost, e.Stream, e.Data)
		}
	}
}

// Whoever waits may come again, and has lost nothing.
func TestNextWithALimit(t *testing.T) {
	l := newLabOf(t)
	b := l.create(l.s, Create{})
	goOn := make(chan struct{})
	l.answer = func(s *yamux.Stream, _ control.Request) {
		_ = wire.WriteMessage(s, wire.KindAnswer, control.Answer{PID: 7})
		<-goOn
		_ = wire.WriteMessage(s, wire.KindExit, wire.Exit{})
	}
	r, err := b.Start(t.Context(), Command{Argv: []string{"true"}, Terminal: &specs.Box{Height: 1, Width: 1}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	limit := errors.New("limit")
	for range 3 {
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, limit)
		if _, err := r.Next(ctx); !errors.Is(err, limit) {
			t.Errorf("%v", err)
		}
		cancel()
	}
	close(goOn)
	if e, err := r.Next(t.Context()); err != nil || e.End == nil {
		t.Errorf("%+v, %v", e, err)
	}
}

// The agent says whether a command that is followed has, or had, a terminal. An older one only lists those that run.
func TestWhetherACommandHasATerminal(t *testing.T) {
	l := newLabOf(t)
	b := l.create(l.s, Create{})
	for name, c := range map[string]struct {
		says  *bool
		lists []control.Entry
		want  bool
	}{
		"it has ended":                    {new(true), nil, true},
		"it has none":                     {new(false), []control.Entry{{PID: 7, Terminal: true}}, false},
		"an older agent":                  {nil, []control.Entry{{PID: 6}, {PID: 7, Terminal: true}}, true},
		"an older agent, and another has": {nil, []control.Entry{{PID: 6, Terminal: true}, {PID: 7}}, false},
	} {
		l.answer = func(s *yamux.Stream, q control.Request) {
			_ = wire.WriteMessage(s, wire.KindAnswer, control.Answer{PID: 7, Terminal: c.says})
			for _, e := range append(c.lists, control.Entry{}) {
				if q.Do == control.List {
					_ = wire.WriteMessage(s, wire.KindEntry, e)
				}
			}
		}
		r, err := b.Follow(t.Context(), Selector{PID: 7})
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
		if r.Terminal() != c.want {
			t.Errorf("%s: %t", name, r.Terminal())
		}
	}
}

// A sandbox that is paused when a call is on its way into it stays so, or goes on as one that does: what its record says
// is what its container does.
func TestACallThatMeetsAPause(t *testing.T) {
	for _, may := range []bool{false, true} {
		l := newLab(t)
		l.answer = func(stream *yamux.Stream, _ control.Request) {
			_ = wire.WriteMessage(stream, wire.KindAnswer, control.Answer{PID: 7})
		}
		s := l.open()
		b := l.create(s, Create{AutoResume: may})
		l.beforeAsked = func() {
			l.beforeAsked = nil
			if err := b.Pause(t.Context()); err != nil {
				t.Error(err)
			}
		}
		err := b.Signal(t.Context(), Selector{PID: 7}, 15)
		l.mu.Lock()
		paused := l.paused["c-"+b.ID()]
		l.mu.Unlock()
		if state := b.Info().State; may && (err != nil || paused || state != StateRunning) ||
			!may && (!cerrdefs.IsFailedPrecondition(err) || !paused || state != StatePaused) {
			t.Errorf("a call that may resume it, %v: %v; its container is paused: %v, its state is %v", may, err, paused, state)
		}
	}
}

// A command of root's takes no input while none may be root's, and others go on to.
func TestARootThatIsNoLongerAllowed(t *testing.T) {
	l := newLabOf(t)
	l.allowRoot(true)
	b := l.create(l.s, Create{})
	var typed atomic.Int64
	l.answer = func(s *yamux.Stream, r control.Request) {
		if r.Do == control.Input {
			typed.Add(1)
		}
		_ = wire.WriteMessage(s, wire.KindAnswer, control.Answer{PID: r.PID})
		if r.Do == control.Input {
			return
		}
		large := note{Argv: []string{strings.Repeat("x", control.MaxNote)}, Root: true}
		for i, n := range []note{{Argv: []string{"bash"}, Root: true}, large, {Argv: []string{"bash"}}} {
			_ = wire.WriteMessage(s, wire.KindEntry, control.Entry{PID: i + 1, Tag: fmt.Sprint("tag", i+1), Note: n.encode()})
		}
		_ = wire.WriteMessage(s, wire.KindEntry, control.Entry{})
	}
	for _, allowed := range []bool{true, false, true} {
		l.allowRoot(allowed)
		for pid := 1; pid <= 3; pid++ {
			for _, which := range []Selector{{PID: pid}, {Tag: fmt.Sprint("tag", pid)}} {
				before := typed.Load()
				err := b.Input(t.Context(), which, []byte("id\n"))
				if refused := errors.Is(err, ErrNoRoot); refused != (!allowed && pid < 3) || refused == (typed.Load() > before) {
					t.Errorf("root allowed %t: %+v: %v", allowed, which, err)
				}
			}
		}
	}
}
