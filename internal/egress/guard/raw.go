package guard

import (
	"encoding/binary"
	"net/netip"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// These are system calls on descriptors that never block, and so they are made without a word to Go's
// scheduler. In a process that was idle a word would wake its monitor, a thread that then looks after the
// call every 20 µs: on a small machine that costs a connection as much as all else that the guard does.

func rawRead(fd int, p []byte) (int, error) {
	return again(func() (uintptr, uintptr, syscall.Errno) {
		return unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
	})
}

func rawSend(fd int, p []byte) (int, error) {
	return again(func() (uintptr, uintptr, syscall.Errno) {
		return unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), unix.MSG_NOSIGNAL, 0, 0)
	})
}

// rawPeek reads what stays to be read.
func rawPeek(fd int, p []byte) (int, error) {
	return again(func() (uintptr, uintptr, syscall.Errno) {
		return unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), unix.MSG_PEEK, 0, 0)
	})
}

// rawSkip throws n bytes away that are there to be read.
func rawSkip(fd, n int) error {
	_, err := again(func() (uintptr, uintptr, syscall.Errno) {
		return unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), 0, uintptr(n), unix.MSG_TRUNC, 0, 0)
	})
	return err
}

func rawSplice(from, to, most int) (int, error) {
	return again(func() (uintptr, uintptr, syscall.Errno) {
		return unix.RawSyscall6(unix.SYS_SPLICE, uintptr(from), 0, uintptr(to), 0, uintptr(most), unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
	})
}

func rawAccept(listener int) (fd int, peer netip.AddrPort, err error) {
	var from unix.RawSockaddrAny
	size := uint32(unix.SizeofSockaddrAny)
	fd, err = again(func() (uintptr, uintptr, syscall.Errno) {
		return unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(listener), uintptr(unsafe.Pointer(&from)), uintptr(unsafe.Pointer(&size)), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0, 0)
	})
	return fd, addrPort(&from), err
}

func rawConnect(fd int, to netip.AddrPort) error {
	addr, size := sockaddr(to)
	_, _, errno := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&addr)), size)
	if errno != 0 {
		return errno
	}
	return nil
}

// rawError is what a socket has to say of its connection, once.
func rawError(fd int) error {
	var failed int32
	if err := rawGet(fd, unix.SOL_SOCKET, unix.SO_ERROR, unsafe.Pointer(&failed), unsafe.Sizeof(failed)); err != nil {
		return err
	}
	if failed != 0 {
		return syscall.Errno(failed)
	}
	return nil
}

func rawGet(fd, level, option int, value unsafe.Pointer, size uintptr) error {
	length := uint32(size)
	_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option), uintptr(value), uintptr(unsafe.Pointer(&length)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func rawSetInt(fd, level, option int, value int32) {
	_, _, _ = unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option), uintptr(unsafe.Pointer(&value)), unsafe.Sizeof(value), 0)
}

func rawShutdown(fd, how int) {
	_, _, _ = unix.RawSyscall(unix.SYS_SHUTDOWN, uintptr(fd), uintptr(how), 0)
}

func rawClose(fd int) {
	_, _, _ = unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0)
}

// speakFirst has a socket send the last packet of TCP's handshake together with the first words, which we
// have already: so the server is woken once, and not a moment before there is anything to read. Where it is
// refused, there is one packet more.
func speakFirst(fd int) { rawSetInt(fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK, 0) }

// rawReset closes a socket and throws away what is still to be sent: the peer is told that it was cut off.
func rawReset(fd int) {
	now := unix.Linger{Onoff: 1}
	_, _, _ = unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_LINGER, uintptr(unsafe.Pointer(&now)), unsafe.Sizeof(now), 0)
	rawClose(fd)
}

// localAddr is a socket's own address.
func localAddr(fd int) netip.AddrPort {
	var here unix.RawSockaddrAny
	size := uint32(unix.SizeofSockaddrAny)
	_, _, _ = unix.RawSyscall(unix.SYS_GETSOCKNAME, uintptr(fd), uintptr(unsafe.Pointer(&here)), uintptr(unsafe.Pointer(&size)))
	return addrPort(&here)
}

// rawKeepAlive turns keepAlive on.
func rawKeepAlive(fd int) {
	rawSetInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
	rawSetInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int32(keepAlive.Idle/time.Second))
	rawSetInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int32(keepAlive.Interval/time.Second))
	rawSetInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, int32(keepAlive.Count))
}

// rawEvents takes the events that are there.
func rawEvents(poll int, events []unix.EpollEvent) int {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(poll), uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), 0, 0, 0)
	if errno != 0 {
		return 0
	}
	return int(n)
}

// again makes a call until no signal interrupts it.
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

func sockaddr(to netip.AddrPort) (raw unix.RawSockaddrAny, size uintptr) {
	var port [2]byte
	binary.BigEndian.PutUint16(port[:], to.Port())
	if to.Addr().Is4() {
		in := (*unix.RawSockaddrInet4)(unsafe.Pointer(&raw))
		in.Family, in.Port, in.Addr = unix.AF_INET, binary.NativeEndian.Uint16(port[:]), to.Addr().As4()
		return raw, unix.SizeofSockaddrInet4
	}
	in := (*unix.RawSockaddrInet6)(unsafe.Pointer(&raw))
	in.Family, in.Port, in.Addr = unix.AF_INET6, binary.NativeEndian.Uint16(port[:]), to.Addr().As16()
	return raw, unix.SizeofSockaddrInet6
}

func addrPort(raw *unix.RawSockaddrAny) netip.AddrPort {
	port := func(p uint16) uint16 {
		var b [2]byte
		binary.NativeEndian.PutUint16(b[:], p)
		return binary.BigEndian.Uint16(b[:])
	}
	switch raw.Addr.Family {
	case unix.AF_INET:
		in := (*unix.RawSockaddrInet4)(unsafe.Pointer(raw))
		return netip.AddrPortFrom(netip.AddrFrom4(in.Addr), port(in.Port))
	case unix.AF_INET6:
		in := (*unix.RawSockaddrInet6)(unsafe.Pointer(raw))
		return netip.AddrPortFrom(netip.AddrFrom16(in.Addr).Unmap(), port(in.Port))
	}
	return netip.AddrPort{}
}
