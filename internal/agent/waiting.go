//go:build linux

package agent

import (
	"encoding/binary"
	"errors"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/agent/spawn"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// waitingShell is a shell that waits, or will when it has started. The other end of its socket is its own alone. The
// socket blocks: in the runtime's poller it would wake the agent while the command begins.
type waitingShell struct {
	hurry   chan struct{} // closed when a command begins, which limits its start
	started chan struct{} // closed when it has started, or could not
	// Valid once started is closed; root is nil where it could not.
	root   *rootProcess
	pipes  *pipes
	socket int
	ready  chan struct{} // closed when it waits, or never will
	waits  bool          // valid once ready is closed
}

// await reports whether the shell waits for a command; one that has only begun to start does as soon as another would.
// Its start is limited from here on, because a timer that is set when it starts wakes gVisor's kernel at the end of that
// limit, for a shell that has waited since.
func (s *waitingShell) await() bool {
	select {
	case <-s.ready:
		return s.waits
	case <-time.After(spawn.StartLimit):
		return false
	}
}

// hand gives the shell its command. It blocks until all of it has been received; an error means that it was not.
func (s *waitingShell) hand(start wire.Start, p spawn.Process) error {
	for request := encodeRequest(start, p); len(request) > 0; {
		n, err := unix.SendmsgN(s.socket, request, nil, nil, unix.MSG_NOSIGNAL)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		request = request[max(n, 0):]
	}
	return nil
}

// encodeRequest is a request as sandbox-image/ahead.c has it.
func encodeRequest(start wire.Start, p spawn.Process) []byte {
	request := make([]byte, 4, 8<<10)
	put := func(texts ...string) {
		for _, text := range texts {
			request = append(append(request, text...), 0)
		}
	}
	if start.Stdin {
		put("pipe", p.Dir)
	} else {
		put("null", p.Dir)
	}
	put(start.Shell)
	put(p.Env...)
	binary.LittleEndian.PutUint32(request, uint32(len(request)-4))
	return request
}

// failure is why a shell that has exited could not begin its command, or nil.
func (s *waitingShell) failure() error {
	var answer [8]byte
	if !s.receive(answer[:]) {
		return nil
	}
	return &spawn.Error{Stage: spawn.Stage(binary.LittleEndian.Uint32(answer[:])), Errno: syscall.Errno(binary.LittleEndian.Uint32(answer[4:]))}
}

// receive reports whether the shell has said so much. What it says comes at once.
func (s *waitingShell) receive(answer []byte) bool {
	for {
		n, errno := spawn.Block(unix.SYS_READ, uintptr(s.socket), uintptr(unsafe.Pointer(&answer[0])), uintptr(len(answer)), 0)
		if errno != unix.EINTR {
			return errno == 0 && n == uintptr(len(answer))
		}
	}
}

// discard ends a shell that has no command. One that has not started yet ends when it has, or when that takes too long.
func (s *waitingShell) discard(tree *processTree) {
	select {
	case <-s.started:
		s.kill(tree)
	default:
	}
	go func() {
		<-s.started
		s.kill(tree)
		<-s.ready // those that wait for it to be ready still read
		s.close()
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
