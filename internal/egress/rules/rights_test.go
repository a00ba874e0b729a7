package rules

import (
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A process that may not change the rules is told so, and what to do, before anything relies on them.
func TestNewWithoutRights(t *testing.T) {
	needRoot(t)
	fault := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: only this thread gives up its capabilities, and it ends
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&header, &none[0]); err != nil {
			fault <- err
			return
		}
		_, err := New(testConfig())
		fault <- err
	}()
	if err := <-fault; err == nil || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
		t.Errorf("got %v", err)
	}
}
