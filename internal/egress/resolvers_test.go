package egress

import (
	"slices"
	"testing"
)

// What a host's resolv.conf may list and no resolver can be is left out, and its own address is its loopback's.
func TestUsableServers(t *testing.T) {
	listed := []string{"192.0.2.53", "0.0.0.0", "::", "fe80::1%eth0", "ff02::1", "2001:db8::53", "host"}
	if got, want := usableServers(listed), []string{"192.0.2.53", "127.0.0.1", "127.0.0.1", "2001:db8::53"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
