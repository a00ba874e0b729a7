package enginetest

import (
	"context"
	"fmt"
	"io"
	"net"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/internal/engine"
)

// Program is one that runs in a container: reading it reads its stdin, writing writes its stdout.
// It reads nothing while its container is paused, nor afterwards if that has ended. As Docker's
// may, its connection stays open when its container ends.
type Program struct {
	net.Conn
	// Container is where it runs.
	Container engine.Container
	// Args are its arguments; nil if it is the container's first process.
	Args    []string
	status  *int
	noStdin bool
	awake   func() bool
}

// Exit sets the exit status that Run returns, and closes the program. Without, it is 0.
func (p Program) Exit(status int) {
	*p.status = status
	_ = p.Close()
}

func (p Program) Read(into []byte) (int, error) {
	if p.noStdin {
		return 0, io.EOF
	}
	n, err := p.Conn.Read(into)
	if !p.awake() {
		return 0, io.EOF
	}
	return n, err
}

// Serve has each program be program, in a goroutine of its own. Without, a program ends at once.
func (e *Engine) Serve(program func(Program)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.programs = program
}

// awake returns when a container is not paused, and reports whether it runs then.
func (e *Engine) awake(id string) bool {
	e.mu.Lock()
	c, err := e.find(id)
	if err != nil {
		e.mu.Unlock()
		return false
	}
	resumed := c.resumed
	e.mu.Unlock()
	select {
	case <-resumed:
	case <-e.ctx.Done():
		return false
	}
	now, there := e.Find(id)
	return there && now.Runs()
}

// stream is a Program's other end.
type stream struct{ net.Conn }

func (stream) Stderr() string { return "" }

// open starts a program, whose exit status is there when its stream has ended.
func (e *Engine) open(
	ctx context.Context, call Call, args []string,
) (_ engine.Stream, status *int, _ error) {
	in, err := run(ctx, e, call, func() (*container, error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		c, err := e.find(call.Name)
		if err != nil {
			return nil, err
		}
		if args != nil && c.State != specs.StateRunning {
			return nil, fmt.Errorf("the container is %s: %w", c.State, cerrdefs.ErrConflict)
		}
		call.Container = c.Container
		e.calls = append(e.calls, call)
		return c, nil
	})
	if err != nil {
		return nil, nil, err
	}
	here, there := net.Pipe()
	status = new(int)
	go func() {
		select {
		case <-in.begun:
		case <-in.gone:
			_ = there.Close()
			return
		case <-e.ctx.Done():
			return
		}
		e.mu.Lock()
		program, now := e.programs, in.Container
		e.mu.Unlock()
		program(Program{
			Conn: there, Container: now, Args: args, status: status, noStdin: call.Verb == "Run",
			awake: func() bool { return e.awake(now.ID) },
		})
	}()
	return stream{here}, status, nil
}

// Attach implements engine.Engine. The program begins with its container.
func (e *Engine) Attach(ctx context.Context, id string) (engine.Stream, error) {
	s, _, err := e.open(ctx, Call{Verb: "Attach", Name: id}, nil)
	return s, err
}

// Exec implements engine.Engine.
func (e *Engine) Exec(ctx context.Context, id string, p specs.Process) (engine.Stream, error) {
	s, _, err := e.open(ctx, Call{Verb: "Exec", Name: id}, p.Args)
	return s, err
}

// Run implements engine.Engine. The program has no stdin.
func (e *Engine) Run(
	ctx context.Context, id string, p specs.Process,
) (out engine.Output, err error) {
	s, status, err := e.open(ctx, Call{Verb: "Run", Name: id}, p.Args)
	if err != nil {
		return out, err
	}
	defer s.Close()
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()
	text, err := io.ReadAll(s)
	if out.Stdout = string(text); err == nil {
		out.ExitCode = *status
	}
	return out, err
}

// AbortExecs implements engine.Engine. Nothing holds a program up.
func (e *Engine) AbortExecs(string) error { return nil }
