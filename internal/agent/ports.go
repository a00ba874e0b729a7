//go:build linux

package agent

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// portsInterval is how often is looked for ports at which programs have begun or ceased to listen.
const portsInterval = 200 * time.Millisecond

// tellPorts tells at which ports of the loopback programs listen, at once and with each change,
// until the stream breaks.
func tellPorts(stream io.ReadWriter) error {
	gone := leaving(stream)
	next := time.NewTicker(portsInterval)
	defer next.Stop()
	for told := []int(nil); ; {
		ports, err := listening()
		if err != nil {
			return err
		}
		if told == nil || !slices.Equal(told, ports) {
			if err := wire.WritePorts(stream, ports); err != nil {
				return err
			}
			told = ports
		}
		select {
		case <-next.C:
		case <-gone:
			return nil
		}
	}
}

// listening returns the ports at which programs of the container listen, so that the loopback
// reaches them, in order.
func listening() ([]int, error) {
	ports := []int{}
	for _, name := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		table, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) {
			continue // no IPv6
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read which ports are listened at: %w", err)
		}
		ports = append(ports, listeningIn(table)...)
	}
	slices.Sort(ports)
	return slices.Compact(ports), nil
}

// listeningIn reads a table in the form of proc_pid_net(5): the second column is the local address,
// the fourth the state.
func listeningIn(table []byte) (ports []int) {
	const listens = "0A"
	for lines := bufio.NewScanner(bytes.NewReader(table)); lines.Scan(); {
		columns := strings.Fields(lines.Text())
		if len(columns) < 4 || columns[3] != listens {
			continue
		}
		if at, ok := parseEndpoint(columns[1]); ok &&
			(at.Addr().IsUnspecified() || at.Addr().IsLoopback()) {
			ports = append(ports, int(at.Port()))
		}
	}
	return ports
}

// parseEndpoint reads an address as the kernel writes it: each 32 bits of it as the machine has
// them, in hexadecimal, and then the port.
func parseEndpoint(text string) (_ netip.AddrPort, ok bool) {
	address, port, _ := strings.Cut(text, ":")
	bits, err := hex.DecodeString(address)
	number, portErr := strconv.ParseUint(port, 16, 16)
	if err != nil || portErr != nil || len(bits)%4 != 0 {
		return netip.AddrPort{}, false
	}
	for i := 0; i < len(bits); i += 4 {
		binary.BigEndian.PutUint32(bits[i:], binary.NativeEndian.Uint32(bits[i:]))
	}
	at, ok := netip.AddrFromSlice(bits)
	return netip.AddrPortFrom(at.Unmap(), uint16(number)), ok
}
