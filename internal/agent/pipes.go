//go:build linux

package agent

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// pipes are a command's three standard files: our ends, and the child's as plain descriptors, which
// must stay blocking. With a terminal they are all the same, but for a stdin that is /dev/null.
type pipes struct {
	stdin    *os.File   // nil when the command reads /dev/null
	outputs  [2]*output // the second is nil with a terminal
	child    [3]int
	terminal *os.File // nil for none
	devNull  int      // not ours to close
}

func openPipes(stdin bool, devNull int) (_ *pipes, err error) {
	p := &pipes{devNull: devNull, child: [3]int{devNull, -1, -1}}
	defer func() {
		if err != nil {
			p.closeChildEnds()
			p.close()
			err = fmt.Errorf("cannot open pipes: %w", err)
		}
	}()
	if stdin {
		p.child[0] = -1
		if p.child[0], p.stdin, err = pipe(0); err != nil {
			return nil, err
		}
	}
	for i := range p.outputs {
		var file *os.File
		if p.child[i+1], file, err = pipe(1); err != nil {
			return nil, err
		}
		p.outputs[i] = &output{file: file}
	}
	return p, nil
}

// pipe returns a pipe's end for the child (0: the reading, 1: the writing one) and the other as a
// file that does not block a thread.
func pipe(end int) (child int, ours *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return -1, nil, err
	}
	child, our := fds[end], fds[1-end]
	if err := unix.SetNonblock(our, true); err != nil {
		return -1, nil, errors.Join(err, unix.Close(child), unix.Close(our))
	}
	return child, os.NewFile(uintptr(our), "pipe"), nil
}

// closeChildEnds is called when the child has its ends. A terminal's end is kept until close:
// otherwise a command that closes its own for a while, and opens /dev/tty again, would end our
// reading.
func (p *pipes) closeChildEnds() {
	if p.terminal != nil {
		return
	}
	for i, fd := range p.child {
		if fd >= 0 && fd != p.devNull {
			_ = unix.Close(fd)
		}
		p.child[i] = -1
	}
}

// withoutStdin is for a command that reads /dev/null though it was given a pipe.
func (p *pipes) withoutStdin() {
	_ = p.stdin.Close()
	p.stdin = nil
}

// stopWaiting makes the outputs end where they would wait for more.
func (p *pipes) stopWaiting() {
	for _, o := range p.outputs {
		if o != nil {
			o.stopWaiting()
		}
	}
}

// close closes our ends. stdin is closed by its writer, too; closing it twice does no harm.
func (p *pipes) close() {
	if p.terminal != nil {
		_ = p.terminal.Close()
		if p.child[1] >= 0 {
			_ = unix.Close(p.child[1])
		}
	}
	if p.stdin != nil {
		_ = p.stdin.Close()
	}
	for _, o := range p.outputs {
		if o != nil {
			o.close()
		}
	}
}

// stdio is the session's connection: the files that were the agent's stdin and stdout.
type stdio struct{ in, out *os.File }

// takeStdio moves stdin and stdout to descriptors that no command inherits, and leaves /dev/null
// in their place.
func takeStdio() (net.Conn, error) {
	var s stdio
	for fd, file := range []**os.File{&s.in, &s.out} {
		moved, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return nil, fmt.Errorf("cannot take over descriptor %d: %w", fd, err)
		}
		null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("cannot open %s: %w", os.DevNull, err)
		}
		if err := errors.Join(unix.Dup3(null, fd, 0), unix.Close(null)); err != nil {
			return nil, fmt.Errorf("cannot replace descriptor %d: %w", fd, err)
		}
		if fd == 0 { // in the poller, so that the thread that reads it also goes on with what has come
			if err := unix.SetNonblock(moved, true); err != nil {
				return nil, fmt.Errorf("cannot use descriptor %d: %w", fd, err)
			}
		}
		*file = os.NewFile(uintptr(moved), [...]string{"session-in", "session-out"}[fd])
	}
	return s, nil
}

func (s stdio) Read(p []byte) (int, error)  { return s.in.Read(p) }
func (s stdio) Write(p []byte) (int, error) { return s.out.Write(p) }
func (s stdio) Close() error                { return errors.Join(s.in.Close(), s.out.Close()) }

// The session has no deadlines: a write waits for the service to read, and a service that is gone
// closes both files.
func (s stdio) SetDeadline(time.Time) error      { return nil }
func (s stdio) SetReadDeadline(time.Time) error  { return nil }
func (s stdio) SetWriteDeadline(time.Time) error { return nil }
func (s stdio) LocalAddr() net.Addr              { return stdioAddr{} }
func (s stdio) RemoteAddr() net.Addr             { return stdioAddr{} }

type stdioAddr struct{}

func (stdioAddr) Network() string { return "stdio" }
func (stdioAddr) String() string  { return "stdio" }

// onlyReader and onlyWriter hide the methods with which io.Copy would splice: here that gains
// nothing, and in gVisor it costs a call that fails.
type onlyReader struct{ io.Reader }
type onlyWriter struct{ io.Writer }
