// Package budget has what users' connections take of this process and its host: descriptors, bytes
// and ports, of which each user has a share.
package budget

import "github.com/daycare-run/sandbox/internal/fair"

// Connections are the budgets of users' connections. All networks of a service share them.
type Connections struct {
	// Descriptors are for sockets and pipes.
	Descriptors *fair.Pool
	// Hellos are bytes that clients have sent and no server has yet: ClientHellos, and heads of
	// HTTP requests.
	Hellos *fair.Pool
	// Read are bytes of this process for connections whose TLS is ended here.
	Read *fair.Pool
	// Buffers are bytes that the kernel may hold for sockets.
	Buffers *fair.Pool
	// Ports are the host's own ports, towards each destination.
	Ports *Ports
}

const (
	// perConnection is how many descriptors a connection takes: its client's and its origin's.
	perConnection = 2
	// leastBuffers and maxBuffers bound what the kernel may hold for one connection: a user with
	// few has fast ones, and a user with thousands has small ones.
	leastBuffers, maxBuffers = 32 << 10, 4 << 20
	// hellos and userHellos bound, in total and per user, what lies in this process's own memory.
	hellos, userHellos = 64 << 20, 8 << 20
	read, userRead     = 512 << 20, 128 << 20
)

// NewConnections shares what this process and this host have. A user may have at most perUser
// connections; 0 means no such bound.
func NewConnections(perUser int) (*Connections, error) {
	descriptors, err := Descriptors()
	if err != nil {
		return nil, err
	}
	return &Connections{
		Descriptors: fair.NewPool(Spare(descriptors), perConnection*perUser),
		Hellos:      fair.NewPool(hellos, userHellos),
		Read:        fair.NewPool(read, userRead),
		Buffers:     fair.NewPool(TCPMemory(), 0),
		Ports:       NewPorts(LocalPorts()),
	}, nil
}

// TakeBuffers takes what the kernel may hold for one connection and returns it, in bytes; 0 if
// there is not enough.
func (c *Connections) TakeBuffers(user string) int {
	return c.Buffers.TakeShare(user, leastBuffers, maxBuffers)
}

// Stats returns the numbers of each budget, by its name.
func (c *Connections) Stats() map[string]fair.Stats {
	return map[string]fair.Stats{
		"descriptors": c.Descriptors.Stats(), "hellos": c.Hellos.Stats(), "read": c.Read.Stats(),
		"buffers": c.Buffers.Stats(), "ports": c.Ports.Stats(),
	}
}
