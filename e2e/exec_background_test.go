package e2e

import (
	"context"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// serve leaves a daemon behind that holds on to all that a grant gave it: a file open for writing, a
// directory, and a socket and a FIFO in /tmp over which it writes for others.
const serve = `
import array, os, socket, sys, threading, time
home = os.open("/home", os.O_RDONLY)
kept = os.open("/home/kept", os.O_RDWR | os.O_CREAT)
server = socket.socket(socket.AF_UNIX)
try:
    os.unlink("/tmp/serve.sock")
except OSError:
    pass
server.bind("/tmp/serve.sock")
server.listen(8)
os.path.exists("/tmp/serve.fifo") or os.mkfifo("/tmp/serve.fifo")
def plant(how):
    os.close(os.open("planted-" + how, os.O_CREAT | os.O_WRONLY, dir_fd=home))
    os.pwrite(kept, b"planted", 0)
def listen():
    while True:
        peer, _ = server.accept()
        socket.send_fds(peer, [b"fds"], [home, kept])
        plant("socket")
def follow():
    while True:
        with open("/tmp/serve.fifo") as fifo:
            fifo.read()
            plant("fifo")
at_work, tell = os.pipe()
if "daemon" in sys.argv:
    for i in range(2):
        if os.fork():
            os.close(tell)
            i or os.read(at_work, 1)  # the daemon is at work when the command ends
            os._exit(0)
        os.setsid()
for f in (listen, follow):
    threading.Thread(target=f, daemon=True).start()
print("serving", flush=True)
os.write(tell, b"x")
end = time.monotonic() + 110
while time.monotonic() < end and not os.path.exists("/tmp/enough"):
    time.sleep(0.01)
`

// ask wants somebody to write for it.
const ask = `
import os, socket
client = socket.socket(socket.AF_UNIX)
client.settimeout(60)
try:
    client.connect("/tmp/serve.sock")
    print("connected")
    _, fds, _, _ = socket.recv_fds(client, 10, 2)
    for fd in fds:
        try:
            os.close(os.open("planted-descriptor", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
        except OSError:
            pass
        try:
            os.pwrite(fd, b"planted", 0)
        except OSError:
            pass
except OSError as refused:
    print("socket:", type(refused).__name__)
try:
    fifo = os.open("/tmp/serve.fifo", os.O_WRONLY | os.O_NONBLOCK)
    os.write(fifo, b"planted")
    print("written")
except OSError as refused:
    print("fifo:", type(refused).__name__)
`

// Whatever a call with @workspace leaves behind cannot serve a later call without it: it is gone.
func TestLeftoversServeNobody(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.register(t, "served")
		out := l.run(t, "served", types.Exec{Permissions: workspace, Argv: []string{"python3", "-c", serve, "daemon"}})
		if out.Stdout != "serving\n" || out.Failed {
			t.Errorf("the daemon: %q %q", out.Stdout, out.Stderr)
		}
		for _, grants := range [][]string{none, workspace, none} {
			got := l.run(t, "served", types.Exec{Permissions: grants, Argv: []string{"python3", "-c", ask}})
			if strings.Contains(got.Stdout, "connected") || strings.Contains(got.Stdout, "written") || got.Failed {
				t.Errorf("with %v: %q %q", grants, got.Stdout, got.Stderr)
			}
		}
		for _, name := range below(t, l.home("served")) {
			if strings.HasPrefix(name, "planted") {
				t.Errorf("%s was made", name)
			}
		}
		if got := holds(l.at("served", "kept")); got != "" {
			t.Errorf("kept holds %q", got)
		}
		// The call that was granted it could have.
		if got := l.sh(t, "served", "touch planted-by-grant && echo yes"); got != "yes" || !exists(l.at("served", "planted-by-grant")) {
			t.Errorf("with the grant: %q", got)
		}
	})
}

// While the call with @workspace runs, another one cannot reach it through /tmp under gVisor. Under
// runc a socket or FIFO there joins a user's own calls, if both want it.
func TestCallsThatRunBesideEachOther(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.register(t, "beside")
		out, ended := &lockedBuffer{}, make(chan error, 1)
		go func() {
			_, err := l.client.Attach(context.Background(), "beside", types.Exec{Permissions: workspace, Argv: []string{"python3", "-c", serve}}, client.Streams{Stdout: out, Stderr: out})
			ended <- err
		}()
		eventually(t, "it serves", func() bool { return strings.Contains(out.String(), "serving") })
		got := l.run(t, "beside", types.Exec{Permissions: none, Argv: []string{"python3", "-c", ask}})
		l.bash(t, "beside", none, "touch /tmp/enough")
		if err := <-ended; err != nil {
			t.Error(err)
		}
		// Under runc it is served, which also shows that the attempts are real.
		if planted := strings.Contains(strings.Join(below(t, l.home("beside")), " "), "planted"); planted != (l.runtime() == "runc") {
			t.Errorf("the call without a grant: %q %q; planted: %v", got.Stdout, got.Stderr, planted)
		}
	})
}
