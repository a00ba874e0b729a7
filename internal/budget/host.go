package budget

import (
	"bytes"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Descriptors returns how many descriptors the whole process may have open. Go has already raised
// the limit to the hard one, and gives programs that it starts the earlier limit.
func Descriptors() (int, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("cannot ask how many descriptors there may be: %w", err)
	}
	return int(min(limit.Cur, 1<<30)), nil
}

// Spare returns how many of the descriptors are left for connections of users: the API, the DNS
// filter, Docker's streams and files have at least a quarter, or half of a small number.
func Spare(descriptors int) int {
	return descriptors - max(descriptors/4, min(descriptors/2, 1024))
}

// TCPMemory returns how many bytes all TCP buffers of the host may take before the kernel begins to
// care.
func TCPMemory() int {
	const standard = 256 << 20
	var pages int
	if err := scan("/proc/sys/net/ipv4/tcp_mem", &pages); err != nil {
		return standard
	}
	return pages * os.Getpagesize()
}

// LocalPorts returns how many ports the kernel chooses from for a connection of ours.
func LocalPorts() int {
	const standard = 28232
	var first, last int
	if err := scan("/proc/sys/net/ipv4/ip_local_port_range", &first, &last); err != nil ||
		last < first {
		return standard
	}
	return last - first + 1
}

func scan(file string, values ...any) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	_, err = fmt.Fscan(bytes.NewReader(text), values...)
	return err
}
