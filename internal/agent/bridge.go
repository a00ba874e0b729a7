//go:build linux

package agent

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/agent/spawn"
)

// socketConn is a connection to the socket of a container that lasts. Like stdio it blocks, which in gVisor costs less
// than a poller; shutting it down wakes who reads.
type socketConn struct{ stdio }

func newSocketConn(fd int) socketConn {
	file := os.NewFile(uintptr(fd), "agent-socket")
	return socketConn{stdio{in: file, out: file}}
}

// Close may be called twice.
func (c socketConn) Close() error {
	raw, err := c.in.SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
	}
	return c.in.Close()
}

// listen makes the socket, of which there may be one of an earlier life.
func listen(path string) (fd int, err error) {
	if fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return -1, fmt.Errorf("cannot make a socket: %w", err)
	}
	if err := unix.Unlink(path); err != nil && !errors.Is(err, unix.ENOENT) {
		return -1, fmt.Errorf("cannot make the socket: %w", err)
	}
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 16)); err != nil {
		return -1, fmt.Errorf("cannot listen at %s: %w", path, err)
	}
	return fd, nil
}

func accept(listener int) (socketConn, error) {
	for {
		fd, errno := spawn.Block(unix.SYS_ACCEPT4, uintptr(listener), 0, 0, unix.SOCK_CLOEXEC)
		switch errno {
		case 0:
			return newSocketConn(int(fd)), nil
		case unix.EINTR, unix.ECONNABORTED:
		default:
			return socketConn{}, fmt.Errorf("cannot accept connections: %w", errno)
		}
	}
}

// dialLasting waits for the first process to listen.
func dialLasting(path string) (socketConn, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return socketConn{}, fmt.Errorf("cannot make a socket: %w", err)
	}
	for begun := time.Now(); ; time.Sleep(time.Millisecond) {
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
		switch {
		case err == nil:
			return newSocketConn(fd), nil
		case errors.Is(err, unix.EINTR):
		case time.Since(begun) > watchLimit || !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.EAGAIN):
			return socketConn{}, errors.Join(fmt.Errorf("cannot connect to the container's first process: %w", err), unix.Close(fd))
		}
	}
}

// Bridge carries stdin and stdout to the first process of a container that lasts, and back, until either ends.
func Bridge(socket string) error {
	own, err := takeStdio()
	if err != nil {
		return err
	}
	if err := harden(); err != nil {
		return err
	}
	agent, err := dialLasting(socket)
	if err != nil {
		return err
	}
	ended := make(chan struct{}, 2)
	carry := func(to io.Writer, from io.Reader) {
		_, _ = io.CopyBuffer(onlyWriter{to}, onlyReader{from}, make([]byte, 64<<10))
		ended <- struct{}{}
	}
	go carry(agent, own)
	go carry(own, agent)
	<-ended
	return nil
}
