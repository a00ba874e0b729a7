package guard

import (
	"context"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/egress/budget"
)

// poller serves TLS connections, all of them on one goroutine, which waits for what the kernel has to tell of
// any of them. A goroutine for each direction of each connection would be simpler to read. But to set up a
// connection is to wait four times and do a few microseconds of work each time, for which Go's scheduler does
// more work than the guard; and a connection that is idle would keep two stacks.
//
// Only the poller's goroutine touches its links and their descriptors. Others have it do something with post.
// Every descriptor is edge-triggered: an event says that there may be something to do, which is done until the
// kernel says that there is no more.
type poller struct {
	guard *Guard
	life  context.Context // the guard's
	file  *os.File        // an epoll descriptor, which Go's own poller watches
	ready syscall.RawConn // file's
	epoll int             // file's descriptor
	bell  int             // an eventfd, which post writes to
	// serial is of the last end; an event that was fetched before its descriptor was closed has an older one.
	serial   int32
	ends     map[int32]*end // by descriptor
	links    map[*link]bool
	timed    map[*link]bool // those with a deadline
	turns    turns
	pipes    *budget.Pool // those that are in use
	spare    []*pipe
	scratch  [64 << 10]byte // for what is read
	now      time.Time      // when the present round began
	ticking  bool
	stopping bool
	acceptor *acceptor // only one poller has it

	mu     sync.Mutex // for what follows
	posted []func()
	gone   bool
}

// tick is by how much a deadline may be late.
const tick = 50 * time.Millisecond

const allEvents = unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET

func newPoller(ctx context.Context, g *Guard) (_ *poller, err error) {
	p := &poller{
		guard: g, life: ctx, epoll: -1, bell: -1,
		ends: map[int32]*end{}, links: map[*link]bool{}, timed: map[*link]bool{},
		turns: turns{users: map[string]*turn{}}, pipes: budget.NewPool(pipesMost, 0),
	}
	defer func() {
		if err != nil {
			p.close()
			err = fmt.Errorf("cannot serve TLS connections: %w", err)
		}
	}()
	if p.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("epoll_create", err)
	}
	// A file that does not block is one that Go's poller waits for.
	if err := unix.SetNonblock(p.epoll, true); err != nil {
		_ = unix.Close(p.epoll)
		return nil, os.NewSyscallError("fcntl", err)
	}
	p.file = os.NewFile(uintptr(p.epoll), "epoll")
	if p.ready, err = p.file.SyscallConn(); err != nil {
		return nil, err
	}
	if p.bell, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	return p, p.watch(p.bell, 0, unix.EPOLLIN|unix.EPOLLET)
}

// watch has events told of a descriptor until it is closed. They carry serial.
func (p *poller) watch(fd int, serial int32, events uint32) error {
	event := unix.EpollEvent{Events: events, Fd: int32(fd), Pad: serial}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, fd, &event))
}

func (p *poller) close() {
	if p.acceptor != nil {
		_ = unix.Close(p.acceptor.socket)
	}
	if p.bell >= 0 {
		_ = unix.Close(p.bell)
	}
	if p.file != nil {
		_ = p.file.Close()
	}
	for _, one := range p.spare {
		one.close()
	}
}

// post has the poller's goroutine call do, soon. Any goroutine may call it. It reports false when the poller has
// ended: do is not called then.
func (p *poller) post(do func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone {
		return false
	}
	p.posted = append(p.posted, do)
	if len(p.posted) == 1 {
		_, _ = unix.Write(p.bell, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
	return true
}

// stop ends every connection, and then the poller.
func (p *poller) stop() {
	p.stopping = true
	for l := range p.links {
		l.reset()
	}
}

// run serves until stop, or until the poller's own descriptor fails.
func (p *poller) run() {
	defer p.leave()
	var events [128]unix.EpollEvent
	n := 0
	wait := func(uintptr) bool {
		n = rawEvents(p.epoll, events[:])
		return n > 0 || !p.turns.idle()
	}
	for !p.stopping {
		if err := p.ready.Read(wait); err != nil {
			p.guard.cfg.Logger.Error().Err(err).Msg("guard stopped serving TLS connections")
			return
		}
		p.now = time.Now()
		for _, event := range events[:n] {
			p.happened(event)
		}
		p.turns.round()
	}
}

func (p *poller) happened(event unix.EpollEvent) {
	if event.Fd == int32(p.bell) {
		var count [8]byte
		_, _ = rawRead(p.bell, count[:])
		p.doPosted(false)
		return
	}
	if p.acceptor != nil && event.Fd == int32(p.acceptor.socket) {
		p.acceptor.accept()
		return
	}
	// The descriptor may have been closed a moment ago, and be another's by now.
	if e := p.ends[event.Fd]; e != nil && e.serial == event.Pad {
		e.happened(event.Events)
	}
}

// doPosted does what was posted; at last nothing is posted any more.
func (p *poller) doPosted(last bool) {
	p.mu.Lock()
	posted := p.posted
	p.posted, p.gone = nil, last
	p.mu.Unlock()
	for _, do := range posted {
		do()
	}
}

func (p *poller) leave() {
	p.stop()
	p.doPosted(true)
	p.stop() // those that have begun
	p.close()
}

// join makes a socket one end of a link.
func (p *poller) join(l *link, e *end, fd int) error {
	p.serial++
	*e = end{link: l, fd: fd, serial: p.serial}
	p.ends[int32(fd)] = e
	return p.watch(fd, p.serial, allEvents)
}

// part closes an end's socket, if it has one.
func (p *poller) part(e *end, how func(fd int)) {
	if e.fd >= 0 {
		delete(p.ends, int32(e.fd))
		how(e.fd)
		e.fd = -1
	}
}

// within gives a link so much time for what it does next.
func (p *poller) within(l *link, limit time.Duration, late func(*link)) {
	l.until, l.late = p.now.Add(limit), late
	p.timed[l] = true
	p.startTicking()
}

// untimed lets a link take as long as it likes.
func (p *poller) untimed(l *link) { delete(p.timed, l) }

func (p *poller) startTicking() {
	if !p.ticking && len(p.timed) > 0 {
		p.ticking = true
		time.AfterFunc(tick, func() { p.post(p.sweep) })
	}
}

// sweep finds who is late.
func (p *poller) sweep() {
	p.ticking = false
	for l := range p.timed {
		if !p.now.Before(l.until) {
			delete(p.timed, l)
			l.late(l)
		}
	}
	p.startTicking()
}
