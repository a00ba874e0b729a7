package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// server answers the service.
type server struct {
	space   *namespace
	self    *os.File // the namespace
	sockets *sockets
	refused *os.File // nil if there is none, with the reason
	why     error

	mu sync.Mutex // one request at a time
}

// Serve closes off the namespace that it runs in, and answers the service in a shared folder until
// ctx ends.
func Serve(ctx context.Context, dir string, c Config) (err error) {
	defer func() {
		if err != nil {
			// Nobody reads what this program prints.
			_ = os.WriteFile(filepath.Join(dir, faultName), []byte(err.Error()), 0o600)
		}
	}()
	if err := c.Validate(); err != nil {
		return fmt.Errorf("cannot use the gateway's configuration: %w", err)
	}
	s := &server{}
	if s.space, err = closeNamespace(c.Address); err != nil {
		return err
	}
	if err = setMeters(c); err != nil {
		return err
	}
	if s.sockets, err = openSockets(ctx, c, runtime.NumCPU()); err != nil {
		return err
	}
	s.refused, s.why = traceRefused(c)
	if s.self, err = os.Open("/proc/thread-self/ns/net"); err != nil {
		return fmt.Errorf("cannot open the namespace: %w", err)
	}
	listener, err := listen(dir)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	for {
		conn, err := listener.AcceptUnix()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cannot accept: %w", err)
		}
		// There is one service at a time; if it is killed, its connection ends.
		go s.serve(conn)
	}
}

// listen makes the socket, in place of an earlier one. The folder is for the service and root
// alone.
func listen(dir string) (*net.UnixListener, error) {
	name := filepath.Join(dir, socketName)
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("cannot remove the socket of an earlier gateway: %w", err)
	}
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: name, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	return listener, os.Chmod(name, 0o600)
}

func (s *server) serve(conn *net.UnixConn) {
	defer conn.Close()
	if !samePeer(conn) {
		return
	}
	message := make([]byte, maxMessage)
	for {
		n, err := conn.Read(message)
		if err != nil || n == 0 {
			return
		}
		var asked request
		said, rights := answer{}, []byte(nil)
		if err = json.Unmarshal(message[:n], &asked); err == nil {
			said, rights, err = s.do(asked)
		}
		if err != nil {
			said = answer{Error: err.Error()}
		}
		text, err := json.Marshal(said)
		if err != nil {
			return
		}
		if _, _, err := conn.WriteMsgUnix(text, rights, nil); err != nil {
			return
		}
	}
}

// samePeer reports whether the peer is of this program's user. The socket's mode keeps others out;
// this also holds where the folder was opened to more.
func samePeer(conn *net.UnixConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	same := false
	err = raw.Control(func(fd uintptr) {
		peer, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		same = err == nil && int(peer.Uid) == os.Getuid()
	})
	return err == nil && same
}

func (s *server) do(asked request) (said answer, rights []byte, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if (asked.Do == doAttach || asked.Do == doDetach) && !asked.Addr.Is4() {
		return said, nil, fmt.Errorf("%q is no IPv4 address", asked.Addr)
	}
	switch asked.Do {
	case doOpen:
		fds := []int{int(s.self.Fd())}
		for _, f := range append(s.sockets.udp[:len(s.sockets.udp):len(s.sockets.udp)],
			s.sockets.tcp...) {
			fds = append(fds, int(f.Fd()))
		}
		return answer{UDP: len(s.sockets.udp)}, unix.UnixRights(fds...), nil
	case doAttach:
		mac, err := hardwareAddr(asked.MAC)
		if err != nil {
			return said, nil, err
		}
		return said, nil, s.space.attach(asked.Addr, mac)
	case doDetach:
		return said, nil, s.space.detach(asked.Addr)
	case doList:
		said.Addrs, err = s.space.attached()
		return said, nil, err
	case doRefused:
		if s.refused == nil {
			return said, nil, s.why
		}
		return said, unix.UnixRights(int(s.refused.Fd())), nil
	default:
		return said, nil, fmt.Errorf("unknown request %.20q", asked.Do)
	}
}
