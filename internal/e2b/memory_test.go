package e2b

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/lasting"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/sandbox"
	"github.com/daycare-run/sandbox/internal/sandboxtest"
)

// memory implements Sandboxes without containers: its commands run on this host, in the home of a real facade's user.
type memory struct {
	lab *sandboxtest.Lab
	// inert has every command end at once, and none run.
	inert bool

	mu    sync.Mutex
	boxes []*memoryBox
}

type memoryBox struct {
	of      *memory
	owner   quota.Token
	created lasting.Create

	// Under of.mu.
	info     lasting.Info
	commands []*memoryCommand
	pid      int
}

func (m *memory) Create(_ context.Context, owner quota.Token, r lasting.Create) (Sandbox, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	id := cmp.Or(r.ID, fmt.Sprintf("i%019d", len(m.boxes)))
	if _, _, err := m.lab.Put(id, sandbox.Registration{UserID: id, WorkingDir: homeDir, WriteDirs: []string{"/home"}}); err != nil {
		return nil, err
	}
	if err := m.lab.Mkdir(context.Background(), id, homeDir, true); err != nil {
		return nil, err
	}
	b := &memoryBox{of: m, owner: owner, created: r, info: lasting.Info{
		ID: id, Owner: owner.Name, Template: r.Template.Name, Metadata: r.Metadata, Note: r.Note, Started: time.Now(), Deadline: r.Deadline, OnDeadline: r.OnDeadline,
		AutoResume: r.AutoResume, CPUs: 1.5, Memory: 1 << 30, Network: r.Network,
	}}
	m.boxes = append(m.boxes, b)
	return b, nil
}

func (m *memory) find(is func(*memoryBox) bool) (Sandbox, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := slices.IndexFunc(m.boxes, func(b *memoryBox) bool { return b.info.ID != "" && is(b) }); i >= 0 {
		return m.boxes[i], nil
	}
	return nil, errs.NotFound("there is no such sandbox")
}

func (m *memory) Find(owner quota.Token, id string) (Sandbox, error) {
	return m.find(func(b *memoryBox) bool { return b.info.ID == id && b.owner.Name == owner.Name })
}

func (m *memory) Any(id string) (Sandbox, error) {
	return m.find(func(b *memoryBox) bool { return b.info.ID == id })
}

func (m *memory) all(is func(*memoryBox) bool) (list []lasting.Info) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range m.boxes {
		if b.info.ID != "" && is(b) {
			list = append(list, b.info)
		}
	}
	return list
}

func (m *memory) All() []lasting.Info { return m.all(func(*memoryBox) bool { return true }) }

func (m *memory) List(owner quota.Token) []lasting.Info {
	return m.all(func(b *memoryBox) bool { return b.owner.Name == owner.Name })
}

func (b *memoryBox) change(do func(*lasting.Info)) {
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	do(&b.info)
}

func (b *memoryBox) ID() string { return b.Info().ID }
func (b *memoryBox) Info() (info lasting.Info) {
	b.change(func(i *lasting.Info) { info = *i })
	return info
}

func (b *memoryBox) SetDeadline(at time.Time) error {
	b.change(func(i *lasting.Info) { i.Deadline = at })
	return nil
}

func (b *memoryBox) Connect(_ context.Context, at time.Time) error {
	b.change(func(i *lasting.Info) {
		i.State = lasting.StateRunning
		if at.After(i.Deadline) {
			i.Deadline = at
		}
	})
	return nil
}

func (b *memoryBox) Pause(context.Context) error {
	if b.Info().State == lasting.StatePaused {
		return errs.Conflict("it is paused already")
	}
	b.change(func(i *lasting.Info) { i.State = lasting.StatePaused })
	return nil
}

func (b *memoryBox) Kill(context.Context) error {
	b.change(func(i *lasting.Info) { i.ID = "" })
	for _, c := range b.commands {
		c.kill(syscall.SIGKILL)
	}
	return nil
}

func (b *memoryBox) SetNetwork(_ context.Context, n lasting.Network) error {
	b.change(func(i *lasting.Info) { i.Network = n })
	return nil
}

func (b *memoryBox) Metrics(context.Context) (lasting.Metrics, error) {
	return lasting.Metrics{At: time.Unix(1700000000, 0), CPUs: 1.5, CPUPercent: 3, Memory: 5, MemoryLimit: 7, Disk: 9, DiskTotal: 11}, nil
}

func (b *memoryBox) Touch(context.Context) (err error) {
	b.change(func(i *lasting.Info) {
		if i.State == lasting.StatePaused && !i.AutoResume {
			err = paused{}
			return
		}
		i.State = lasting.StateRunning
	})
	return err
}

func (b *memoryBox) Files() *sandbox.Service { return b.of.lab.Scoped(ids.Everyone(), b.owner) }

// memoryCommand is a program of this host. Its output is kept whole.
type memoryCommand struct {
	lasting.Running
	cmd   *exec.Cmd
	stdin io.WriteCloser

	mu     sync.Mutex
	events []lasting.Event
	more   chan struct{} // closed and made anew with each
}

func (c *memoryCommand) add(e lasting.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = append(c.events, e)
	close(c.more)
	c.more = make(chan struct{})
}

func (c *memoryCommand) kill(signal syscall.Signal) { _ = syscall.Kill(-c.cmd.Process.Pid, signal) }

// memoryOutput is one stream of a command.
type memoryOutput struct {
	of     *memoryCommand
	stream dockerexec.Stream
}

func (o memoryOutput) Write(data []byte) (int, error) {
	o.of.add(lasting.Event{Stream: o.stream, Data: slices.Clone(data)})
	return len(data), nil
}

func (b *memoryBox) Start(_ context.Context, c lasting.Command) (Reader, error) {
	if c.User != "" && c.User != "user" {
		return nil, errs.Denied("there is no user %q", c.User)
	}
	if b.of.inert {
		return &memoryReader{&memoryCommand{Running: lasting.Running{PID: 1}, events: []lasting.Event{{End: &lasting.End{}}}}, 0}, nil
	}
	home := filepath.Join(sandboxtest.Home(b.of.lab.Dir, b.ID()), "user")
	cmd := exec.Command(c.Argv[0], c.Argv[1:]...)
	cmd.Dir, cmd.Env = filepath.Join(home, strings.TrimPrefix(c.Cwd, homeDir)), append(os.Environ(), "HOME="+home)
	for name, value := range c.Env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	started := &memoryCommand{cmd: cmd, more: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = memoryOutput{started, dockerexec.Stdout}, memoryOutput{started, dockerexec.Stderr}
	if c.Stdin {
		started.stdin, _ = cmd.StdinPipe()
	}
	if err := cmd.Start(); err != nil {
		return nil, errs.Invalid("cannot start: %v", err)
	}
	b.of.mu.Lock()
	b.pid++
	started.Running = lasting.Running{PID: b.pid, Tag: c.Tag, Argv: c.Argv, Env: c.Env, Cwd: c.Cwd, Terminal: c.Terminal != nil}
	b.commands = append(b.commands, started)
	b.of.mu.Unlock()
	go b.wait(started, c.Timeout)
	return &memoryReader{started, 0}, nil
}

func (b *memoryBox) wait(c *memoryCommand, timeout time.Duration) {
	end := lasting.End{}
	if timeout > 0 {
		late := time.AfterFunc(timeout, func() { c.kill(syscall.SIGKILL) })
		defer late.Stop()
	}
	err := c.cmd.Wait()
	if exit, is := errors.AsType[*exec.ExitError](err); is {
		status := exit.Sys().(syscall.WaitStatus)
		if end.Code = status.ExitStatus(); status.Signaled() {
			end = lasting.End{Signal: status.Signal()}
		}
	}
	b.of.mu.Lock()
	b.commands = slices.DeleteFunc(b.commands, func(other *memoryCommand) bool { return other == c })
	b.of.mu.Unlock()
	c.add(lasting.Event{End: &end})
}

func (b *memoryBox) command(which lasting.Selector) (*memoryCommand, error) {
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	for _, c := range b.commands {
		if c.PID == which.PID || which.Tag != "" && c.Tag == which.Tag {
			return c, nil
		}
	}
	return nil, errs.NotFound("there is no process %v", which)
}

func (b *memoryBox) Follow(_ context.Context, which lasting.Selector) (Reader, error) {
	c, err := b.command(which)
	if err != nil {
		return nil, err
	}
	return &memoryReader{c, len(c.events)}, nil
}

func (b *memoryBox) Commands(context.Context) (list []lasting.Running, _ error) {
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	for _, c := range b.commands {
		list = append(list, c.Running)
	}
	return list, nil
}

func (b *memoryBox) Input(_ context.Context, which lasting.Selector, data []byte) error {
	c, err := b.command(which)
	if err != nil {
		return err
	}
	if c.stdin == nil {
		return errs.Invalid("it has no stdin")
	}
	_, err = c.stdin.Write(data)
	return err
}

func (b *memoryBox) CloseInput(_ context.Context, which lasting.Selector) error {
	c, err := b.command(which)
	if err != nil {
		return err
	}
	return c.stdin.Close()
}

func (b *memoryBox) Resize(_ context.Context, which lasting.Selector, _ specs.Box) error {
	c, err := b.command(which)
	if err == nil && !c.Terminal {
		err = errs.Invalid("it has no terminal")
	}
	return err
}

func (b *memoryBox) Signal(_ context.Context, which lasting.Selector, signal syscall.Signal) error {
	c, err := b.command(which)
	if err == nil {
		c.kill(signal)
	}
	return err
}

type memoryReader struct {
	of   *memoryCommand
	next int
}

func (r *memoryReader) PID() int { return r.of.PID }
func (r *memoryReader) Close()   {}

func (r *memoryReader) Next(ctx context.Context) (lasting.Event, error) {
	for {
		r.of.mu.Lock()
		events, more := r.of.events, r.of.more
		r.of.mu.Unlock()
		if r.next < len(events) {
			r.next++
			return events[r.next-1], nil
		}
		if r.next > 0 && events[r.next-1].End != nil {
			return lasting.Event{}, io.EOF
		}
		select {
		case <-more:
		case <-ctx.Done():
			return lasting.Event{}, context.Cause(ctx)
		}
	}
}

// memoryPort is a connection to a port of this host.
type memoryPort struct{ *net.TCPConn }

func (p memoryPort) Abort() { _ = p.Close() }

func (b *memoryBox) Dial(ctx context.Context, port int) (PortConn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return nil, err
	}
	return memoryPort{conn.(*net.TCPConn)}, nil
}
