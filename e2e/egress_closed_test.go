package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// hammer sends to what is forbidden, in every way that it has, until its standard input ends or so many seconds
// have passed. It says so when it has begun, and how often it has tried.
const hammer = `
import os, socket, sys, threading, time
forbidden, hosts, port, seconds = sys.argv[1], sys.argv[2].split(), int(sys.argv[3]), float(sys.argv[4])
ended = threading.Event()
def read():
    while os.read(0, 100): pass
    ended.set()
if seconds == 0: threading.Thread(target=read, daemon=True).start()
else: threading.Timer(seconds, ended.set).start()
tried = 0
targets = [(forbidden, 9999), (forbidden, 22)] + [(host, port) for host in hosts]
while not ended.is_set():
    for target in targets:
        for kind, proto in ((socket.SOCK_STREAM, 0), (socket.SOCK_DGRAM, 0), (socket.SOCK_DGRAM, socket.IPPROTO_ICMP)):
            try:
                s = socket.socket(socket.AF_INET, kind, proto)
                s.settimeout(0.02)
                s.connect(target)
                s.send(b"\x08\x00\xf7\xff\x00\x00\x00\x00")
            except OSError: pass
            finally: s.close()
    tried += 1
    if tried == 1: print("begun", flush=True)
print("tried", tried)
`

// fights are what others do to the host's rules, again and again. Each is a script of nft's, in which OURS is the
// name of the lab's tables.
var fights = map[string]string{
	"deleted": "",
	"reloaded": `table inet another-OURS { chain c { type filter hook forward priority 0; accept; }; }
delete table inet another-OURS`,
	"replaced": `table inet OURS { chain c { type filter hook forward priority -400; accept; }; chain i { type filter hook input priority -400; accept; }; }
table bridge OURS { chain c { type filter hook forward priority -400; accept; }; }`,
}

// fight does so for a while, and counts how often.
func (l *lab) fight(t *testing.T, script string, lasts time.Duration) (rounds int) {
	t.Helper()
	name := l.egress + "-isolated"
	for end := time.Now().Add(lasts); time.Now().Before(end); rounds++ {
		var b strings.Builder
		for _, family := range []string{"inet", "bridge", "arp"} {
			fmt.Fprintf(&b, "table %s %s\ndelete table %s %s\n", family, name, family, name)
		}
		b.WriteString(strings.ReplaceAll(script, "OURS", name))
		l.place.feed(t, b.String(), "nft", "-f", "-")
	}
	return rounds
}

// feed runs a command that reads its standard input.
func (p *place) feed(t *testing.T, stdin, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := p.do(cmd.Run); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, said.String())
	}
}

// fights are those for a place: where nobody else has rules, all that there are may go.
func (p *place) fights(t *testing.T) map[string]string {
	t.Helper()
	if !p.ns.IsOpen() {
		return fights
	}
	engines := p.command(t, "iptables-save")
	t.Cleanup(func() { p.feed(t, engines, "iptables-restore") })
	all := maps.Clone(fights)
	all["flushed"] = "flush ruleset"
	return all
}

// What filtered containers send leaves the host by no path, whatever becomes of the host's rules, and whether the
// service is there or not. The allowed name works on.
func TestEgressStaysClosed(t *testing.T) {
	const lasts = 400 * time.Millisecond
	eachOutsideOwn(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "closed")
		name, forbidden := w.name(t, "closed", w.shared), w.fresh()
		for _, port := range []uint16{22, 9999} {
			if err := w.Listen(netip.AddrPortFrom(forbidden, port)); err != nil {
				t.Fatal(err)
			}
		}
		port, heard := hostListener(t, l.place)
		l.put(t, "closed", "hammer.py", hammer)
		args := []string{"python3", "/home/hammer.py", forbidden.String(), hostAddresses(t, l.place), fmt.Sprint(port)}
		capture, theirs := w.capture(t), l.place.fights(t)
		nothing := func(when string) {
			t.Helper()
			if n := seen(t, capture, forbidden); n != 0 {
				t.Errorf("%s: %d packets came to the forbidden address: %v", when, n, capture.Packets())
			}
			if n := heard(); n != 0 {
				t.Errorf("%s: the host was reached %d times", when, n)
			}
		}
		stdin, end := io.Pipe()
		out, ended := &lockedBuffer{}, make(chan error, 1)
		go func() {
			_, err := l.client.Attach(t.Context(), "closed", types.Exec{
				Argv: append(args[:len(args):len(args)], "0"), Permissions: []string{"@network"}, AllowedDomains: []string{name}, TimeoutMs: unhurried,
			}, client.Streams{Stdin: stdin, Stdout: out, Stderr: out})
			ended <- err
		}()
		eventually(t, "it sends", func() bool { return strings.Contains(out.String(), "begun") })
		for what, script := range theirs {
			rounds := l.fight(t, script, lasts)
			nothing(fmt.Sprintf("rules %s %d times", what, rounds))
			succeeds(t, l.reach(t, "closed", hello("http://"+name), name))
		}
		_ = end.Close()
		if err := <-ended; err != nil || !strings.Contains(out.String(), "tried") {
			t.Errorf("%v: %s", err, out)
		}
		nothing("at last")

		id := l.containerOf(t, "closed").ID
		l.stop(syscall.SIGKILL)
		// An agent that ends takes with it what begins meanwhile.
		eventually(t, "the agent has ended with the service", func() bool {
			programs, err := l.programs(id)
			return err == nil && !strings.Contains(programs, "session")
		})
		// Past the service, in the same container.
		text := make(chan string, 1)
		go func() {
			text <- l.inside(t, id, append(args[:len(args):len(args)], fmt.Sprint((lasts*time.Duration(len(theirs))+time.Second).Seconds()))...)
		}()
		for what, script := range theirs {
			nothing(fmt.Sprintf("without the service, rules %s %d times", what, l.fight(t, script, lasts)))
		}
		if said := <-text; !strings.Contains(said, "tried") {
			t.Errorf("%q", said)
		}
		nothing("without the service")
		if err := l.start(); err != nil {
			t.Fatal(err)
		}
		if got := succeeds(t, l.reach(t, "closed", hello("https://"+name), name)); got != "hello from "+name {
			t.Errorf("%q", got)
		}
	})
}

// gateways are the containers that are the lab's gateways.
func (l *lab) gateways(t *testing.T) []container.Summary {
	t.Helper()
	list, err := l.engine.ContainerList(context.Background(), container.ListOptions{All: true, Filters: filters.NewArgs(
		filters.Arg("label", "run.daycare.sandbox.instance="+l.instance()), filters.Arg("label", "run.daycare.sandbox.gateway"))})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// gatewayOf is the one that there is.
func (l *lab) gatewayOf(t *testing.T) container.Summary {
	t.Helper()
	list := l.gateways(t)
	if len(list) != 1 {
		t.Fatalf("%d gateways", len(list))
	}
	return list[0]
}

// attached are the interfaces in the lab's gateway.
func (l *lab) attached(t *testing.T) string {
	t.Helper()
	found, err := l.engine.ContainerInspect(context.Background(), l.gatewayOf(t).ID)
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("nsenter", "-t", fmt.Sprint(found.State.Pid), "-n", "ip", "-o", "route").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// A gateway that is gone takes the containers on it with it; the next call has both anew. It is not looked for
// where no container needs it.
func TestEgressGatewayIsMadeAnew(t *testing.T) {
	eachOutsideOwn(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "anew")
		name := w.name(t, "anew", w.shared)
		succeeds(t, l.reach(t, "anew", hello("http://"+name), name))
		before, gateway := l.containerOf(t, "anew").ID, l.gatewayOf(t).ID
		for _, end := range []func() error{
			func() error { return l.engine.ContainerKill(context.Background(), gateway, "KILL") },
			func() error {
				l.stop(syscall.SIGKILL) // nobody sees it go
				return l.engine.ContainerRemove(context.Background(), gateway, container.RemoveOptions{Force: true})
			},
		} {
			if err := end(); err != nil {
				t.Fatal(err)
			}
			select {
			case <-l.exited:
				if err := l.start(); err != nil {
					t.Fatal(err)
				}
			default:
			}
			// Until its end is heard of, the containers on it work on: the service has its sockets.
			var next, gateway2 string
			eventually(t, "the name is reached by another container, at another gateway", func() bool {
				out, err := l.client.Exec(t.Context(), "anew", types.Exec{
					Command: hello("http://" + name), Permissions: []string{"@network"}, AllowedDomains: []string{name}, TimeoutMs: unhurried,
				})
				if err != nil || strings.TrimSpace(out.Stdout) != "hello from "+name {
					return false
				}
				on, at := l.containersOf(t, "anew"), l.gateways(t)
				if len(on) != 1 || len(at) != 1 {
					return false
				}
				next, gateway2 = on[0].ID, at[0].ID
				return next != before && gateway2 != gateway
			})
			before, gateway = next, gateway2
		}
	})
}

// One container's flood of questions is its own: another's new names are answered.
func TestEgressOfAFlood(t *testing.T) {
	eachOutside(t, func(t *testing.T, l *lab, w *world) {
		for _, user := range []string{"flood", "calm"} {
			l.traveller(t, w, user)
		}
		flood, calm := w.name(t, "flood", w.shared), w.name(t, "calm", w.shared)
		stdin, end := io.Pipe()
		out, ended := &lockedBuffer{}, make(chan error, 1)
		l.put(t, "flood", "flood.py", `
import os, socket, threading
ended = threading.Event()
def read():
    while os.read(0, 100): pass
    ended.set()
threading.Thread(target=read, daemon=True).start()
gateway = [line.split()[1] for line in open("/etc/resolv.conf") if line.startswith("nameserver")][0]
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect((gateway, 53))
sent = 0
while not ended.is_set():
    for i in range(100):
        try: s.send(b"\0\1\1\0\0\1\0\0\0\0\0\0\1a\7example\0\0\1\0\1"); sent += 1
        except OSError: pass
    if sent == 100: print("begun", flush=True)
print("sent", sent)
`)
		go func() {
			_, err := l.client.Attach(t.Context(), "flood", types.Exec{
				Argv: []string{"python3", "/home/flood.py"}, Permissions: []string{"@network"}, AllowedDomains: []string{flood}, TimeoutMs: unhurried,
			}, client.Streams{Stdin: stdin, Stdout: out, Stderr: out})
			ended <- err
		}()
		eventually(t, "the flood begins", func() bool { return strings.Contains(out.String(), "begun") })
		for i := range 5 {
			fresh := w.name(t, fmt.Sprint("fresh", i), w.shared)
			if got := succeeds(t, l.reach(t, "calm", hello("http://"+fresh), calm, "*.example")); got != "hello from "+fresh {
				t.Errorf("%q", got)
			}
		}
		_ = end.Close()
		if err := <-ended; err != nil || !strings.Contains(out.String(), "sent") {
			t.Errorf("%v: %s", err, out)
		}
	})
}

// Mail to other servers goes nowhere, also from calls that may reach all of the internet, and nobody reaches an
// address that is the host's own by the operator's word.
func TestEgressOfMailAndOwnAddresses(t *testing.T) {
	beside(t)
	named := openWorld(t).origin(t)
	eachOutsideOwn(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "mail")
		mail := w.fresh()
		for _, port := range []uint16{25, 587} {
			if err := w.Listen(netip.AddrPortFrom(mail, port)); err != nil {
				t.Fatal(err)
			}
		}
		own := w.name(t, "own", named)
		text := succeeds(t, l.reach(t, "mail", strings.Join([]string{
			dial(netip.AddrPortFrom(mail, 587)), dial(netip.AddrPortFrom(mail, 25)), dial(netip.AddrPortFrom(named, 80)),
		}, "\n"), "*"))
		if lines := strings.Split(text, "\n"); len(lines) != 3 || lines[0] != "connected" || !strings.HasPrefix(lines[1], "refused") || !strings.HasPrefix(lines[2], "refused") {
			t.Errorf("%q", text)
		}
		if out := l.reach(t, "mail", hello("-f http://"+own), own); !out.Failed {
			t.Errorf("by name: %q", out.Stdout)
		}
	}, "SANDBOXD_EGRESS_OWN_ADDRESSES="+named.String())
}
