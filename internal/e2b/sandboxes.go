package e2b

import (
	"context"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/internal/lasting"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/sandbox"
)

// Sandboxes makes and finds sandboxes. Lasting makes one of what lasting has.
type Sandboxes interface {
	Create(ctx context.Context, owner quota.Token, r lasting.Create) (Sandbox, error)
	// Find is for the owner alone: for anybody else a sandbox does not exist.
	Find(owner quota.Token, id string) (Sandbox, error)
	List(owner quota.Token) []lasting.Info
	// Any and All are for calls into a sandbox, which have a token of the sandbox's own.
	Any(id string) (Sandbox, error)
	All() []lasting.Info
	// Abandon says that nobody needs a host to hold what has this id, unless it is a sandbox.
	Abandon(id string)
}

// Sandbox is one of them.
type Sandbox interface {
	ID() string
	Info() lasting.Info
	SetDeadline(at time.Time) error
	Connect(ctx context.Context, at time.Time) error
	Pause(ctx context.Context) error
	Kill(ctx context.Context) error
	SetNetwork(ctx context.Context, n lasting.Network) error
	Metrics(ctx context.Context) (lasting.Metrics, error)
	Touch(ctx context.Context) error

	Start(ctx context.Context, c lasting.Command) (Reader, error)
	Follow(ctx context.Context, which lasting.Selector) (Reader, error)
	Commands(ctx context.Context) ([]lasting.Running, error)
	Input(ctx context.Context, which lasting.Selector, data []byte) error
	CloseInput(ctx context.Context, which lasting.Selector) error
	Resize(ctx context.Context, which lasting.Selector, size specs.Box) error
	Signal(ctx context.Context, which lasting.Selector, s syscall.Signal) error

	// Dial connects to a port of the container's own loopback.
	Dial(ctx context.Context, port int) (PortConn, error)

	Files() *sandbox.Service
}

// Reader follows a command.
type Reader interface {
	PID() int
	Next(ctx context.Context) (lasting.Event, error)
	Close()
}

// Lasting is Sandboxes over lasting's.
func Lasting(all *lasting.Sandboxes) Sandboxes { return lastingSandboxes{all} }

type lastingSandboxes struct{ all *lasting.Sandboxes }

func (l lastingSandboxes) Create(ctx context.Context, owner quota.Token, r lasting.Create) (Sandbox, error) {
	return found(l.all.Create(ctx, owner, r))
}

func (l lastingSandboxes) Find(owner quota.Token, id string) (Sandbox, error) {
	return found(l.all.Find(owner, id))
}

func (l lastingSandboxes) Any(id string) (Sandbox, error) { return found(l.all.Any(id)) }

func (l lastingSandboxes) Abandon(id string) { l.all.Abandon(id) }

func (l lastingSandboxes) List(owner quota.Token) []lasting.Info { return l.all.List(owner) }

func (l lastingSandboxes) All() []lasting.Info { return l.all.All() }

type lastingSandbox struct{ *lasting.Sandbox }

func found(b *lasting.Sandbox, err error) (Sandbox, error) {
	if err != nil {
		return nil, err // and no Sandbox that holds nil
	}
	return lastingSandbox{b}, nil
}

func (b lastingSandbox) Start(ctx context.Context, c lasting.Command) (Reader, error) {
	return reader(b.Sandbox.Start(ctx, c))
}

func (b lastingSandbox) Follow(ctx context.Context, which lasting.Selector) (Reader, error) {
	return reader(b.Sandbox.Follow(ctx, which))
}

func (b lastingSandbox) Dial(ctx context.Context, port int) (PortConn, error) {
	conn, err := b.Sandbox.Dial(ctx, port)
	if err != nil {
		return nil, err
	}
	return conn, nil
}

func reader(r *lasting.Reader, err error) (Reader, error) {
	if err != nil {
		return nil, err
	}
	return r, nil
}
