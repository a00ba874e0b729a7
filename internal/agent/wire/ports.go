package wire

import (
	"fmt"
	"io"
	"math"
	"slices"
)

// MaxPorts is how many ports a Ports frame has at most.
const MaxPorts = 64

// ports is the payload of a Ports frame.
type ports struct {
	Ports []int `json:"ports"`
}

// WritePorts sends a Ports frame. Ports beyond MaxPorts are left out.
func WritePorts(w io.Writer, list []int) error {
	return WriteMessage(w, KindPorts, ports{list[:min(len(list), MaxPorts)]})
}

// ReadPorts reads a Ports frame. It returns the ports in order, each once.
func ReadPorts(r io.Reader) ([]int, error) {
	var m ports
	if err := ReadMessage(r, KindPorts, &m); err != nil {
		return nil, err
	}
	slices.Sort(m.Ports)
	m.Ports = slices.Compact(m.Ports)
	if n := len(m.Ports); n > MaxPorts || n > 0 && (m.Ports[0] < 1 || m.Ports[n-1] > math.MaxUint16) {
		return nil, fmt.Errorf("%d ports, from %d to %d", n, m.Ports[0], m.Ports[n-1])
	}
	return m.Ports, nil
}
