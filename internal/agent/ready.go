//go:build linux

package agent

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// checks finds out, again and again, whether a durable process's command is ready.
type checks struct {
	ready launch.Ready
	start launch.Command // runs the check's shell command line
	uid   uint32         // the user that runs it
	tree  *processTree
}

// startChecks starts the checks, and sends each change of their result on found. end stops them and
// returns when nothing of them runs any more. Without a launch.Ready there are no checks.
func startChecks(l launch.Launch, uid uint32,
	tree *processTree) (found <-chan launch.Readiness, end func()) {
	if l.Ready == nil {
		return nil, func() {}
	}
	c := checks{ready: *l.Ready, uid: uid, tree: tree,
		start: launch.Command{Process: specs.Process{Cwd: l.Cwd, Env: l.Env},
			Shell: l.Ready.Command}}
	ctx, cancel := context.WithCancel(context.Background())
	changes, ended := make(chan launch.Readiness), make(chan struct{})
	go func() {
		defer close(ended)
		c.run(ctx, changes)
	}()
	return changes, func() { cancel(); <-ended }
}

func (c checks) run(ctx context.Context, changes chan<- launch.Readiness) {
	last := launch.Readiness{Message: "not checked yet"}
	next := time.NewTicker(time.Duration(c.ready.IntervalMs) * time.Millisecond)
	defer next.Stop()
	for ctx.Err() == nil {
		now := launch.Readiness{OK: true, Since: last.Since}
		if err := c.check(ctx); err != nil {
			now.OK, now.Message = false, err.Error()
		}
		if now.OK != last.OK || now.Since.IsZero() {
			now.Since = time.Now().UTC()
		}
		if now != last {
			select {
			case changes <- now:
				last = now
			case <-ctx.Done():
			}
		}
		select {
		case <-next.C:
		case <-ctx.Done():
		}
	}
}

// check makes one check; its error says why the command is not ready.
func (c checks) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Duration(c.ready.TimeoutMs)*time.Millisecond,
		fmt.Errorf("the check took longer than %d ms", c.ready.TimeoutMs))
	defer cancel()
	if c.ready.Port != 0 {
		conn, err := dialLoopback(ctx, c.ready.Port)
		if err != nil {
			return err
		}
		return conn.Close()
	}
	return c.shell(ctx)
}

// shell runs the check's command line. Only if that takes too long is its whole process group
// killed. Whatever else it leaves running ends with the container.
func (c checks) shell(ctx context.Context) error {
	p, fault := prepare(c.start, c.uid)
	if fault.Fault != wire.FaultNone {
		return fmt.Errorf("cannot run the check: %s", fault.Message)
	}
	null, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot run the check: %w", err)
	}
	defer unix.Close(null)
	end, file, err := pipe(1)
	if err != nil {
		return fmt.Errorf("cannot run the check: %w", err)
	}
	printed := &output{file: file}
	defer printed.close()
	p.Files = []int{null, end, end}
	root, err := c.tree.start(ctx, p)
	_ = unix.Close(end)
	switch {
	case ctx.Err() != nil && err != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("cannot run the check: %w", err)
	}
	said := make(chan string, 1)
	go func() { said <- lastLine(printed) }()
	select {
	case <-root.exited:
	case <-ctx.Done():
		c.tree.signal(root, unix.SIGKILL, true)
		c.tree.signal(root, unix.SIGKILL, false) // it may have left its group
		<-root.exited
		printed.stopWaiting()
		<-said
		return context.Cause(ctx)
	}
	printed.stopWaiting()
	line := <-said
	if root.status.Exited() && root.status.ExitStatus() == 0 {
		return nil
	}
	_, code := ended(launch.State{}, root.status)
	if line == "" {
		return fmt.Errorf("the check ended with code %d", code)
	}
	return fmt.Errorf("the check ended with code %d: %s", code, line)
}

// lastLine reads to the end and returns the last line that is not blank, or the end of a long one.
func lastLine(from io.Reader) string {
	var kept []byte
	buffer := make([]byte, 4<<10)
	for {
		n, err := from.Read(buffer)
		kept = append(kept, buffer[:n]...)
		kept = kept[max(0, len(kept)-len(buffer)):]
		if err != nil {
			break
		}
	}
	kept = bytes.TrimSpace(kept)
	return string(kept[bytes.LastIndexByte(kept, '\n')+1:])
}

// dialLoopback connects to a TCP port of the container's own loopback, over IPv4 or else over IPv6.
func dialLoopback(ctx context.Context, port int) (*net.TCPConn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		other, otherErr := d.DialContext(ctx, "tcp6", net.JoinHostPort("::1", strconv.Itoa(port)))
		if otherErr != nil {
			return nil, err // the IPv6 error says the same, or that there is no IPv6
		}
		conn = other
	}
	return conn.(*net.TCPConn), nil
}
