package guard

import "sync"

// A user's budgets: descriptors, bytes of hellos, and bytes of the kernel's buffers. What a flow
// has of them is given back when it leaves.

const (
	// tlsDescriptors are the client's socket and the origin's. HTTP takes an origin's when it
	// connects.
	tlsDescriptors, httpDescriptors = 2, 1
)

func (f *flow) descriptors() int {
	if f.plain {
		return httpDescriptors
	}
	return tlsDescriptors
}

// reserve takes what a flow needs, before anything is done for it.
func (f *flow) reserve() bool {
	b, user := f.guard.cfg.Budget, f.who.User()
	if !b.Descriptors.Take(user, f.descriptors()) {
		return false
	}
	if f.buffers = b.TakeBuffers(user); f.buffers == 0 {
		b.Descriptors.Give(user, f.descriptors())
		return false
	}
	return true
}

func (f *flow) release() {
	b, user := f.guard.cfg.Budget, f.who.User()
	b.Descriptors.Give(user, f.descriptors())
	b.Buffers.Give(user, f.buffers)
	f.free(0)
	f.kept.mu.Lock()
	defer f.kept.mu.Unlock()
	f.kept.closed = true
}

// bufferCount counts the bytes that are kept of what a flow's client has sent and its origins have
// answered.
type bufferCount struct {
	mu     sync.Mutex
	bytes  int
	closed bool
}

// keep takes room for n more bytes that were received. It reports false when there is none.
func (f *flow) keep(n int) bool {
	f.kept.mu.Lock()
	defer f.kept.mu.Unlock()
	if f.kept.closed || !f.guard.cfg.Budget.Hellos.Take(f.who.User(), n) {
		return false
	}
	f.kept.bytes += n
	return true
}

// keeps returns how many bytes there is room for.
func (f *flow) keeps() int {
	f.kept.mu.Lock()
	defer f.kept.mu.Unlock()
	return f.kept.bytes
}

// free gives back the room for all but n bytes.
func (f *flow) free(n int) {
	f.kept.mu.Lock()
	defer f.kept.mu.Unlock()
	if f.kept.bytes > n {
		f.guard.cfg.Budget.Hellos.Give(f.who.User(), f.kept.bytes-n)
		f.kept.bytes = n
	}
}
