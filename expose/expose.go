// Package expose listens on the host's loopback for those who want to reach a port in a container. It knows
// owners, ports and how connections are carried; who owns what, and how a container is reached, is told to it.
//
// expose.go keeps the listeners, relay.go carries connections.
package expose

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/fault"
)

// Port is a TCP port in a container and the one of the host's loopback that leads to it.
type Port struct {
	Port int `json:"port"`
	// HostPort is 0 as long as any will do.
	HostPort int `json:"hostPort"`
	// Fault says why nobody listens there, for people; empty is that somebody does.
	Fault string `json:"fault,omitempty"`
}

// Range is which ports of the host may be used, both ends included. The zero Range is none.
type Range struct{ First, Last int }

func (r Range) has(port int) bool { return r.First > 0 && r.First <= port && port <= r.Last }

func (r Range) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

// Bounds for one owner.
const (
	MaxPorts       = 16
	MaxConnections = 64 // on one port; more wait to be accepted
)

// Host is the address that is listened at.
const Host = "127.0.0.1"

// Conn is a connection into a container.
type Conn interface {
	Read([]byte) (int, error)
	Write([]byte) (int, error)
	// CloseWrite says that nothing more comes, Close that the connection is over; Abort breaks it.
	CloseWrite() error
	Close() error
	Abort()
}

// Dial connects to a port in the owner's container. It may block until ctx ends.
type Dial func(ctx context.Context, port int) (Conn, error)

// Listeners are all that listen. It is safe for concurrent use.
type Listeners struct {
	log zerolog.Logger

	mu      sync.Mutex
	allowed Range
	closed  bool
	owners  map[string]*owner
}

// owner is what listens for one owner.
type owner struct {
	ctx       context.Context // ends with it
	cancel    context.CancelFunc
	dial      Dial
	listeners []*net.TCPListener // by port; nil where there is none
	work      sync.WaitGroup
}

// New makes Listeners that may use the range. End them with Shutdown.
func New(allowed Range, log zerolog.Logger) *Listeners {
	return &Listeners{log: log, allowed: allowed, owners: map[string]*owner{}}
}

// SetRange has what is opened from now on go by another range.
func (l *Listeners) SetRange(allowed Range) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.allowed = allowed
}

// Check says what is wrong with the ports that somebody asks for, whether or not they are free.
func (l *Listeners) Check(ports []Port) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(ports) > MaxPorts {
		return fault.Invalid("expose has %d entries, more than %d", len(ports), MaxPorts)
	}
	seen, taken := map[int]bool{}, map[int]bool{}
	for i, p := range ports {
		field := fmt.Sprintf("expose[%d]", i)
		switch {
		case p.Port < 1 || p.Port > 65535:
			return fault.Invalid("%s.port %d is not between 1 and 65535", field, p.Port)
		case p.HostPort < 0 || p.HostPort > 65535:
			return fault.Invalid("%s.hostPort %d is not between 1 and 65535, or 0 for any", field, p.HostPort)
		case seen[p.Port]:
			return fault.Invalid("%s.port %d is there twice", field, p.Port)
		case p.HostPort != 0 && taken[p.HostPort]:
			return fault.Invalid("%s.hostPort %d is there twice", field, p.HostPort)
		case l.allowed == Range{}:
			return fault.Denied("%s: this service exposes no ports; its operator allows it with the setting processes.exposePorts", field)
		case p.HostPort != 0 && !l.allowed.has(p.HostPort):
			return fault.Denied("%s.hostPort %d is not one of %s, which the setting processes.exposePorts allows", field, p.HostPort, l.allowed)
		}
		seen[p.Port], taken[p.HostPort] = true, true
	}
	return nil
}

// Open listens for an owner, who has none yet, and returns the ports with the host's. Either all are listened
// at, or none: the error is of class Conflict where a port is in use, and Denied where it is not allowed.
func (l *Listeners) Open(name string, ports []Port, dial Dial) ([]Port, error) {
	return l.open(name, ports, dial, true)
}

// Reopen is Open for ports that were open before, under an earlier service: what cannot be listened at any more
// has a Fault.
func (l *Listeners) Reopen(name string, ports []Port, dial Dial) []Port {
	opened, err := l.open(name, ports, dial, false)
	if err != nil {
		l.log.Error().Err(err).Str("owner", name).Msg("ports are not exposed again")
		return ports
	}
	return opened
}

func (l *Listeners) open(name string, ports []Port, dial Dial, all bool) (_ []Port, err error) {
	if len(ports) == 0 {
		return nil, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.owners[name] != nil {
		return nil, errors.New("cannot expose ports: the service ends, or they are exposed already")
	}
	o := &owner{dial: dial}
	defer func() {
		if err != nil {
			o.closeListeners()
		}
	}()
	opened := make([]Port, len(ports))
	for i, p := range ports {
		listener, err := l.listen(i, p)
		opened[i] = Port{Port: p.Port, HostPort: p.HostPort}
		switch {
		case err == nil:
			opened[i].HostPort = listener.Addr().(*net.TCPAddr).Port
			o.listeners = append(o.listeners, listener)
		case all:
			return nil, err
		default:
			opened[i].Fault = err.Error()
			o.listeners = append(o.listeners, nil)
		}
	}
	o.ctx, o.cancel = context.WithCancel(context.Background())
	l.owners[name] = o
	for i, listener := range o.listeners {
		if listener != nil {
			o.work.Go(func() {
				o.serve(listener, opened[i].Port, l.log.With().Str("owner", name).Int("port", opened[i].Port).Logger())
			})
		}
	}
	return opened, nil
}

// listen listens at the host's port that is asked for, or at the first of the range that is free; l.mu is held.
func (l *Listeners) listen(i int, p Port) (*net.TCPListener, error) {
	if l.allowed == (Range{}) {
		return nil, fault.Denied("expose[%d]: this service exposes no ports any more; see the setting processes.exposePorts", i)
	}
	if p.HostPort != 0 {
		if !l.allowed.has(p.HostPort) {
			return nil, fault.Denied("expose[%d].hostPort %d is not one of %s, which the setting processes.exposePorts allows", i, p.HostPort, l.allowed)
		}
		listener, err := listenAt(p.HostPort)
		if err != nil {
			return nil, fault.Conflict("expose[%d].hostPort %d cannot be listened at: %v", i, p.HostPort, rootOf(err))
		}
		return listener, nil
	}
	for port := l.allowed.First; port <= l.allowed.Last; port++ {
		listener, err := listenAt(port)
		if err == nil {
			return listener, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("cannot listen at port %d of the host: %w", port, rootOf(err))
		}
	}
	return nil, fault.Conflict("expose[%d]: all ports of %s are in use", i, l.allowed)
}

func listenAt(port int) (*net.TCPListener, error) {
	return net.ListenTCP("tcp4", &net.TCPAddr{IP: net.ParseIP(Host), Port: port})
}

// rootOf is what the kernel said.
func rootOf(err error) error {
	var number syscall.Errno
	if errors.As(err, &number) {
		return number
	}
	return err
}

// Close ends an owner's listeners and connections and waits for them. It is content when there are none.
func (l *Listeners) Close(name string) {
	l.mu.Lock()
	o := l.owners[name]
	delete(l.owners, name)
	l.mu.Unlock()
	if o != nil {
		o.close()
	}
}

// Shutdown closes all, for good.
func (l *Listeners) Shutdown() {
	l.mu.Lock()
	l.closed = true
	owners := l.owners
	l.owners = nil
	l.mu.Unlock()
	for _, o := range owners {
		o.close()
	}
}

func (o *owner) close() {
	o.cancel()
	o.closeListeners()
	o.work.Wait()
}

func (o *owner) closeListeners() {
	for _, listener := range o.listeners {
		if listener != nil {
			_ = listener.Close()
		}
	}
}
