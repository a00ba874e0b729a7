package persistent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/agent/wire"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/quota"
)

// Command is a command to run.
type Command struct {
	// Argv is a program, which is looked for in PATH, and its arguments.
	Argv []string
	// Env is added to the sandbox's.
	Env map[string]string
	// Cwd is relative to the user's home, or absolute.
	Cwd string
	// User is "user", also if it is empty, or "root", if Info.Root.
	User string
	// Terminal is the size of a terminal; nil is none.
	Terminal *specs.Box
	// Stdin says that there will be input; without it stdin is /dev/null. A terminal always takes
	// input.
	Stdin bool
	Tag   string
	// Timeout is how long the command may run before it is killed with all that is below it; 0 is
	// for ever.
	Timeout time.Duration
}

// RootUser is the name of the superuser in a sandbox that has Info.Root, and RootHome its home
// directory.
const (
	RootUser = "root"
	RootHome = "/root"
)

// ErrNoRoot is the error for a command that is to run as root where that is not allowed.
var ErrNoRoot = errs.Denied(
	"this sandbox has no user root; leave the user out, or have the operator set e2b.allowRoot (under gVisor, for sandboxes that are created afterwards)")

// Selector selects a command by its pid or its tag. A tag selects the newest command that has it.
type Selector struct {
	PID int
	Tag string
}

// Running is a command that runs.
type Running struct {
	PID  int
	Tag  string
	Argv []string
	// Env is the command's own, if that is not too large.
	Env      map[string]string
	Cwd      string
	Terminal bool
	// Root says that it was started as root.
	Root bool
}

// note is what is kept with a command, and reported by Commands.
type note struct {
	Argv []string          `json:"argv"`
	Env  map[string]string `json:"env,omitempty"`
	Cwd  string            `json:"cwd"`
	Root bool              `json:"root,omitempty"`
}

// encode returns the note as JSON, without what is too large.
func (n note) encode() json.RawMessage {
	text, err := json.Marshal(n)
	if err == nil && len(text) > control.MaxNote {
		n.Env = nil
		text, err = json.Marshal(n)
	}
	if err == nil && len(text) > control.MaxNote {
		text, err = json.Marshal(note{Root: n.Root})
	}
	if err != nil {
		return nil
	}
	return text
}

// Start starts a command and returns a Reader that follows it. The command goes on whatever becomes
// of the Reader.
func (b *Sandbox) Start(ctx context.Context, c Command) (*Reader, error) {
	root := c.User == RootUser
	switch {
	case c.User != "" && c.User != "user" && !root:
		return nil, errs.Invalid("there is no user %.64q here: name user, or leave the user out",
			c.User)
	case root && !b.Info().Root:
		return nil, ErrNoRoot
	case len(c.Tag) > control.MaxTag:
		return nil, errs.Invalid("the tag has %d bytes, more than %d", len(c.Tag), control.MaxTag)
	case len(c.Argv) == 0:
		return nil, errs.Invalid("there is no program to run")
	case c.Timeout < 0:
		return nil, errs.Invalid("the timeout is negative")
	}
	if err := plan.CheckCommand(
		launch.Command{Process: specs.Process{Args: c.Argv}}, c.Env, nil); err != nil {
		return nil, err
	}
	cwd, home, given := c.Cwd, plan.PersistentHome, map[string]string{}
	if root {
		home = RootHome
		given["HOME"], given["USER"], given["LOGNAME"] = home, RootUser, RootUser
	}
	if !path.IsAbs(cwd) {
		cwd = path.Join(home, cwd)
	}
	if c.Terminal != nil {
		given["TERM"] = "xterm-256color"
	}
	maps.Copy(given, c.Env)
	env := plan.Join(b.entry.recorded().Env, given)
	run := &control.Run{
		Command: launch.Command{Process: specs.Process{Args: c.Argv, Env: env, Cwd: cwd,
			Terminal: c.Terminal != nil, ConsoleSize: c.Terminal}},
		Ahead: b.entry.of.cfg.Executor.Ahead(),
		Root:  root, Stdin: c.Stdin, TimeoutMs: (c.Timeout + time.Millisecond - 1).Milliseconds(),
		Note: note{Argv: c.Argv, Env: c.Env, Cwd: cwd, Root: root}.encode(),
	}
	give, err := b.takeCommand()
	if err != nil {
		return nil, fmt.Errorf("cannot run the command: %w", err)
	}
	return b.begin(ctx, control.Request{Tag: c.Tag, Run: run}, give)
}

// Follow follows a command that runs, or has ended while nobody followed it.
func (b *Sandbox) Follow(ctx context.Context, which Selector) (*Reader, error) {
	return b.follow(ctx, control.Request{Do: control.Follow, PID: which.PID, Tag: which.Tag})
}

func (b *Sandbox) follow(ctx context.Context, r control.Request) (*Reader, error) {
	got, err := b.ask(ctx, r, nil)
	if err != nil {
		return nil, err
	}
	return newReader(b, got, b.entry.followed(got.answer.PID), b.hasTerminal(ctx, r, got.answer)), nil
}

// begin begins a command, for which give gives back a place in the quotas: at its end, or after an
// error.
func (b *Sandbox) begin(ctx context.Context, r control.Request, give func()) (*Reader, error) {
	r.Do = control.Begin
	got, err := b.ask(ctx, r, nil)
	if err != nil {
		give()
		b.entry.unsure() // it may have begun
		return nil, err
	}
	return newReader(b, got, b.entry.begun(got.answer.PID, give), r.Run.Terminal), nil
}

// takeCommand counts another command of the sandbox, until done is called.
func (b *Sandbox) takeCommand() (done func(), err error) {
	r := b.entry.recorded()
	if _, err := b.entry.of.cfg.Planner.Sandboxes().Find(r.box()); err != nil {
		return nil, err
	}
	account := quota.Account{User: r.user(), Token: b.owner}
	return b.entry.of.cfg.Quotas.Take(account, quota.Commands, 1)
}

// hasTerminal reports whether the command that an answer is about has a terminal. An older agent
// says it only of one that runs.
func (b *Sandbox) hasTerminal(ctx context.Context, r control.Request, answer control.Answer) bool {
	if answer.Terminal != nil {
		return *answer.Terminal
	}
	running, _ := b.Commands(ctx) // without them, what it prints is passed on all the same
	return slices.ContainsFunc(running, func(c Running) bool {
		return c.PID == answer.PID && c.Terminal
	})
}

// MakeMissing makes the first that is missing of an absolute path if that belongs into a directory
// of root's in the container's own root filesystem, where the tenant can make nothing, and gives it
// to the tenant. What is mounted there is left alone.
func (b *Sandbox) MakeMissing(ctx context.Context, at string, dir bool) error {
	return b.act(ctx, Selector{},
		control.Request{Do: control.MakeMissing, Make: &control.Make{Path: at, Dir: dir}}, nil)
}

// Input writes to a command's stdin, or to its terminal. It blocks while the command does not read.
// A command of root's takes no input while no command may be root's.
func (b *Sandbox) Input(ctx context.Context, which Selector, data []byte) error {
	if err := b.refuseRoot(ctx, which); err != nil {
		return err
	}
	return feed(ctx, b, which, data)
}

// feed writes to a command's stdin.
func feed(ctx context.Context, on commandHost, which Selector, data []byte) error {
	for {
		piece := data[:min(len(data), control.MaxInput)]
		if err := act(ctx, on, which, control.Request{Do: control.Input}, piece); err != nil {
			return err
		}
		if data = data[len(piece):]; len(data) == 0 {
			return nil
		}
	}
}

// refuseRoot returns ErrNoRoot for a command that was started as root while that was allowed, if it
// no longer is.
func (b *Sandbox) refuseRoot(ctx context.Context, which Selector) error {
	if !b.entry.recorded().Root || b.entry.of.cfg.Planner.AllowsRoot() {
		return nil
	}
	list, err := b.Commands(ctx)
	if err != nil {
		return err
	}
	for _, c := range list {
		if c.Root && (c.PID == which.PID || which.Tag != "" && c.Tag == which.Tag) {
			return ErrNoRoot
		}
	}
	return nil
}

// CloseInput closes a command's stdin; to a terminal it types the end-of-file character.
func (b *Sandbox) CloseInput(ctx context.Context, which Selector) error {
	return b.act(ctx, which, control.Request{Do: control.CloseInput}, nil)
}

// Resize gives a command's terminal another size.
func (b *Sandbox) Resize(ctx context.Context, which Selector, size specs.Box) error {
	return resize(ctx, b, which, size)
}

func resize(ctx context.Context, on commandHost, which Selector, size specs.Box) error {
	const most = 1<<16 - 1
	if size.Height < 1 || size.Width < 1 || size.Height > most || size.Width > most {
		return errs.Invalid("%d by %d is not the size of a terminal", size.Width, size.Height)
	}
	return act(ctx, on, which, control.Request{Do: control.Resize, Size: &size}, nil)
}

// Signal sends a signal to a command's process group.
func (b *Sandbox) Signal(ctx context.Context, which Selector, s syscall.Signal) error {
	return signal(ctx, b, which, s)
}

func signal(ctx context.Context, on commandHost, which Selector, s syscall.Signal) error {
	const last = 64
	if s < 1 || s > last {
		return errs.Invalid("there is no signal %d", int(s))
	}
	return act(ctx, on, which, control.Request{Do: control.Signal, Signal: int(s)}, nil)
}

// Commands lists the commands that run, by pid.
func (b *Sandbox) Commands(ctx context.Context) ([]Running, error) {
	got, err := b.ask(ctx, control.Request{Do: control.List}, nil)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, answerLimit, errNoAnswer)
	defer cancel()
	defer got.stream.Reset() //nolint:errcheck // it has said all, or is broken
	defer context.AfterFunc(ctx, func() { _ = got.stream.SetDeadline(time.Unix(1, 0)) })()
	list := []Running{}
	for len(list) <= control.MaxCommands {
		var e control.Entry
		if err := wire.ReadMessage(got.stream, wire.KindEntry, &e); err != nil {
			return nil, b.lost(ctx, got.container, err)
		}
		if e.PID == 0 {
			return list, nil
		}
		var n note
		if len(e.Note) > 0 && json.Unmarshal(e.Note, &n) != nil {
			n = note{}
		}
		list = append(list, Running{PID: e.PID, Tag: e.Tag, Argv: n.Argv, Env: n.Env, Cwd: n.Cwd,
			Terminal: e.Terminal, Root: n.Root})
	}
	return nil, errors.New("the sandbox lists more commands than it can have")
}
