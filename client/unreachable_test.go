package client

import (
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A user who may not open the socket is not told that the service does not run.
func TestSocketThatMayNotBeOpened(t *testing.T) {
	c := New("/run/box.sock")
	defer c.Close()
	err := c.unreachable(&net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", unix.EACCES)})
	if !strings.Contains(err.Error(), "may not open /run/box.sock") || !strings.Contains(err.Error(), "access.peers") || strings.Contains(err.Error(), "is sandboxd running") {
		t.Error(err)
	}
}
