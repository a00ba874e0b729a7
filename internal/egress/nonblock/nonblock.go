// Package nonblock makes system calls on sockets and pipes that never block, without Go's scheduler being told of them. In
// a process that was idle, telling it would wake its monitor, a thread that then looks after the call every 20 µs: on
// a small machine that costs a connection as much as all else that the guard does. A descriptor that can block must
// never be passed to this package: the call would hold up a thread of Go's without its knowing.
package nonblock

import (
	"encoding/binary"
	"net"
	"net/netip"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Again is the error of a call that would have to wait.
const Again = unix.EAGAIN

// Read reads what has arrived.
func Read(fd int, p []byte) (int, error) {
	return again(func() (uintptr, uintptr, syscall.Errno) {
		return unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
	})
}

// Send sends as much as the kernel takes.
func Send(fd int, p []byte) (int, error) {
	return again(func() (uintptr, uintptr, syscall.Errno) {
		return unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), unix.MSG_NOSIGNAL, 0, 0)
	})
}

// Peek reads what has arrived and leaves it there.
func Peek(fd int, p []byte) (int, error) {
	return again(func() (uintptr, uintptr, syscall.Errno) {
		return unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), unix.MSG_PEEK, 0, 0)
	})
}

// Skip discards n bytes that have arrived.
func Skip(fd, n int) error {
	_, err := again(func() (uintptr, uintptr, syscall.Errno) {
		return unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), 0, uintptr(n), unix.MSG_TRUNC, 0, 0)
	})
	return err
}

// Splice moves bytes between a socket and a pipe.
func Splice(from, to, most int) (int, error) {
	return again(func() (uintptr, uintptr, syscall.Errno) {
		return unix.RawSyscall6(unix.SYS_SPLICE, uintptr(from), 0, uintptr(to), 0, uintptr(most), unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
	})
}

// Accept accepts an IPv4 connection, as a socket that does not block.
func Accept(listener int) (fd int, peer netip.Addr, err error) {
	var from unix.RawSockaddrInet4
	size := uint32(unix.SizeofSockaddrInet4)
	fd, err = again(func() (uintptr, uintptr, syscall.Errno) {
		return unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(listener), uintptr(unsafe.Pointer(&from)), uintptr(unsafe.Pointer(&size)), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0, 0)
	})
	if from.Family == unix.AF_INET {
		peer = netip.AddrFrom4(from.Addr)
	}
	return fd, peer, err
}

// Connect begins to connect to an IPv4 address; the error is unix.EINPROGRESS where that takes time.
func Connect(fd int, to netip.AddrPort) error {
	addr := unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: to.Addr().As4()}
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&addr.Port))[:], to.Port())
	_, _, errno := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&addr)), unix.SizeofSockaddrInet4)
	if errno != 0 {
		return errno
	}
	return nil
}

// Error returns a socket's pending error, once.
func Error(fd int) error {
	var failed int32
	if err := get(fd, unix.SOL_SOCKET, unix.SO_ERROR, unsafe.Pointer(&failed), unsafe.Sizeof(failed)); err != nil {
		return err
	}
	if failed != 0 {
		return syscall.Errno(failed)
	}
	return nil
}

func get(fd, level, option int, value unsafe.Pointer, size uintptr) error {
	length := uint32(size)
	_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option), uintptr(value), uintptr(unsafe.Pointer(&length)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// SetInt sets an option. Where the kernel refuses it the socket works all the same.
func SetInt(fd, level, option int, value int32) {
	_, _, _ = unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option), uintptr(unsafe.Pointer(&value)), unsafe.Sizeof(value), 0)
}

// Shutdown ends one half of a connection, or both.
func Shutdown(fd, how int) {
	_, _, _ = unix.RawSyscall(unix.SYS_SHUTDOWN, uintptr(fd), uintptr(how), 0)
}

// Close closes a descriptor.
func Close(fd int) {
	_, _, _ = unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0)
}

// DelayAck makes a socket that is about to connect send the last packet of TCP's handshake together with its first
// bytes: so the server is woken once, and not before there is anything to read.
func DelayAck(fd int) { SetInt(fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK, 0) }

// Reset closes a socket and discards what is still to be sent: the peer gets a reset.
func Reset(fd int) {
	now := unix.Linger{Onoff: 1}
	_, _, _ = unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_LINGER, uintptr(unsafe.Pointer(&now)), unsafe.Sizeof(now), 0)
	Close(fd)
}

// KeepAliveConfig finds peers that are gone, in about two minutes: nothing else ends an idle connection.
var KeepAliveConfig = net.KeepAliveConfig{Enable: true, Idle: time.Minute, Interval: 15 * time.Second, Count: 4}

// KeepAlive turns keep-alive packets on, as KeepAliveConfig says.
func KeepAlive(fd int) {
	with := KeepAliveConfig
	SetInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
	SetInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int32(with.Idle/time.Second))
	SetInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int32(with.Interval/time.Second))
	SetInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, int32(with.Count))
}

// Events fetches the pending events of an epoll descriptor and returns how many there are.
func Events(poll int, events []unix.EpollEvent) int {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(poll), uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), 0, 0, 0)
	if errno != 0 {
		return 0
	}
	return int(n)
}

// again repeats a call that a signal has interrupted.
func again(call func() (uintptr, uintptr, syscall.Errno)) (int, error) {
	for {
		switch n, _, errno := call(); errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

// Local returns the IPv4 address that a connection was made to, or the zero Addr if that is unknown.
func Local(fd int) netip.Addr {
	if at, err := unix.Getsockname(fd); err == nil {
		if four, is := at.(*unix.SockaddrInet4); is {
			return netip.AddrFrom4(four.Addr)
		}
	}
	return netip.Addr{}
}
