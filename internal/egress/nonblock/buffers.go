package nonblock

import "golang.org/x/sys/unix"

// The kernel doubles what a socket's buffers are set to, for its own needs. Half of a flow's bytes are for what
// an origin sends, a quarter for what is sent to it, and an eighth for each direction of the client's side.

// mostNear is the most that a container's socket needs: there is no distance to bridge.
const mostNear = 512 << 10

// BoundClient bounds the buffers of a container's socket.
func BoundClient(fd, bytes int) {
	near := min(bytes/8, mostNear)
	SetInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, int32(near/2))
	SetInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, int32(near/2))
}

// BoundOrigin bounds the buffers of an origin's socket. Call it before connecting: the window offered first
// depends on it. The forced options go beyond net.core.rmem_max, and need CAP_NET_ADMIN.
func BoundOrigin(fd, bytes int) {
	SetInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, int32(bytes/8))
	SetInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, int32(bytes/8))
	SetInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, int32(bytes/4))
	SetInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, int32(bytes/4))
}
