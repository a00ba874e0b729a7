package access

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/ids"
)

const nonblock = unix.O_NONBLOCK | unix.O_CLOEXEC

// peerKey is the context key under which ConnContext stores the peer.
type peerKey struct{}

// peer is the process at the other end of a Unix socket.
type peer struct {
	uid uint32
	err error
}

// ConnContext records who is at the other end of a connection; use it in the http.Server of a Unix
// socket. The kernel reports who opened the connection, whoever holds it since.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	var p peer
	p.uid, p.err = peerUID(c)
	return context.WithValue(ctx, peerKey{}, p)
}

func peerUID(c net.Conn) (uint32, error) {
	socket, ok := c.(syscall.Conn)
	if !ok {
		return 0, fmt.Errorf("a %T has no descriptor", c)
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) {
		cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, err
	}
	if failed != nil {
		return 0, failed
	}
	return cred.Uid, nil
}

// name returns what logs call a uid.
func name(uid uint32) string { return fmt.Sprintf("uid:%d", uid) }

// Unix is the way in over a Unix socket: a caller with one of these uids acts for everyone.
type Unix struct{ Peers []uint32 }

// Caller returns who sent a request. The error is of class PermissionDenied.
func (u Unix) Caller(req *http.Request) (Caller, error) {
	p, ok := req.Context().Value(peerKey{}).(peer)
	switch {
	case !ok:
		return Caller{}, errs.Denied("cannot tell who is at the other end of this socket")
	case p.err != nil:
		return Caller{}, errs.Denied("cannot tell who is at the other end of this socket: %v",
			p.err)
	case !slices.Contains(u.Peers, p.uid):
		return Caller{},
			errs.Denied(
				"uid %d may not call this service; the operator may add it to access.peers in the settings",
				p.uid)
	}
	if err := refuseOrigin(req, nil); err != nil {
		return Caller{}, err
	}
	return Caller{Name: name(p.uid), Users: ids.Everyone()}, nil
}

// Peer names the caller at the other end of a connection, and reports whether it runs as root or as
// the service's own user. The name is empty for a caller that may not call.
func (u Unix) Peer(c net.Conn) (caller string, operator bool) {
	uid, err := peerUID(c)
	if err != nil || !slices.Contains(u.Peers, uid) {
		return "", false
	}
	return name(uid), uid == 0 || int(uid) == os.Getuid()
}
