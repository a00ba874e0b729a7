package api

import (
	"errors"
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// Listener makes downloads fast over a Unix socket: the kernel copies a file's bytes into the
// socket directly. net/http does that only for connections that it knows to be TCP.
func Listener(l net.Listener) net.Listener { return listener{l} }

type listener struct{ net.Listener }

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if u, ok := c.(*net.UnixConn); ok && err == nil {
		return &conn{UnixConn: u}, nil
	}
	return c, err
}

type conn struct{ *net.UnixConn }

// ReadFrom implements io.ReaderFrom, which net/http looks for. It hides UnixConn's ReadFrom, which
// is for datagrams.
func (c *conn) ReadFrom(from io.Reader) (int64, error) {
	sent, err := c.sendFile(from)
	if err != nil {
		return sent, err
	}
	// The rest: everything if the kernel cannot do it, and nothing at the end of a file.
	n, err := io.Copy(struct{ io.Writer }{c.UnixConn}, from)
	return sent + n, err
}

// sendChunk bounds one system call, so that a deadline is noticed in time.
const sendChunk = 4 << 20

// sendFile sends as much of a file as it can. It stops at the end of the file, at the limit, and
// where the kernel does not support it.
func (c *conn) sendFile(from io.Reader) (sent int64, err error) {
	limited, ok := from.(*io.LimitedReader)
	if !ok {
		return 0, nil
	}
	file, ok := limited.R.(syscall.Conn)
	if !ok {
		return 0, nil
	}
	in, err := file.SyscallConn()
	if err != nil {
		return 0, err
	}
	out, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed, fail error
	fault := in.Control(func(source uintptr) {
		failed = out.Write(func(socket uintptr) bool {
			for limited.N > 0 {
				n, err := unix.Sendfile(int(socket), int(source), nil,
					int(min(limited.N, sendChunk)))
				switch {
				case n > 0:
					sent += int64(n)
					limited.N -= int64(n)
				case errors.Is(err, unix.EAGAIN):
					return false
				case errors.Is(err, unix.EINTR):
				case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
					return true // not supported for this file
				default:
					fail = err
					return true
				}
			}
			return true
		})
	})
	return sent, errors.Join(fault, failed, fail)
}
