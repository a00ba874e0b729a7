package access

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/rs/zerolog"
)

// SocketMode returns the mode of the socket of a service that runs as uid. If callers other than
// that and root are allowed, everybody may connect and the authenticator checks who they are.
func SocketMode(peers []uint32, uid int) fs.FileMode {
	for _, peer := range peers {
		if peer != 0 && int(peer) != uid {
			return 0o666
		}
	}
	return 0o600
}

// ListenUnix makes the service's socket. A socket that nobody listens on is a leftover and is
// replaced; one that answers belongs to another service. The folder is made so that allowed callers
// can reach the socket.
func ListenUnix(ctx context.Context, socket string, mode fs.FileMode,
	log zerolog.Logger) (net.Listener, error) {
	folder, way := filepath.Dir(socket), fs.FileMode(0o700)
	if mode != 0o600 {
		way = 0o711
	}
	if err := os.MkdirAll(folder, way); err != nil {
		return nil, fmt.Errorf("cannot make the socket's folder: %w", err)
	}
	if open, err := CheckFolder(folder); err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", socket, err)
	} else if open != "" && mode == 0o600 {
		log.Warn().Msg(open)
	} else if info, err := os.Stat(folder); err == nil && mode != 0o600 && info.Mode()&0o001 == 0 {
		log.Warn().Msgf(
			"users whom access.peers names cannot reach the socket, because its folder %s has the mode %04o: chmod 711 %s, or set RuntimeDirectoryMode=0711 in the unit",
			folder, info.Mode().Perm(), folder)
	}
	dialer := net.Dialer{Timeout: time.Second}
	if conn, err := dialer.DialContext(ctx, "unix", socket); err == nil {
		_ = conn.Close()
		return nil, fmt.Errorf(
			"cannot listen on %s: another service answers there; stop it, or set listen to another path",
			socket)
	}
	if info, err := os.Lstat(socket); err == nil {
		if info.Mode().Type() != os.ModeSocket {
			return nil, fmt.Errorf(
				"cannot listen on %s: there is something there that is not a socket", socket)
		}
		if err := os.Remove(socket); err != nil {
			return nil, fmt.Errorf("cannot replace the old socket: %w", err)
		}
	}
	// The socket is bound under a temporary name and renamed once its mode is right, so nobody can
	// connect in between.
	temporary := fmt.Sprintf("%s.%d", socket, os.Getpid())
	listener, err := net.Listen("unix", temporary)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", socket, err)
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(temporary, mode), os.Rename(temporary, socket)); err != nil {
		return nil, errors.Join(err, listener.Close(), os.Remove(temporary))
	}
	return listener, nil
}
