//go:build linux

package agent

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// A bridge is the way to the first process of a persistent container: it hands its own stdin and
// stdout to that process, and rests for as long as they are used. If it carried the bytes itself,
// two more processes would have to be woken for each message in each direction, which in gVisor
// takes milliseconds.

// bridged is a connection over the files of a bridge. Closing it ends the bridge.
type bridged struct {
	stdio
	bridge *net.UnixConn
}

func (b bridged) Close() error { return errors.Join(b.stdio.Close(), b.bridge.Close()) }

// listen makes the socket, in place of one that an earlier process may have left.
func listen(path string) (*net.UnixListener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("cannot make the socket: %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("cannot listen for bridges: %w", err)
	}
	return listener, nil
}

// take receives the files of a bridge. When the bridge ends, so does the connection.
func take(bridge *net.UnixConn) (bridged, error) {
	files, err := receive(bridge)
	if err != nil {
		return bridged{}, errors.Join(err, bridge.Close())
	}
	b := bridged{stdio{in: files[0], out: files[1]}, bridge}
	go func() {
		_, _ = bridge.Read(make([]byte, 1))
		_ = b.Close()
	}()
	return b, nil
}

// count keeps a bridge's process in l.bridges until done is called.
func (l *persistent) count(bridge *net.UnixConn) (done func()) {
	var pid int
	if raw, err := bridge.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			if peer, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET,
				unix.SO_PEERCRED); err == nil {
				pid = int(peer.Pid)
			}
		})
	}
	add := func(n int) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.bridges[pid] += n; l.bridges[pid] == 0 {
			delete(l.bridges, pid)
		}
	}
	add(1)
	return func() { add(-1) }
}

// bridging lists the pids of the bridges.
func (l *persistent) bridging() []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.bridges))
}

// receive receives two files from a bridge. The first is put into the poller, as takeStdio does.
func receive(bridge *net.UnixConn) (files [2]*os.File, err error) {
	room := make([]byte, unix.CmsgSpace(len(files)*4))
	_, n, _, _, err := bridge.ReadMsgUnix(make([]byte, 1), room)
	if err != nil {
		return files, fmt.Errorf("cannot receive from a bridge: %w", err)
	}
	var fds []int
	if messages, err := unix.ParseSocketControlMessage(room[:n]); err == nil && len(messages) == 1 {
		fds, _ = unix.ParseUnixRights(&messages[0])
	}
	if len(fds) != len(files) {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		return files, errors.New("a bridge did not send two files")
	}
	err = unix.SetNonblock(fds[0], true)
	for i, fd := range fds {
		files[i] = os.NewFile(uintptr(fd), [...]string{"bridge-in", "bridge-out"}[i])
	}
	return files, err
}

// give waits for the first process, connects to it, and hands two files to it.
func give(path string, in, out int) (*net.UnixConn, error) {
	for begun := time.Now(); ; time.Sleep(time.Millisecond) {
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
		switch {
		case err == nil:
			if _, _, err = conn.WriteMsgUnix([]byte{0}, unix.UnixRights(in, out), nil); err != nil {
				return nil, errors.Join(fmt.Errorf("cannot hand over stdin and stdout: %w", err),
					conn.Close())
			}
			return conn, nil
		case time.Since(begun) > watchLimit ||
			!errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ECONNREFUSED) &&
				!errors.Is(err, unix.EAGAIN):
			return nil, fmt.Errorf("cannot connect to the container's first process: %w", err)
		}
	}
}

// Bridge hands stdin and stdout to the first process of a persistent container, and returns when
// that process is done with them.
func Bridge(socket string) error {
	if err := harden(); err != nil {
		return err
	}
	agent, err := give(socket, unix.Stdin, unix.Stdout)
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, onlyReader{agent})
	return nil
}
