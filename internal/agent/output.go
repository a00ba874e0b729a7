//go:build linux

package agent

import (
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// output reads the pipe that a command prints to. One goroutine reads; another may end it.
//
// Normally it waits in the runtime's poller. A command that prints much is read in bulk: every
// write to a polled pipe wakes the poller, which in gVisor costs far more than the write, so the
// pipe is made large, taken out of the poller, and looked at every now and then.
type output struct {
	mu      sync.Mutex // covers what the two goroutines share: file and stopped
	file    *os.File   // in the poller; nil while reading in bulk
	stopped bool

	bulk    int       // the descriptor while reading in bulk
	ready   int       // bytes that the pipe held when it was last looked at, less what was read since
	hadData time.Time // when bulk reading last found something
	drained int       // bytes read after the stop
	ended   bool      // Read has seen the end of all writers, rather than been stopped

	taken atomic.Bool // something was read since the last call of moves
}

const (
	// maxPipe is the most that an unprivileged process can have in a pipe (pipe(7)).
	maxPipe = 1 << 20
	// bulkPause is how long a bulk reader lets the pipe fill before it looks again.
	bulkPause = time.Millisecond
	// bulkPatience is how long a bulk reader goes without data before it goes back to the poller.
	bulkPatience = 20 * time.Millisecond
)

// Read waits for data; after stopWaiting it takes only what is in the pipe. Any error is the end.
func (o *output) Read(p []byte) (int, error) {
	for {
		stopped := true
		if o.file == nil {
			stopped = o.fill()
		} else if n, err := o.file.Read(p); !errors.Is(err, os.ErrDeadlineExceeded) {
			o.ended = err == io.EOF
			o.taken.Store(true)
			return n, err
		}
		// A writer may still be there: the pipe's end was passed on to another command. So what
		// is read after the stop is bounded by what can have been in the pipe then.
		if o.drained > maxPipe {
			return 0, io.EOF
		}
		n, err := o.readNow(p)
		switch {
		case n > 0:
			o.ready -= n
			o.hadData = time.Now()
			o.taken.Store(true)
			if stopped {
				o.drained += n
			}
			return n, nil
		case err == nil:
			o.ended = true
			return 0, io.EOF
		case stopped && errors.Is(err, unix.EAGAIN):
			return 0, io.EOF
		case !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR):
			return 0, err
		case !stopped && time.Since(o.hadData) > bulkPatience:
			o.poll()
		}
	}
}

// readNow reads without waiting, even when the poller's deadline has passed.
func (o *output) readNow(p []byte) (n int, err error) {
	if o.file == nil {
		return unix.Read(o.bulk, p)
	}
	raw, err := o.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	closed := raw.Control(func(fd uintptr) { n, err = unix.Read(int(fd), p) })
	return n, errors.Join(closed, err)
}

// fill lets the pipe fill up, unless what it held has not been read yet. It reports whether
// stopWaiting was called: by then, all that counts has been written.
func (o *output) fill() (stopped bool) {
	if stopped = o.isStopped(); stopped || o.ready > 0 {
		return stopped
	}
	held := 0
	for held < maxPipe*3/4 {
		time.Sleep(bulkPause)
		now, err := unix.IoctlGetInt(o.bulk, unix.TIOCINQ)
		if err != nil || now == held {
			break
		}
		held = now
	}
	o.ready = held
	return o.isStopped()
}

// readInBulk takes the pipe out of the poller, if it is there, and closes the descriptor that was
// in it. If no descriptor is left for that, the pipe stays in the poller.
func (o *output) readInBulk() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.file == nil {
		return
	}
	raw, err := o.file.SyscallConn()
	if err != nil {
		return
	}
	bulk := -1
	_ = raw.Control(func(fd uintptr) { bulk, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 3) })
	if err != nil || bulk < 0 {
		return
	}
	_, _ = unix.FcntlInt(uintptr(bulk), unix.F_SETPIPE_SZ, maxPipe) // it is only slower without
	_ = o.file.Close()
	o.file, o.bulk, o.ready, o.hadData = nil, bulk, maxPipe, time.Now()
}

// poll puts the pipe back into the poller, unless stopWaiting was called.
func (o *output) poll() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.stopped {
		o.file = os.NewFile(uintptr(o.bulk), "pipe")
	}
}

func (o *output) isStopped() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.stopped
}

// stopWaiting makes Read end where it would wait for more.
func (o *output) stopWaiting() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stopped = true
	if o.file != nil {
		_ = o.file.SetReadDeadline(time.Unix(1, 0))
	}
}

// moves reports whether anything has been read since the last call, or can be read now.
func (o *output) moves() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.taken.Swap(false) {
		return true
	}
	held := 0
	if o.file == nil {
		held, _ = unix.IoctlGetInt(o.bulk, unix.TIOCINQ)
	} else if raw, err := o.file.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { held, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	}
	return held > 0
}

// discard drops all output until the last writer is gone, and closes the pipe. It is called when
// there is no reader any more.
func (o *output) discard() {
	if o.file == nil {
		o.file = os.NewFile(uintptr(o.bulk), "pipe")
	}
	_ = o.file.SetReadDeadline(time.Time{})
	_, _ = io.Copy(io.Discard, onlyReader{o.file})
	_ = o.file.Close()
}

// close closes the pipe. It is called when there is no reader any more.
func (o *output) close() {
	if o.file != nil {
		_ = o.file.Close()
	} else {
		_ = unix.Close(o.bulk)
	}
}
