package e2e

import (
	"bufio"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
)

// controlSocket is the caller's control socket: it answers each line. The lab's directory is closed to
// others, as the caller's may be; the socket itself is open.
func controlSocket(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "daycare-e2e-events-")
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "control.sock")
	listener, err := net.Listen("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = listener.Close()
		_ = os.RemoveAll(dir)
	})
	if err := os.Chmod(name, 0o666); err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			peer, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer peer.Close()
				line, _ := bufio.NewReader(peer).ReadString('\n')
				_, _ = peer.Write([]byte("heard " + line))
			}()
		}
	}()
	return name
}

const talk = `python3 -c "
import socket
s = socket.socket(socket.AF_UNIX)
s.connect('/run/daycare/control.sock')
s.sendall(b'hello\n')
print(s.makefile().readline().strip())" 2>&1 | tail -1; ls /run/daycare 2>/dev/null; true`

// With @events, and only with it, a call reaches the caller's control socket; all other calls have the
// strict runtime.
func TestEvents(t *testing.T) {
	each(t, func(t *testing.T, p *place, runtime string) {
		l := newLabIn(t, p, runtime, "SANDBOXD_EVENTS_SOCKET="+controlSocket(t))
		l.registerAs(t, "events", types.Registration{UserID: "events", Permissions: types.Permissions{Events: true}})
		l.register(t, "no-events")
		if got := l.bash(t, "events", []string{"@events"}, talk); got != "heard hello\ncontrol.sock" {
			t.Errorf("with the grant: %q", got)
		}
		if got := l.bash(t, "events", []string{"@events"}, "rm /run/daycare/control.sock 2>/dev/null || mv /run/daycare/control.sock /tmp/x 2>/dev/null || touch /run/daycare/x 2>/dev/null || touch /home/x 2>/dev/null || echo refused"); got != "refused" {
			t.Errorf("changing it: %q", got)
		}
		for _, grants := range [][]string{none, workspace} {
			if got := l.bash(t, "events", grants, talk); !strings.Contains(got, "FileNotFoundError") || strings.Contains(got, "control.sock") {
				t.Errorf("with %v: %q", grants, got)
			}
		}
		if _, err := l.client.Exec(t.Context(), "no-events", types.Exec{Permissions: []string{"@events"}, Command: "true"}); kindOf(err) != types.Denied {
			t.Errorf("without the permission: %v", err)
		}
		count := map[string]int{}
		for _, c := range l.containers(t) {
			found, err := l.engine.ContainerInspect(t.Context(), c.ID)
			if err != nil {
				t.Fatal(err)
			}
			shown := false
			for _, m := range found.Mounts {
				shown = shown || strings.HasSuffix(m.Destination, "control.sock")
			}
			want := runtime
			switch {
			case runtime == "runsc" && shown:
				want = "runsc-events"
			case runtime == "runsc":
				want = "runsc-offline"
			}
			if found.HostConfig.Runtime != want {
				t.Errorf("the socket is shown: %v; the runtime is %s", shown, found.HostConfig.Runtime)
			}
			count[want]++
		}
		t.Logf("containers by runtime: %v", count)
	})
}

func TestEventsWithoutASocket(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.registerAs(t, "deaf-events", types.Registration{UserID: "deaf-events", Permissions: types.Permissions{Events: true}})
		_, err := l.client.Exec(t.Context(), "deaf-events", types.Exec{Permissions: []string{"@events"}, Command: "true"})
		if kindOf(err) != types.Denied || !strings.Contains(err.Error(), "eventsSocket") {
			t.Errorf("got %v", err)
		}
		if got := l.bash(t, "deaf-events", none, "ls /run/daycare 2>/dev/null; echo other calls run"); got != "other calls run" {
			t.Errorf("got %q", got)
		}
	})
}
