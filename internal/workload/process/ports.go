package process

import (
	"fmt"

	"github.com/daycare-run/sandbox/internal/errs"
)

// Port is a TCP port in a container, and the port on the host's loopback that leads to it.
type Port struct {
	Port int `json:"port"`
	// HostPort is 0 while any port will do.
	HostPort int `json:"hostPort"`
	// Fault says why nothing listens there, for people; empty if something does.
	Fault string `json:"fault,omitempty"`
}

// PortRange is the range of host ports that may be used, both ends included. The zero PortRange is
// empty.
type PortRange struct{ First, Last int }

func (r PortRange) has(port int) bool { return r.First > 0 && r.First <= port && port <= r.Last }

func (r PortRange) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

// checkPorts returns what is wrong with ports in themselves, whatever the host allows.
func checkPorts(ports []Port) error {
	if len(ports) > maxPorts {
		return errs.Invalid("expose has %d entries, more than %d", len(ports), maxPorts)
	}
	seen, taken := map[int]bool{}, map[int]bool{}
	for i, p := range ports {
		switch {
		case p.Port < 1 || p.Port > 65535:
			return errs.Invalid("expose[%d].port %d is not between 1 and 65535", i, p.Port)
		case p.HostPort < 0 || p.HostPort > 65535:
			return errs.Invalid("expose[%d].hostPort %d is not between 1 and 65535, or 0 for any",
				i, p.HostPort)
		case seen[p.Port]:
			return errs.Invalid("expose[%d].port %d is listed twice", i, p.Port)
		case p.HostPort != 0 && taken[p.HostPort]:
			return errs.Invalid("expose[%d].hostPort %d is listed twice", i, p.HostPort)
		}
		seen[p.Port], taken[p.HostPort] = true, true
	}
	return nil
}
