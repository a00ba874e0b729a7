package e2b

import (
	"context"
	"encoding/json"
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
	"sync/atomic"
	"syscall"
	"time"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/wire"
	"github.com/daycare-run/sandbox/internal/cgroup"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/sandboxtest"
)

// engine implements persistent.Executor without containers: commands run on this host, in the home of a real facade's user.
type engine struct {
	dir string // the facade's
	// inert has every command end at once, and none run.
	inert atomic.Bool

	mu       sync.Mutex
	made     map[string]dockerexec.Spec // by container, which has its sandbox's name
	commands map[string][]*hostCommand
	pid      int
	streams  map[string][]net.Conn
	makes    []control.Make // what was to be made
}

func newEngine(dir string) *engine {
	return &engine{dir: dir, made: map[string]dockerexec.Spec{}, commands: map[string][]*hostCommand{}, streams: map[string][]net.Conn{}}
}

func (e *engine) StartPersistent(_ context.Context, spec dockerexec.Spec, _ quota.Token) (dockerexec.ProcessContainer, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.made[spec.Persistent] = spec
	return dockerexec.ProcessContainer{ID: spec.Persistent, Spec: spec, Running: true}, os.MkdirAll(e.home(spec.Persistent), 0o755)
}

func (e *engine) home(id string) string { return filepath.Join(sandboxtest.Home(e.dir, id), "user") }

func (e *engine) Persistent(context.Context) (list []dockerexec.ProcessContainer, _ error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, spec := range e.made {
		list = append(list, dockerexec.ProcessContainer{ID: id, Spec: spec, Running: true})
	}
	return list, nil
}

func (e *engine) PersistentRuns(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, there := e.made[id]
	return there
}

func (e *engine) Ahead() bool { return false }

// What is paused goes on all the same: nothing is asked of it.
func (e *engine) PauseDetached(context.Context, string) error  { return nil }
func (e *engine) ResumeDetached(context.Context, string) error { return nil }

func (e *engine) RemoveProcess(_ context.Context, id string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.streams[id] { // nobody is told any more how the commands end
		_ = c.Close()
	}
	for _, c := range e.commands[id] {
		if c.runs() {
			c.kill(syscall.SIGKILL)
		}
	}
	delete(e.made, id)
	return nil
}

// close ends all commands.
func (e *engine) close() {
	all, _ := e.Persistent(context.Background())
	for _, c := range all {
		_ = e.RemoveProcess(context.Background(), c.ID)
	}
}

func (e *engine) SetEgress(context.Context, string, dockerexec.Egress) error { return nil }

func (e *engine) PersistentEnd(context.Context, string) *dockerexec.Exhausted { return nil }
func (e *engine) PersistentKilled(string) *dockerexec.Exhausted               { return nil }

func (e *engine) Usage(context.Context, string) (cgroup.Usage, error) {
	return cgroup.Usage{At: time.Now(), CPU: time.Hour, Memory: 5, MemoryLimit: 7 << 30, Cache: 3}, nil
}

// hostStream is a stream of this host's.
type hostStream struct{ net.Conn }

func (s hostStream) Reset() error { return s.Close() }

// DialProcess connects to a port of this host.
func (e *engine) DialProcess(ctx context.Context, _ string, port int) (session.PortConn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return session.PortConn{}, err
	}
	return session.PortConn{Conn: conn.(*net.TCPConn), Stream: hostStream{conn}}, nil
}

func (e *engine) AskPersistent(_ context.Context, id string) (control.Stream, error) {
	here, there := net.Pipe()
	e.mu.Lock()
	e.streams[id] = append(e.streams[id], there)
	e.mu.Unlock()
	go func() {
		defer there.Close()
		var r control.Request
		if wire.ReadMessage(there, wire.KindRequest, &r) == nil {
			e.answer(there, id, r)
		}
	}()
	return hostStream{here}, nil
}

func (e *engine) answer(to net.Conn, id string, r control.Request) {
	data := make([]byte, r.Length)
	_, _ = io.ReadFull(to, data)
	say := func(a control.Answer) { _ = wire.WriteMessage(to, wire.KindAnswer, a) }
	switch r.Do {
	case control.List:
		say(control.Answer{})
		e.mu.Lock()
		list := slices.Clone(e.commands[id])
		e.mu.Unlock()
		for _, c := range list {
			if c.runs() {
				_ = wire.WriteMessage(to, wire.KindEntry, c.Entry)
			}
		}
		_ = wire.WriteMessage(to, wire.KindEntry, control.Entry{})
		return
	case control.MakeMissing:
		e.mu.Lock()
		e.makes = append(e.makes, *r.Make)
		e.mu.Unlock()
		say(control.Answer{})
		return
	case control.Written:
		say(control.Answer{Written: 9})
		return
	}
	var c *hostCommand
	var err error
	if r.Do == control.Begin {
		if c, err = e.begin(id, r); err != nil {
			say(control.Answer{Fault: wire.FaultCommand, Message: err.Error()})
			return
		}
	} else if c = e.find(id, r); c == nil {
		say(control.Answer{Fault: control.FaultMissing})
		return
	}
	a := control.Answer{PID: c.PID}
	switch r.Do {
	case control.Begin, control.Follow:
		a.Terminal = &c.Terminal
		next := c.joined()
		say(a)
		c.follow(to, next)
		return
	case control.Input:
		if c.stdin == nil {
			a.Fault = control.FaultInput
		} else if _, err := c.stdin.Write(data); err != nil {
			a.Fault = control.FaultInput
		}
	case control.CloseInput:
		if c.stdin == nil || c.stdin.Close() != nil {
			a.Fault = control.FaultInput
		}
	case control.Resize:
		if !c.Terminal {
			a.Fault = control.FaultTerminal
		}
	case control.Signal:
		c.kill(syscall.Signal(r.Signal))
	}
	say(a)
}

// find returns the newest command of a tag, as the agent does: for Follow it may have ended.
func (e *engine) find(id string, r control.Request) (found *hostCommand) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range slices.Backward(e.commands[id]) {
		is, runs := c.PID == r.PID || r.Tag != "" && c.Tag == r.Tag, c.runs()
		if is && runs {
			return c
		}
		if is && found == nil && r.Do == control.Follow {
			found = c
		}
	}
	return found
}

func (e *engine) begin(id string, r control.Request) (*hostCommand, error) {
	if e.inert.Load() {
		return &hostCommand{Entry: control.Entry{PID: 1}, frames: []hostFrame{endFrame(wire.Exit{})}}, nil
	}
	args, home := r.Run.Args, e.home(id)
	cmd := exec.Command(args[0], args[1:]...)
	if cmd.Dir = r.Run.Cwd; strings.HasPrefix(cmd.Dir, homeDir) {
		cmd.Dir = filepath.Join(home, strings.TrimPrefix(cmd.Dir, homeDir))
	}
	cmd.Env = append(slices.Clone(r.Run.Env), "HOME="+home, "PATH="+os.Getenv("PATH"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c := &hostCommand{cmd: cmd, more: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = hostOutput{c, wire.KindStdout}, hostOutput{c, wire.KindStderr}
	if r.Run.Stdin {
		c.stdin, _ = cmd.StdinPipe()
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	e.mu.Lock()
	e.pid++
	c.Entry = control.Entry{PID: e.pid, Tag: r.Tag, Terminal: r.Run.Terminal, Note: r.Run.Note}
	e.commands[id] = append(e.commands[id], c)
	e.mu.Unlock()
	go c.wait(time.Duration(r.Run.TimeoutMs) * time.Millisecond)
	return c, nil
}

// hostCommand is a program of this host. Its output is kept whole.
type hostCommand struct {
	control.Entry
	cmd   *exec.Cmd
	stdin io.WriteCloser

	mu        sync.Mutex
	frames    []hostFrame
	more      chan struct{} // closed and made anew with each
	ended     bool
	followers int
	left      int // how many frames there were when the last follower left
}

func (c *hostCommand) runs() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.ended
}

// followed returns how many follow the command now.
func (c *hostCommand) followed() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.followers
}

// joined counts one more follower, and returns which frame is the first for it: without others, what came since the last one left.
func (c *hostCommand) joined() (next int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if next = len(c.frames); c.followers == 0 {
		next = c.left
	}
	c.followers++
	return next
}

type hostFrame struct {
	kind wire.Kind
	data []byte
}

func endFrame(exit wire.Exit) hostFrame {
	text, err := json.Marshal(exit)
	if err != nil {
		panic(err)
	}
	return hostFrame{wire.KindExit, text}
}

func (c *hostCommand) add(f hostFrame) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frames, c.ended = append(c.frames, f), c.ended || f.kind == wire.KindExit
	close(c.more)
	c.more = make(chan struct{})
}

func (c *hostCommand) kill(signal syscall.Signal) { _ = syscall.Kill(-c.cmd.Process.Pid, signal) }

func (c *hostCommand) wait(timeout time.Duration) {
	var end wire.Exit
	if timeout > 0 {
		late := time.AfterFunc(timeout, func() { c.kill(syscall.SIGKILL) })
		defer late.Stop()
	}
	if exit, is := errors.AsType[*exec.ExitError](c.cmd.Wait()); is {
		status := exit.Sys().(syscall.WaitStatus)
		if end.Code = status.ExitStatus(); status.Signaled() {
			end = wire.Exit{Signal: int(status.Signal())}
		}
	}
	c.add(endFrame(end))
}

// follow sends what is printed from a frame on, to the end or until who follows has gone.
func (c *hostCommand) follow(to net.Conn, next int) {
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.followers, c.left = c.followers-1, next
	}()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = io.Copy(io.Discard, to)
	}()
	for {
		c.mu.Lock()
		frames, more := c.frames, c.more
		c.mu.Unlock()
		for ; next < len(frames); next++ {
			f := frames[next]
			header := wire.Header(f.kind, len(f.data))
			if _, err := to.Write(append(header[:], f.data...)); err != nil || f.kind == wire.KindExit {
				return
			}
		}
		select {
		case <-more:
		case <-gone:
			return
		}
	}
}

// hostOutput is one stream of a command.
type hostOutput struct {
	of   *hostCommand
	kind wire.Kind
}

func (o hostOutput) Write(data []byte) (int, error) {
	o.of.add(hostFrame{o.kind, slices.Clone(data)})
	return len(data), nil
}
