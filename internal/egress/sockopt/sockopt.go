// Package sockopt sets the options of the sockets that connections of containers pass through.
// Where the kernel refuses an option, the socket works all the same.
package sockopt

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// KeepAlive finds peers that are gone, in about two minutes: nothing else ends an idle connection.
var KeepAlive = net.KeepAliveConfig{Enable: true, Idle: time.Minute, Interval: 15 * time.Second,
	Count: 4}

// DelayAck makes a socket that is about to connect send the last packet of TCP's handshake together
// with its first bytes: so the server is woken once, and not before there is anything to read.
func DelayAck(fd int) { set(fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK, 0) }

// The kernel doubles what a socket's buffers are set to, for its own needs. Half of a flow's bytes
// are for what an origin sends, a quarter for what is sent to it, and an eighth for each direction
// of the client's side.

// maxNear is the most that a container's socket needs: there is no distance to bridge.
const maxNear = 512 << 10

// Bound bounds the buffers of a container's socket.
func Bound(c *net.TCPConn, bytes int) {
	near := min(bytes/8, maxNear)
	_, _ = c.SetWriteBuffer(near/2), c.SetReadBuffer(near/2)
}

// BoundOrigin bounds the buffers of an origin's socket. Call it before connecting: the window
// offered first depends on it. The forced options go beyond net.core.rmem_max, and need
// CAP_NET_ADMIN.
func BoundOrigin(fd, bytes int) {
	set(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, bytes/8)
	set(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, bytes/8)
	set(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, bytes/4)
	set(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bytes/4)
}

func set(fd, level, option, value int) { _ = unix.SetsockoptInt(fd, level, option, value) }
