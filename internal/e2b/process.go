package e2b

import (
	"cmp"
	"context"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/internal/e2b/processpb"
	"github.com/daycare-run/sandbox/internal/workload/persistent"
)

func (c called) listProcesses(ctx context.Context,
	_ *processpb.ListRequest) (*processpb.ListResponse, error) {
	running, err := c.Commands(ctx)
	if err != nil {
		return nil, err
	}
	list := &processpb.ListResponse{}
	for _, r := range running {
		config := &processpb.ProcessConfig{Envs: r.Env, Cwd: &r.Cwd}
		if len(r.Argv) > 0 {
			config.Cmd, config.Args = r.Argv[0], r.Argv[1:]
		}
		process := &processpb.ProcessInfo{Config: config, Pid: uint32(r.PID)}
		if r.Tag != "" {
			process.Tag = &r.Tag
		}
		list.Processes = append(list.Processes, process)
	}
	return list, nil
}

// startProcess starts a command and follows it. The call's deadline is also the command's; a lost
// connection does not end it.
func (c called) startProcess(ctx context.Context, r *processpb.StartRequest,
	send func(*processpb.StartResponse) error) error {
	config := r.GetProcess()
	if config.GetCmd() == "" {
		return invalid("process.cmd is empty")
	}
	command := persistent.Command{
		Argv: append([]string{config.GetCmd()}, config.GetArgs()...), Env: config.GetEnvs(),
		Cwd: config.GetCwd(), User: c.user, Stdin: r.Stdin == nil || r.GetStdin(), Tag: r.GetTag(),
	}
	if r.GetPty() != nil {
		size, err := sizeOf(r.GetPty())
		if err != nil {
			return err
		}
		command.Terminal = &size
	}
	if at, ok := ctx.Deadline(); ok {
		if command.Timeout = time.Until(at); command.Timeout <= 0 {
			return context.DeadlineExceeded
		}
	}
	refused := c.service.PersistentRefusals(c.ID())
	defer refused()
	reader, err := c.Start(ctx, command)
	if err != nil {
		return err
	}
	defer reader.Close()
	return follow(ctx, reader, c, refused, func(e *processpb.ProcessEvent) error {
		return send(&processpb.StartResponse{Event: e})
	})
}

func (c called) connectProcess(ctx context.Context, r *processpb.ConnectRequest,
	send func(*processpb.ConnectResponse) error) error {
	which, err := selector(r.GetProcess())
	if err != nil {
		return err
	}
	refused := c.service.PersistentRefusals(c.ID())
	defer refused()
	reader, err := c.Follow(ctx, which)
	if err != nil {
		return err
	}
	defer reader.Close()
	return follow(ctx, reader, c, refused, func(e *processpb.ProcessEvent) error {
		return send(&processpb.ConnectResponse{Event: e})
	})
}

func (c called) updateProcess(ctx context.Context,
	r *processpb.UpdateRequest) (*processpb.UpdateResponse, error) {
	which, err := selector(r.GetProcess())
	if err != nil {
		return nil, err
	}
	if r.GetPty() == nil {
		return nil, invalid("pty is missing: its size is all that can be changed")
	}
	size, err := sizeOf(r.GetPty())
	if err != nil {
		return nil, err
	}
	return &processpb.UpdateResponse{}, c.Resize(ctx, which, size)
}

func (c called) sendInput(ctx context.Context,
	r *processpb.SendInputRequest) (*processpb.SendInputResponse, error) {
	which, err := selector(r.GetProcess())
	if err != nil {
		return nil, err
	}
	var data []byte
	switch input := r.GetInput().GetInput().(type) {
	case *processpb.ProcessInput_Stdin:
		data = input.Stdin
	case *processpb.ProcessInput_Pty:
		data = input.Pty
	default:
		return nil, invalid("input is missing: give stdin or pty")
	}
	return &processpb.SendInputResponse{}, c.Input(ctx, which, data)
}

func (c called) sendSignal(ctx context.Context,
	r *processpb.SendSignalRequest) (*processpb.SendSignalResponse, error) {
	which, err := selector(r.GetProcess())
	if err != nil {
		return nil, err
	}
	signals := map[processpb.Signal]syscall.Signal{
		processpb.Signal_SIGNAL_SIGTERM: syscall.SIGTERM,
		processpb.Signal_SIGNAL_SIGKILL: syscall.SIGKILL,
	}
	signal, known := signals[r.GetSignal()]
	if !known {
		return nil, invalid("signal %d is neither SIGNAL_SIGTERM nor SIGNAL_SIGKILL", r.GetSignal())
	}
	return &processpb.SendSignalResponse{}, c.Signal(ctx, which, signal)
}

func (c called) closeStdin(ctx context.Context,
	r *processpb.CloseStdinRequest) (*processpb.CloseStdinResponse, error) {
	which, err := selector(r.GetProcess())
	if err != nil {
		return nil, err
	}
	return &processpb.CloseStdinResponse{}, c.CloseInput(ctx, which)
}

func selector(p *processpb.ProcessSelector) (persistent.Selector, error) {
	switch which := p.GetSelector().(type) {
	case *processpb.ProcessSelector_Pid:
		if which.Pid == 0 {
			return persistent.Selector{}, notFound("there is no process with the pid 0")
		}
		return persistent.Selector{PID: int(which.Pid)}, nil
	case *processpb.ProcessSelector_Tag:
		if which.Tag == "" {
			return persistent.Selector{}, invalid("process.tag is empty")
		}
		return persistent.Selector{Tag: which.Tag}, nil
	}
	return persistent.Selector{}, invalid("process is missing: give a pid or a tag")
}

// maxSide is the most columns or rows that a terminal's size can have.
const maxSide = 1<<16 - 1

// sizeOf returns a terminal's size; what is not given gets the usual value.
func sizeOf(p *processpb.PTY) (specs.Box, error) {
	size := p.GetSize()
	if size.GetCols() > maxSide || size.GetRows() > maxSide {
		return specs.Box{}, invalid("pty.size: %d columns and %d rows are more than %d",
			size.GetCols(), size.GetRows(), maxSide)
	}
	return specs.Box{Width: cmp.Or(uint(size.GetCols()), 80),
		Height: cmp.Or(uint(size.GetRows()), 24)}, nil
}
