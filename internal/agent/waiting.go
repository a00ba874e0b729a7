//go:build linux

package agent

import (
	"context"
	"encoding/binary"
	"errors"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/agent/spawn"
)

// waitingShell is a shell that waits for a command, or will when it has started. It alone has the
// other end of its socket. Our end blocks: in the runtime's poller it would wake the agent while
// the command begins.
type waitingShell struct {
	starting context.Context // for its start; without a limit, whose timer would wake gVisor's kernel when the shell waits
	giveUp   context.CancelFunc
	started  chan struct{} // closed when it has started, or could not
	// Valid once started is closed; root is nil if the shell could not start.
	root   *rootProcess
	pipes  *pipes
	socket int
	ready  chan struct{} // closed when it waits, or never will
	waits  bool          // valid once ready is closed
}

func newWaitingShell() *waitingShell {
	s := &waitingShell{started: make(chan struct{}), ready: make(chan struct{})}
	s.starting, s.giveUp = context.WithCancel(context.Background())
	return s
}

// awaitLimit is how long a command waits for a shell that is still starting, before it gets a
// process of its own. Tests set more.
var awaitLimit = 5 * time.Second

// await reports whether the shell waits for a command, as soon as that is known. It gives up after
// awaitLimit or with ctx.
func (s *waitingShell) await(ctx context.Context) bool {
	select {
	case <-s.ready:
		return s.waits
	default:
	}
	select {
	case <-s.ready:
		return s.waits
	case <-time.After(awaitLimit):
		return false
	case <-ctx.Done():
		return false
	}
}

// hand sends the shell its command. It blocks until all of it has been taken; an error means that
// it was not, or that ctx has ended.
func (s *waitingShell) hand(ctx context.Context, p spawn.Process, stdin bool) error {
	return s.within(ctx, func() error { return s.send(p, stdin) })
}

// handOver is like hand, but returns when the command begins. A *spawn.Error says that the command
// could not begin.
func (s *waitingShell) handOver(ctx context.Context, p spawn.Process, stdin bool) error {
	return s.within(ctx, func() error {
		if err := s.send(p, stdin); err != nil {
			return err
		}
		return s.failure()
	})
}

// within calls do. A shell that is stopped, or is another program by now, may take no longer than a
// start, which ctx limits.
func (s *waitingShell) within(ctx context.Context, do func() error) error {
	expired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(expired)
		_ = unix.Shutdown(s.socket, unix.SHUT_RDWR)
	})
	err := do()
	if !stop() {
		<-expired
		return &spawn.Error{Stage: spawn.StageExec, Errno: syscall.ETIME}
	}
	return err
}

func (s *waitingShell) send(p spawn.Process, stdin bool) error {
	for request := encodeRequest(p, stdin); len(request) > 0; {
		n, err := unix.SendmsgN(s.socket, request, nil, nil, unix.MSG_NOSIGNAL)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		request = request[max(n, 0):]
	}
	return nil
}

// encodeRequest returns a request in the form that sandbox-image/ahead.c reads.
func encodeRequest(p spawn.Process, stdin bool) []byte {
	text, login, _ := lineOf(p)
	from, how := "null", ""
	if stdin {
		from = "pipe"
	}
	if login {
		how = "login"
	}
	request := make([]byte, 4, 8<<10)
	put := func(texts ...string) {
		for _, text := range texts {
			request = append(append(request, text...), 0)
		}
	}
	put(from, how, p.Dir, text)
	put(p.Env...)
	binary.LittleEndian.PutUint32(request, uint32(len(request)-4))
	return request
}

// failure returns why a shell could not begin its command, or nil. It blocks until the shell has
// answered or closed its end.
func (s *waitingShell) failure() error {
	var answer [8]byte
	if !s.receive(answer[:]) {
		return nil
	}
	stage := spawn.StagePrepare
	if binary.LittleEndian.Uint32(answer[:]) == uint32(spawn.StageDir) {
		stage = spawn.StageDir
	}
	return &spawn.Error{Stage: stage, Errno: syscall.Errno(binary.LittleEndian.Uint32(answer[4:]))}
}

// receive reports whether the shell has sent a whole answer, which comes in one piece.
func (s *waitingShell) receive(answer []byte) bool {
	for {
		n, errno := spawn.Block(unix.SYS_READ, uintptr(s.socket),
			uintptr(unsafe.Pointer(&answer[0])), uintptr(len(answer)), 0)
		if errno != unix.EINTR {
			return errno == 0 && n == uintptr(len(answer))
		}
	}
}

// discard ends a shell that has no command.
func (s *waitingShell) discard(tree *processTree) {
	s.giveUp()
	select {
	case <-s.started:
		s.kill(tree)
	default:
	}
	go func() {
		<-s.started
		s.kill(tree)
		if s.root != nil { // ends the read, whoever has the other end
			_ = unix.Shutdown(s.socket, unix.SHUT_RDWR)
		}
		<-s.ready // until then run may be reading from the socket
		s.close()
		if s.root != nil {
			<-s.root.exited
			_ = tree.sweep(s.root)
		}
	}()
}

func (s *waitingShell) kill(tree *processTree) {
	if s.root != nil {
		tree.signal(s.root, unix.SIGKILL, false)
	}
}

func (s *waitingShell) close() {
	if s.root != nil {
		s.pipes.close()
		_ = unix.Close(s.socket)
	}
}
