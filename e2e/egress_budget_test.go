package e2e

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// hold opens connections until no more are let through, and keeps them.
const hold = `
import socket, sys, time
name, kept, failed = sys.argv[1], [], 0
addr = socket.gethostbyname(name)
while len(kept) < 1000 and failed < 5:
    try:
        s = socket.create_connection((addr, 80), 5)
        s.settimeout(5)
        s.sendall(b"GET /hello HTTP/1.1\r\nHost: %s\r\n\r\n" % name.encode())
        if not s.recv(100).startswith(b"HTTP/1.1 200"):
            raise OSError
        kept.append(s)
        failed = 0
    except OSError:
        failed += 1
print("holds", len(kept), "connections", flush=True)
time.sleep(100)
`

// One user opens all the connections that it can, in a service of few descriptors. Another one's calls run, and
// reach what they may.
func TestOneUserCannotTakeAllDescriptors(t *testing.T) {
	eachOutsideOwn(t, func(t *testing.T, l *lab, w *world) {
		l.stop(syscall.SIGTERM)
		l.wrap = []string{"prlimit", "--nofile=512:512"}
		if err := l.start(); err != nil {
			t.Fatal(err)
		}
		l.traveller(t, w, "greedy")
		l.traveller(t, w, "modest")
		name := w.name(t, "held", w.shared)
		ctx, cancel := context.WithCancel(t.Context())
		out, ended := &lockedBuffer{}, make(chan error, 1)
		go func() {
			_, err := l.client.Attach(ctx, "greedy", types.Exec{
				Permissions: []string{"@network"}, AllowedDomains: []string{name}, Argv: []string{"python3", "-c", hold, name},
			}, client.Streams{Stdout: out, Stderr: out})
			ended <- err
		}()
		defer func() { cancel(); <-ended }()
		eventually(t, "the connections are held", func() bool { return strings.Contains(out.String(), "connections") })
		var held int
		if _, err := fmt.Sscanf(out.String(), "holds %d", &held); err != nil || held < 10 || held > 100 {
			t.Errorf("%s", out.String())
		}

		start := time.Now()
		if got := l.sh(t, "modest", "echo fine"); got != "fine" {
			t.Errorf("%q", got)
		}
		for _, scheme := range []string{"http://", "https://"} {
			if got := succeeds(t, l.reach(t, "modest", hello(scheme+name), name)); got != "hello from "+name {
				t.Errorf("%s: %q", scheme, got)
			}
		}
		if took := time.Since(start); took > 2*time.Minute {
			t.Errorf("another user's calls took %s", took)
		}
		told, err := l.client.Decisions(t.Context(), client.DecisionQuery{UserID: "greedy", Verdict: types.VerdictLimited})
		if err != nil || len(told) == 0 || !strings.HasPrefix(told[0].Reason, "budget used up") {
			t.Errorf("%+v, %v", told, err)
		}
	})
}
