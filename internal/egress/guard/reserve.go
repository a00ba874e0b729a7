package guard

import (
	"sync"

	"golang.org/x/sys/unix"
)

// A user's budgets: descriptors, bytes of hellos, and bytes of the kernel's buffers. What a flow has of them is
// given back when it leaves.

const (
	// leastBuffers and mostBuffers are what the kernel may hold for one flow: who has few connections has
	// fast ones, and who has thousands has small ones.
	leastBuffers, mostBuffers = 32 << 10, 4 << 20
	// mostNear is what a socket of a container needs at most: there is no distance to bridge.
	mostNear = 512 << 10
	// linkDescriptors are the client's socket and the origin's. HTTP takes those of origins when it connects.
	linkDescriptors, webDescriptors = 2, 1
)

func (f *flow) descriptors() int {
	if f.plain {
		return webDescriptors
	}
	return linkDescriptors
}

// reserve takes what a flow needs, before anything is done for it.
func (f *flow) reserve() bool {
	b, user := f.guard.budget, f.client.User()
	if !b.Descriptors.Take(user, f.descriptors()) {
		return false
	}
	if f.buffers = b.Buffers.TakeShare(user, leastBuffers, mostBuffers); f.buffers == 0 {
		b.Descriptors.Give(user, f.descriptors())
		return false
	}
	return true
}

func (f *flow) release() {
	b, user := f.guard.budget, f.client.User()
	b.Descriptors.Give(user, f.descriptors())
	b.Buffers.Give(user, f.buffers)
	f.forget(0)
	f.heard.mu.Lock()
	defer f.heard.mu.Unlock()
	f.heard.closed = true
}

// room is how many bytes are kept of what a flow's client has said, and of what its servers have answered.
type room struct {
	mu     sync.Mutex
	bytes  int
	closed bool
}

// hear takes room for n more bytes. It reports false when there is none.
func (f *flow) hear(n int) bool {
	f.heard.mu.Lock()
	defer f.heard.mu.Unlock()
	if f.heard.closed || !f.guard.budget.Hellos.Take(f.client.User(), n) {
		return false
	}
	f.heard.bytes += n
	return true
}

// forget gives back the room but for what the last n bytes need.
func (f *flow) forget(n int) {
	f.heard.mu.Lock()
	defer f.heard.mu.Unlock()
	if f.heard.bytes > n {
		f.guard.budget.Hellos.Give(f.client.User(), f.heard.bytes-n)
		f.heard.bytes = n
	}
}

// The kernel doubles what a socket's buffers are set to, for what it needs itself. Half of a flow's bytes are for
// what an origin sends, a quarter for what it is sent, and an eighth for either with the client.

func boundClient(fd, bytes int) {
	near := min(bytes/8, mostNear)
	rawSetInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, int32(near/2))
	rawSetInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, int32(near/2))
}

// boundOrigin is for a socket that is not connected yet: the window that it offers first depends on it. The
// forced options go beyond net.core.rmem_max, and need CAP_NET_ADMIN.
func boundOrigin(fd, bytes int) {
	rawSetInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, int32(bytes/8))
	rawSetInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, int32(bytes/8))
	rawSetInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, int32(bytes/4))
	rawSetInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, int32(bytes/4))
}
