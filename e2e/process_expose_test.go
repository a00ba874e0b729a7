package e2e

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/api/types"
)

// exposePorts is the setting of a lab whose processes may expose ports of the host. openLab gives each ten of its own:
// of those of the run, and apart from those of the packages' own tests.
const exposePorts = "SANDBOXD_PROCESSES_EXPOSE_PORTS="

var exposingLabs atomic.Int32

// withPorts completes exposePorts.
func (l *lab) withPorts(settings []string) []string {
	settings = slices.Clone(settings)
	for i, setting := range settings {
		if setting == exposePorts {
			l.firstPort = ports() + 90 + 10*int(exposingLabs.Add(1)) // up to freePort's
			settings[i] = fmt.Sprintf("%s%d-%d", exposePorts, l.firstPort, l.firstPort+9)
		}
	}
	return settings
}

// isReady waits until a process says that it is.
func (l *lab) isReady(t *testing.T, sandbox, id string) types.Process {
	t.Helper()
	var p types.Process
	eventually(t, "the process is ready", func() bool {
		p = l.process(t, sandbox, id)
		return p.Ready != nil && p.Ready.OK
	})
	return p
}

// fetch is one request over a connection of its own.
func fetch(url string) (string, error) {
	web := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := web.Get(url)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return string(text), err
}

// manyAtOnce serves files at port 8000. Of the connections that come at once, the server of `python3 -m http.server` has the
// kernel keep five until it takes them; the others try again for longer than an agent waits.
const manyAtOnce = `exec python3 -c '
import http.server as http
http.ThreadingHTTPServer.request_queue_size = 64
http.test(http.SimpleHTTPRequestHandler, http.ThreadingHTTPServer, bind="127.0.0.1")'`

// A server that listens at its own loopback and has no network is reached from the host, while it runs,
// whatever becomes of the service.
func TestAProcessIsReached(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		l.register(t, "server")
		large := strings.Repeat("0123456789abcdef", 1<<17)
		l.put(t, "server", "large", large)
		p := l.startProcess(t, "server", types.StartProcess{
			Command: "until [ -e /tmp/go-on ]; do sleep 0.05; done; " + manyAtOnce, KeepAlive: true,
			Ready: &types.Ready{Port: 8000, IntervalMs: 100}, Expose: []types.Expose{{Port: 8000}},
		})
		if p.Ready == nil || p.Ready.OK || len(p.Expose) != 1 {
			t.Fatalf("as it starts: %+v, %+v", p.Ready, p.Expose)
		}
		url := "http://" + p.Expose[0].Address + "/large"
		eventually(t, "it was looked at", func() bool { return !l.process(t, "server", p.ID).Ready.Since.IsZero() })
		begun := time.Now()
		l.sh(t, "server", "touch /tmp/go-on")
		if ready := l.isReady(t, "server", p.ID).Ready; ready.Since.Before(begun) {
			t.Errorf("it was ready %s before it listened", begun.Sub(ready.Since))
		}
		check := func(when string) {
			t.Helper()
			if got, err := fetch(url); err != nil || got != large {
				t.Errorf("%s: %d bytes of %d, %v", when, len(got), len(large), err)
			}
		}
		check("once")
		var many sync.WaitGroup
		for range 20 {
			many.Go(func() { check("one of many") })
		}
		many.Wait()

		l.stop(syscall.SIGKILL)
		if _, err := fetch(url); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("without the service: %v", err)
		}
		if err := l.start(); err != nil {
			t.Fatal(err)
		}
		check("after a restart of the service")

		// The agent that connects is the tenant's to kill. The next connection has another one.
		for _, c := range l.processContainersOf(t, "server") {
			if said := l.inside(t, c.ID, "sh", "-c", "pkill -KILL -f '[a]gent forward' && echo killed"); said != "killed\n" {
				t.Errorf("no agent that connects was killed: %q", said)
			}
		}
		eventually(t, "it is reached again", func() bool { got, err := fetch(url); return err == nil && got == large })

		// Another process cannot have the port, nor the next service's.
		taken := types.StartProcess{Command: "true", Expose: []types.Expose{{Port: 1, HostPort: p.Expose[0].HostPort}}}
		if status := l.call(t, http.MethodPost, "server/processes", taken, nil); status != http.StatusConflict {
			t.Errorf("a port that is taken: %d", status)
		}

		// It comes back with its port when it dies, and is not ready before it is.
		for _, c := range l.processContainersOf(t, "server") {
			if err := l.engine.ContainerKill(t.Context(), c.ID, "KILL"); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "it was started again", func() bool {
			return l.process(t, "server", p.ID).RestartCount == 1 && l.process(t, "server", p.ID).Status == types.ProcessRunning
		})
		l.isReady(t, "server", p.ID)
		check("after its restart")

		stopped, err := l.client.StopProcess(t.Context(), "server", p.ID, "")
		if err != nil || stopped.Ready.OK {
			t.Errorf("%+v, %v", stopped.Ready, err)
		}
		if _, err := fetch(url); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("when it has stopped: %v", err)
		}
	}, exposePorts)
}

// Bytes go both ways at once, and each way ends by itself.
func TestAConnectionToAProcess(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		l.register(t, "echo")
		l.put(t, "echo", "sum.py", `
import hashlib, socket
server = socket.create_server(("127.0.0.1", 7000))
while True:
    conn, _ = server.accept()
    sum = hashlib.sha256()
    while piece := conn.recv(1 << 16):
        sum.update(piece)
        conn.sendall(piece)
    conn.sendall(sum.hexdigest().encode())
    conn.close()
`)
		p := l.startProcess(t, "echo", types.StartProcess{
			Argv: []string{"python3", "/home/sum.py"}, Ready: &types.Ready{Command: "python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 7000))'", TimeoutMs: 20_000},
			Expose: []types.Expose{{Port: 7000}},
		})
		l.isReady(t, "echo", p.ID)
		conn, err := net.Dial("tcp", p.Expose[0].Address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		sent := []byte(strings.Repeat("to and fro ", 1<<19))
		go func() {
			_, _ = conn.Write(sent)
			_ = conn.(*net.TCPConn).CloseWrite()
		}()
		got, err := io.ReadAll(conn)
		if want := fmt.Sprintf("%s%x", sent, sha256.Sum256(sent)); err != nil || string(got) != want {
			t.Errorf("%d bytes of %d, %v", len(got), len(want), err)
		}
	}, exposePorts)
}

// Unless its operator allows it, a service exposes nothing; and a check may fail for ever.
func TestNothingIsExposedUnasked(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.register(t, "hidden")
		_, err := l.client.StartProcess(t.Context(), "hidden", types.StartProcess{Command: "true", Expose: []types.Expose{{Port: 80}}})
		if kindOf(err) != types.Denied || !strings.Contains(err.Error(), "processes.exposePorts") {
			t.Errorf("%v", err)
		}
		p := l.startProcess(t, "hidden", types.StartProcess{Argv: []string{"sleep", "7411"}, Ready: &types.Ready{Command: "echo it is $NAME >&2; exit 3"}, Env: map[string]string{"NAME": "not up"}})
		eventually(t, "it says why it is not ready", func() bool {
			r := l.process(t, "hidden", p.ID).Ready
			return !r.OK && strings.Contains(r.Message, "code 3: it is not up")
		})
	})
}

// What a person at a shell does.
func TestProcessesWithPortsOnTheCommandLine(t *testing.T) {
	l := newLab(t, "runsc", exposePorts)
	l.register(t, "shell")
	start := func(args ...string) (string, error) {
		out, err := l.cli(append([]string{"process", "start", "--user", "shell"}, args...)...).CombinedOutput()
		return string(out), err
	}
	address := fmt.Sprintf("127.0.0.1:%d", l.firstPort+5)
	out, err := start("--name", "web", "--ready-port", "8000", "--wait", "60s", "--expose", fmt.Sprintf("%d:8000", l.firstPort+5), "--", "sleep 1; python3 -m http.server --bind 127.0.0.1 8000")
	if err != nil || !strings.Contains(out, "\n"+address+" leads to port 8000\n") {
		t.Fatalf("%v: %s", err, out)
	}
	if _, err := fetch("http://" + address); err != nil {
		t.Errorf("it was waited for, but: %v", err)
	}
	for _, tt := range []struct{ command, want string }{{"get", "(port 8000)"}, {"get", address + " leads to port 8000"}, {"list", "  ready  "}} {
		args := []string{"process", tt.command, "--user", "shell"}
		if tt.command == "get" {
			args = append(args, "web")
		}
		if out, err := l.cli(args...).CombinedOutput(); err != nil || !strings.Contains(string(out), tt.want) {
			t.Errorf("%s: %v, no %q in\n%s", tt.command, err, tt.want, out)
		}
	}
	if out, err := start("--ready-port", "8000", "--wait", "15s", "--", "sleep", "7412"); err == nil || !strings.Contains(out, "not ready after 15s") || !strings.Contains(out, "refused") {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := start("--ready-command", "false", "--wait", "60s", "--", "exit 4"); err == nil || !strings.Contains(out, "never ready: it exited with code 4") {
		t.Errorf("%v: %s", err, out)
	}
}
