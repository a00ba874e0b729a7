package e2e

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/api/types"
)

// A Docker that goes and comes back makes its bridges and rules again. What filtered containers send meanwhile leaves
// the host by no path, whether they go on without Docker (live-restore) or are started again with it, and whatever else
// becomes of the host's rules in that time.
func TestEgressStaysClosedWhileDockerRestarts(t *testing.T) {
	p := flushed.get(t)
	p.enter(t)
	begin(t)
	w, engine := openWorldBeside(t, p), flushed.engine
	began := time.Now()
	defer func() { t.Logf("in all %v", time.Since(began)) }()
	forbidden := w.fresh()
	for _, port := range []uint16{22, 9999} {
		if err := w.Listen(netip.AddrPortFrom(forbidden, port)); err != nil {
			t.Fatal(err)
		}
	}
	port, heard := hostListener(t, p)
	capture := w.capture(t)
	engine.liveRestore(t, true)
	defer engine.liveRestore(t, false)
	var senders []*sender
	for _, runtime := range runtimes {
		senders = append(senders, newSender(t, newLabIn(t, p, runtime, worldSettings(w)...), w, forbidden, port))
	}
	for _, live := range []bool{true, false} {
		began := time.Now()
		engine.liveRestore(t, live)
		engine.stop()
		t.Logf("stopped after %v", time.Since(began))
		p.feed(t, "flush ruleset", "nft", "-f", "-") // Docker's own included: it makes them again
		if live {
			for _, s := range senders {
				s.goesOn(t)
			}
		}
		engine.start(t)
		t.Logf("started after %v", time.Since(began))
		for _, s := range senders {
			s.goesOn(t)
			s.l.fight(t, "", 200*time.Millisecond)
			eventually(t, "the allowed name is reached", func() bool {
				out, err := s.l.client.Exec(t.Context(), "sender", types.Exec{
					Command: hello("http://" + s.name), Permissions: []string{"@network"}, AllowedDomains: []string{s.name}, TimeoutMs: unhurried,
				})
				return err == nil && strings.TrimSpace(out.Stdout) == "hello from "+s.name
			})
			s.goesOn(t)
		}
		t.Logf("all is as before after %v", time.Since(began))
		if n := seen(t, capture, forbidden); n != 0 || heard() != 0 {
			t.Errorf("live-restore %v: %d packets came to the forbidden address, the host was reached %d times: %v", live, n, heard(), capture.Packets())
		}
	}
}

// sender is a durable process that hammers at what is forbidden.
type sender struct {
	l       *lab
	name    string // that it may reach
	process types.Process
}

func newSender(t *testing.T, l *lab, w *world, forbidden netip.Addr, port int) *sender {
	t.Helper()
	s := &sender{l: l, name: w.name(t, "sender", w.shared)}
	l.traveller(t, w, "sender")
	l.put(t, "sender", "hammer.py", hammer)
	s.process = l.startProcess(t, "sender", types.StartProcess{
		Permissions: []string{"@network"}, AllowedDomains: []string{s.name}, KeepAlive: true,
		Env:     map[string]string{"FORBIDDEN": forbidden.String(), "HOSTS": hostAddresses(t, l.place), "PORT": strconv.Itoa(port)},
		Command: `while :; do python3 /home/hammer.py "$FORBIDDEN" "$HOSTS" "$PORT" 0.3; done`,
	})
	s.goesOn(t)
	return s
}

// goesOn waits until it has sent from now on.
func (s *sender) goesOn(t *testing.T) {
	t.Helper()
	before := strings.Count(logOf(t, s.process), "tried")
	eventually(t, "it sends", func() bool { return strings.Count(logOf(t, s.process), "tried") > before })
}

// liveRestore says whether containers go on without Docker.
func (e *privateEngine) liveRestore(t *testing.T, on bool) {
	t.Helper()
	file := filepath.Join(e.dir, "daemon.json")
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	settings := map[string]any{}
	if err := json.Unmarshal(content, &settings); err != nil {
		t.Fatal(err)
	}
	settings["live-restore"] = on
	if content, err = json.Marshal(settings); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := e.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	client := connect(t, e.place.socket)
	eventually(t, "Docker has read its settings", func() bool {
		info, err := client.Info(t.Context())
		return err == nil && info.LiveRestoreEnabled == on
	})
}
