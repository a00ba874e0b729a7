package process

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/fair"
	"github.com/daycare-run/sandbox/internal/relay"
)

// Bounds. Connections beyond them wait: one of each port after it was accepted, the others to be
// accepted.
const (
	maxPorts          = 16   // of one owner
	maxConnections    = 64   // of one owner
	maxAllConnections = 1000 // of all, of which each user has a share: see fair.Pool
)

// closeLimit is how long Close and Shutdown wait for connections to break; retryInterval is how
// often a port that is in use is tried again.
const (
	closeLimit    = 2 * time.Second
	retryInterval = 5 * time.Second
)

// Loopback is the address that ports are listened on.
const Loopback = "127.0.0.1"

// Conn is a connection into a container. Its Read must not return io.EOF unless the program there
// has closed its direction.
type Conn interface {
	relay.Conn
	// Close ends a connection that is over. Abort breaks it, so that Read and Write end. It must
	// not block.
	Close() error
	Abort()
}

// Dial connects to a port in the owner's container. It may block until ctx ends.
type Dial func(ctx context.Context, port int) (Conn, error)

// Listeners listens on the host for owners of exposed ports. It is safe for concurrent use.
type Listeners struct {
	log        zerolog.Logger
	all        *fair.Pool // connections of all owners, shared by users
	retryAfter time.Duration

	mu      sync.Mutex
	allowed PortRange
	next    int // the port to try first
	closed  bool
	owners  map[string]*owner
}

// owner holds the listeners and connections of one owner.
type owner struct {
	ctx    context.Context // ends with it
	cancel context.CancelFunc
	dial   Dial
	user   string
	slots  chan struct{} // full while it has as many connections as it may
	all    *fair.Pool
	work   sync.WaitGroup

	// Under Listeners.mu.
	ports     []Port
	listeners []*net.TCPListener // parallel to ports; nil where nothing listens
}

// NewListeners returns Listeners that may use the range. End them with Shutdown.
func NewListeners(allowed PortRange, log zerolog.Logger) *Listeners {
	return &Listeners{log: log, all: fair.NewPool(maxAllConnections, 0),
		retryAfter: retryInterval, allowed: allowed, owners: map[string]*owner{}}
}

// SetRange sets the range for ports that are opened from now on.
func (l *Listeners) SetRange(allowed PortRange) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.allowed = allowed
}

// Check returns what is wrong with the ports of a request, whether or not they are free.
func (l *Listeners) Check(ports []Port) error {
	if err := checkPorts(ports); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, p := range ports {
		if err := l.admits(i, p); err != nil {
			return err
		}
	}
	return nil
}

// admits returns an error unless the range allows a port; l.mu is held.
func (l *Listeners) admits(i int, p Port) error {
	switch {
	case l.allowed == PortRange{}:
		return errs.Denied(
			"expose[%d]: this service exposes no ports; its operator allows it with the setting processes.exposePorts",
			i)
	case p.HostPort != 0 && !l.allowed.has(p.HostPort):
		return errs.Denied(
			"expose[%d].hostPort %d is not one of %s, which the setting processes.exposePorts allows",
			i, p.HostPort, l.allowed)
	}
	return nil
}

// Open listens for an owner that belongs to a user and has no ports yet, and returns the ports with
// their host ports. It listens on all of them or on none: the error is of class Conflict if a port
// is in use, and Denied if it is not allowed.
func (l *Listeners) Open(user, name string, ports []Port, dial Dial) (_ []Port, err error) {
	if len(ports) == 0 {
		return nil, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	o, err := l.enter(user, name, ports, dial)
	if err != nil {
		return nil, err
	}
	for _, named := range []bool{true, false} { // or a port that is named might be given away
		for i, p := range ports {
			if named != (p.HostPort != 0) {
				continue
			}
			if err := l.listen(o, i); err != nil {
				l.leave(name)
				return nil, err
			}
		}
	}
	l.serve(name, o)
	return slices.Clone(o.ports), nil
}

// Reopen is Open for ports that were open under an earlier service. A port that cannot be listened
// on any more gets a Fault, which Ports returns, and is tried again.
func (l *Listeners) Reopen(user, name string, ports []Port, dial Dial) {
	if len(ports) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	o, err := l.enter(user, name, ports, dial)
	if err != nil {
		l.log.Error().Err(err).Str("owner", name).Msg("cannot expose ports again")
		return
	}
	for i := range ports {
		if err := l.listen(o, i); err != nil {
			o.ports[i].Fault = err.Error()
			l.log.Warn().Err(err).Str("owner", name).Msg("cannot expose a port again; trying again")
			o.work.Go(func() { l.retry(name, o, i) })
		}
	}
	l.serve(name, o)
}

// Ports returns an owner's ports as they are now; nil if it has none.
func (l *Listeners) Ports(name string) []Port {
	l.mu.Lock()
	defer l.mu.Unlock()
	if o := l.owners[name]; o != nil {
		return slices.Clone(o.ports)
	}
	return nil
}

// enter adds an owner that does not listen yet, and leave removes one that does not serve yet; l.mu
// is held.
func (l *Listeners) enter(user, name string, ports []Port, dial Dial) (*owner, error) {
	if l.closed || l.owners[name] != nil {
		return nil, errors.New(
			"cannot expose ports: the service is shutting down, or they are exposed already")
	}
	o := &owner{user: user, dial: dial, slots: make(chan struct{}, maxConnections), all: l.all,
		ports: make([]Port, len(ports)), listeners: make([]*net.TCPListener, len(ports))}
	for i, p := range ports {
		o.ports[i] = Port{Port: p.Port, HostPort: p.HostPort}
	}
	o.ctx, o.cancel = context.WithCancel(context.Background())
	l.owners[name] = o
	return o, nil
}

func (l *Listeners) leave(name string) {
	l.owners[name].end()
	delete(l.owners, name)
}

// serve begins to accept connections; l.mu is held.
func (l *Listeners) serve(name string, o *owner) {
	for i, listener := range o.listeners {
		if listener != nil {
			l.take(name, o, i)
		}
	}
}

func (l *Listeners) take(name string, o *owner, i int) {
	listener, port := o.listeners[i], o.ports[i].Port
	o.work.Go(func() {
		o.serve(listener, port, l.log.With().Str("owner", name).Int("port", port).Logger())
	})
}

// retry listens on a port as soon as that is possible.
func (l *Listeners) retry(name string, o *owner, i int) {
	for o.pause(l.retryAfter) {
		l.mu.Lock()
		if o.ctx.Err() == nil && l.listen(o, i) == nil {
			o.ports[i].Fault = ""
			l.take(name, o, i)
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
	}
}

// listen listens on the requested host port, or on the next free one of the range, so that a port
// that was given up does not go to another owner at once; l.mu is held.
func (l *Listeners) listen(o *owner, i int) error {
	p := &o.ports[i]
	if err := l.admits(i, *p); err != nil {
		return err
	}
	if p.HostPort != 0 {
		listener, err := listenAt(p.HostPort)
		if err != nil {
			return errs.Conflict("expose[%d].hostPort %d cannot be listened on: %v", i, p.HostPort,
				rootOf(err))
		}
		o.listeners[i] = listener
		return nil
	}
	for range l.allowed.Last - l.allowed.First + 1 {
		port := l.next
		if !l.allowed.has(port) {
			port = l.allowed.First
		}
		l.next = port + 1
		listener, err := listenAt(port)
		switch {
		case err == nil:
			p.HostPort, o.listeners[i] = port, listener
			return nil
		case !errors.Is(err, syscall.EADDRINUSE):
			return fmt.Errorf("cannot listen on port %d of the host: %w", port, rootOf(err))
		}
	}
	return errs.Conflict("expose[%d]: all ports of %s are in use", i, l.allowed)
}

func listenAt(port int) (*net.TCPListener, error) {
	return net.ListenTCP("tcp4", &net.TCPAddr{IP: net.ParseIP(Loopback), Port: port})
}

// rootOf returns the kernel's error.
func rootOf(err error) error {
	if number, is := errors.AsType[syscall.Errno](err); is {
		return number
	}
	return err
}

// Close ends an owner's listeners, if there are any, and breaks the connections.
func (l *Listeners) Close(name string) {
	l.mu.Lock()
	o := l.owners[name]
	delete(l.owners, name)
	if o != nil {
		o.end()
	}
	l.mu.Unlock()
	if o != nil {
		l.await(&o.work)
	}
}

// Shutdown closes everything, for good.
func (l *Listeners) Shutdown() {
	var work sync.WaitGroup
	l.mu.Lock()
	l.closed = true
	for _, o := range l.owners {
		o.end()
		work.Go(o.work.Wait)
	}
	l.owners = nil
	l.mu.Unlock()
	l.await(&work)
}

// end closes an owner's listeners and cancels its context, which its goroutines notice;
// Listeners.mu is held.
func (o *owner) end() {
	o.cancel()
	for _, listener := range o.listeners {
		if listener != nil {
			_ = listener.Close()
		}
	}
}

// await waits for connections to break, but not for ever: the program inside may be slow on
// purpose.
func (l *Listeners) await(work *sync.WaitGroup) {
	done := make(chan struct{})
	go func() {
		work.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(closeLimit):
		l.log.Warn().Msg("connections to exposed ports take long to break; not waiting for them")
	}
}
