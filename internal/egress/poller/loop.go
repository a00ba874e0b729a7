package poller

import (
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/budget"
	"github.com/daycare-run/sandbox/internal/egress/nonblock"
)

// Loop serves sessions on the goroutine that calls Run. Its other methods, except Post, are for that goroutine.
//
// Descriptors are edge-triggered: an event says that there may be something to do, which is done until the kernel says
// that there is no more.
type Loop struct {
	file   *os.File        // an epoll descriptor, which Go's own poller watches
	ready  syscall.RawConn // file's
	epoll  int             // file's descriptor
	wakeup int             // an eventfd, which Post writes to
	// serial is the last socket's; an event that was fetched before its descriptor was closed has an older one.
	serial   int32
	sockets  map[int32]*Socket // by descriptor
	sessions map[*Session]bool
	timed    map[*Session]bool // those with a deadline
	schedule scheduler
	pipes    *budget.Pool // counts those in use
	spare    []*pipe
	scratch  [64 << 10]byte
	now      time.Time // when the present round began
	ticking  bool
	stopping bool
	listener *listener // only one loop has it

	mu     sync.Mutex // for what follows
	posted []func()
	gone   bool
}

// New returns a loop that serves once it runs. A loop that never runs has to be closed.
func New() (_ *Loop, err error) {
	l := &Loop{
		epoll: -1, wakeup: -1,
		sockets: map[int32]*Socket{}, sessions: map[*Session]bool{}, timed: map[*Session]bool{},
		schedule: scheduler{users: map[string]*queue{}}, pipes: budget.NewPool(pipesMost, 0),
	}
	defer func() {
		if err != nil {
			l.Close()
			err = fmt.Errorf("cannot make a poller: %w", err)
		}
	}()
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("epoll_create", err)
	}
	// Go's poller waits for a file only if it does not block.
	if err := unix.SetNonblock(l.epoll, true); err != nil {
		_ = unix.Close(l.epoll)
		return nil, os.NewSyscallError("fcntl", err)
	}
	l.file = os.NewFile(uintptr(l.epoll), "epoll")
	if l.ready, err = l.file.SyscallConn(); err != nil {
		return nil, err
	}
	if l.wakeup, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	return l, l.watch(l.wakeup, 0, unix.EPOLLIN|unix.EPOLLET)
}

// watch makes epoll report the events of a descriptor, with its serial, until it is closed.
func (l *Loop) watch(fd int, serial int32, events uint32) error {
	event := unix.EpollEvent{Events: events, Fd: int32(fd), Pad: serial}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &event))
}

// Close releases what a loop has. The loop must not be running.
func (l *Loop) Close() {
	if l.listener != nil {
		_ = unix.Close(l.listener.socket)
	}
	if l.wakeup >= 0 {
		_ = unix.Close(l.wakeup)
	}
	if l.file != nil {
		_ = l.file.Close()
	}
	for _, one := range l.spare {
		one.close()
	}
}

// Post makes the loop's goroutine call do, soon. Any goroutine may call it. It reports false if the loop has ended: do
// is not called then.
func (l *Loop) Post(do func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone {
		return false
	}
	l.posted = append(l.posted, do)
	if len(l.posted) == 1 {
		_, _ = unix.Write(l.wakeup, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
	return true
}

// Stop resets every session and ends the loop.
func (l *Loop) Stop() {
	l.stopping = true
	for s := range l.sessions {
		s.handler.Reset()
	}
}

// Now returns when the present round began.
func (l *Loop) Now() time.Time { return l.now }

// Scratch returns a buffer that may be used until the handler returns.
func (l *Loop) Scratch() []byte { return l.scratch[:] }

// Sessions returns the sessions that have begun and not ended.
func (l *Loop) Sessions() map[*Session]bool { return l.sessions }

// Run serves until Stop, and then releases everything. The error is that of the loop's own descriptor.
func (l *Loop) Run() error {
	defer l.end()
	var events [128]unix.EpollEvent
	n := 0
	wait := func(uintptr) bool {
		n = nonblock.Events(l.epoll, events[:])
		return n > 0 || !l.schedule.idle()
	}
	for !l.stopping {
		if err := l.ready.Read(wait); err != nil {
			return err
		}
		l.now = time.Now()
		for _, event := range events[:n] {
			l.handle(event)
		}
		l.schedule.round()
	}
	return nil
}

func (l *Loop) handle(event unix.EpollEvent) {
	if event.Fd == int32(l.wakeup) {
		var count [8]byte
		_, _ = nonblock.Read(l.wakeup, count[:])
		l.doPosted(false)
		return
	}
	if l.listener != nil && event.Fd == int32(l.listener.socket) {
		l.listener.accept()
		return
	}
	// The descriptor may have been closed a moment ago, and be another's by now.
	if s := l.sockets[event.Fd]; s != nil && s.serial == event.Pad {
		s.handle(event.Events)
	}
}

// doPosted calls what was posted. After the last time nothing can be posted any more.
func (l *Loop) doPosted(last bool) {
	l.mu.Lock()
	posted := l.posted
	l.posted, l.gone = nil, last
	l.mu.Unlock()
	for _, do := range posted {
		do()
	}
}

func (l *Loop) end() {
	l.Stop()
	l.doPosted(true)
	l.Stop() // those that have begun meanwhile
	l.Close()
}

func (l *Loop) startTicking() {
	if !l.ticking && len(l.timed) > 0 {
		l.ticking = true
		time.AfterFunc(tick, func() { l.Post(l.expire) })
	}
}

// expire calls late, or resets the session, for deadlines that have passed.
func (l *Loop) expire() {
	l.ticking = false
	for s := range l.timed {
		if !l.now.Before(s.deadline) {
			delete(l.timed, s)
			if s.late != nil {
				s.late()
			} else {
				s.handler.Reset()
			}
		}
	}
	l.startTicking()
}
