package poller

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/budget"
)

type fakeHandler struct {
	user string
	step func()
}

func (h *fakeHandler) User() string { return h.user }
func (h *fakeHandler) Step()        { h.step() }
func (h *fakeHandler) Reset()       {}

// TestAStreamHasItsTurn: one that always has more to move stops, and says that it could go on.
func TestAStreamHasItsTurn(t *testing.T) {
	open := func(path string, how int) int {
		t.Helper()
		fd, err := unix.Open(path, how|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		return fd
	}
	l := &Loop{pipes: budget.NewPool(pipesMost, 0)}
	session := &Session{handler: &fakeHandler{}}
	s := &stream{
		from: &Socket{session: session, fd: open("/dev/zero", unix.O_RDONLY), readable: true},
		to:   &Socket{session: session, fd: open("/dev/null", unix.O_WRONLY), writable: true},
	}
	moved, more, err := l.move(s)
	if !moved || !more || err != nil {
		t.Errorf("moved %t, more %t, %v", moved, more, err)
	}
	l.returnPipe(s)
	for _, one := range l.spare {
		one.close()
	}
}

// An event of a descriptor that was closed meanwhile is not taken for its successor's.
func TestEventsOfOthers(t *testing.T) {
	l := &Loop{wakeup: -1, schedule: scheduler{users: map[string]*queue{}}}
	h := &fakeHandler{step: func() { t.Error("taken for its own") }}
	s := &Socket{session: &Session{loop: l, handler: h}, fd: 7, serial: 2}
	l.sockets = map[int32]*Socket{7: s}
	l.handle(unix.EpollEvent{Fd: 7, Pad: 1, Events: unix.EPOLLIN})
	if s.readable {
		t.Error("it is readable")
	}
	stepped := false
	h.step = func() { stepped = true }
	l.handle(unix.EpollEvent{Fd: 7, Pad: 2, Events: unix.EPOLLIN})
	l.schedule.round()
	if !s.readable || s.writable || !stepped {
		t.Error("its own event was lost")
	}
}
