package budget

// Connections is what users' connections take. All networks of a service share it.
type Connections struct {
	// Descriptors are for sockets and pipes.
	Descriptors *Pool
	// Hellos are bytes of what clients have said before a server has it: ClientHellos, and heads of HTTP.
	Hellos *Pool
	// Buffers are bytes that the kernel may hold for sockets.
	Buffers *Pool
	// Ports are the host's own, towards each destination.
	Ports *Ports
}

const (
	// perConnection is how many descriptors a connection has: its client's and its origin's.
	perConnection = 2
	// leastBuffers and mostBuffers are what the kernel may hold for one connection: who has few has fast ones, and
	// who has thousands has small ones.
	leastBuffers, mostBuffers = 32 << 10, 4 << 20
	// hellos and userHellos bound what lies in this process's own memory.
	hellos, userHellos = 64 << 20, 8 << 20
)

// NewConnections shares what this process and this host have. A user has at most so many
// connections; 0 is no such bound.
func NewConnections(perUser int) (*Connections, error) {
	descriptors, err := Descriptors()
	if err != nil {
		return nil, err
	}
	return &Connections{
		Descriptors: NewPool(Spare(descriptors), perConnection*perUser),
		Hellos:      NewPool(hellos, userHellos),
		Buffers:     NewPool(TCPMemory(), 0),
		Ports:       NewPorts(LocalPorts()),
	}, nil
}

// TakeBuffers takes what the kernel may hold for one connection, or nothing, and returns 0, if there is not enough.
func (c *Connections) TakeBuffers(user string) int {
	return c.Buffers.TakeShare(user, leastBuffers, mostBuffers)
}

// Stats are the numbers of each budget, by its name.
func (c *Connections) Stats() map[string]Stats {
	return map[string]Stats{
		"descriptors": c.Descriptors.Stats(), "hellos": c.Hellos.Stats(), "buffers": c.Buffers.Stats(), "ports": c.Ports.Stats(),
	}
}
