package e2e

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/docker/docker/api/types/network"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// Two calls of one user at the same time, one with a name and one without: neither shares what the other
// was granted, nor does what one leaves running.
func TestEgressIsOfTheCall(t *testing.T) {
	eachOutside(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "calls")
		first, second := w.name(t, "first", w.shared), w.name(t, "second", w.shared)
		type answer struct {
			out types.Output
			err error
		}
		done := make(chan answer, 1)
		go func() {
			out, err := l.client.Exec(t.Context(), "calls", types.Exec{
				Command: "until test -e /tmp/other-done; do sleep 0.1; done; " + hello("http://"+first), Permissions: []string{"@network"}, AllowedDomains: []string{first},
				TimeoutMs: unhurried,
			})
			done <- answer{out, err}
		}()
		if out := l.reach(t, "calls", hello("http://"+first), second); !out.Failed {
			t.Errorf("the second call reaches the first one's name: %q", out.Stdout)
		}
		if out := l.run(t, "calls", types.Exec{Command: hello("http://" + first)}); !out.Failed {
			t.Errorf("a call without @network reaches it: %q", out.Stdout)
		}
		succeeds(t, l.reach(t, "calls", hello("http://"+second)+" && touch /tmp/other-done", second))
		for _, c := range l.containersOf(t, "calls") { // under gVisor Docker connects none of them
			made, err := l.engine.ContainerInspect(t.Context(), c.ID)
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(made.HostConfig.Runtime, "runsc") && (made.HostConfig.Runtime == "runsc" || len(made.NetworkSettings.Networks) != 0) {
				t.Errorf("%s is of %s, in the networks %v", made.Name, made.HostConfig.Runtime, made.NetworkSettings.Networks)
			}
		}
		a := <-done
		if a.err != nil {
			t.Fatal(a.err)
		}
		succeeds(t, a.out)
	})
}

// A container that is gone has no way any more, and who gets its address next has only its own.
func TestEgressAddressReuse(t *testing.T) {
	eachOutsideOwn(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "reuse")
		first, second := w.name(t, "first", w.shared), w.name(t, "second", w.shared)
		// While a call runs its container is not idle, however long it takes to look at that.
		wait, end := io.Pipe()
		out, ended := &lockedBuffer{}, make(chan error, 1)
		go func() {
			_, err := l.client.Attach(t.Context(), "reuse", types.Exec{
				Command: hello("http://"+first) + "; read line", Permissions: []string{"@network"}, AllowedDomains: []string{first}, TimeoutMs: unhurried,
			}, client.Streams{Stdin: wait, Stdout: out})
			ended <- err
		}()
		eventually(t, "the call has reached it", func() bool { return strings.Contains(out.String(), "hello from "+first) })
		old := l.containersOf(t, "reuse")
		if len(old) != 1 {
			t.Fatalf("%d containers", len(old))
		}
		addr := l.addressOf(t, old[0].ID)
		if there := l.attached(t); !strings.Contains(there, addr+" dev") {
			t.Errorf("the container %s is not at its gateway: %s", addr, there)
		}
		_ = end.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		eventually(t, "the idle container is removed", func() bool { return len(l.containersOf(t, "reuse")) == 0 })
		eventually(t, "it is not at its gateway", func() bool { return !strings.Contains(l.attached(t), addr+" dev") })
		succeeds(t, l.reach(t, "reuse", hello("http://"+second), second))
		if out := l.reach(t, "reuse", hello("http://"+first), second); !out.Failed {
			t.Errorf("%q", out.Stdout)
		}
	}, "SANDBOXD_IDLE_REMOVE_AFTER=1s")
}

// A network is as large as the settings say, and so are the meters of its gateway: each of its addresses is bounded.
func TestEgressOfALargerNetwork(t *testing.T) {
	eachOutsideOwn(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "large")
		name := w.name(t, "large", w.shared)
		succeeds(t, l.reach(t, "large", hello("http://"+name), name))
		made, err := l.engine.NetworkInspect(t.Context(), l.egress+"-isolated", network.InspectOptions{})
		if err != nil || len(made.IPAM.Config) != 1 || !strings.HasSuffix(made.IPAM.Config[0].Subnet, "/17") {
			t.Fatalf("%+v, %v", made.IPAM, err)
		}
		if subnet := netip.MustParsePrefix(made.IPAM.Config[0].Subnet); !subnet.Contains(netip.MustParseAddr(l.addressOf(t, l.containerOf(t, "large").ID))) {
			t.Errorf("a container is not in %s", subnet)
		}
		gateway, err := l.engine.ContainerInspect(t.Context(), l.gatewayOf(t).ID)
		if err != nil {
			t.Fatal(err)
		}
		rules := l.place.command(t, "nsenter", "-t", fmt.Sprint(gateway.State.Pid), "-n", "nft", "list", "ruleset")
		if strings.Count(rules, "size 32768") != 3 { // of questions, of connections, and of what was refused
			t.Error(rules)
		}
	}, "SANDBOXD_EGRESS_SUBNET_BITS=17")
}

// While the service is down nothing passes; when it is back, the same containers work again.
func TestEgressWhileTheServiceIsDown(t *testing.T) {
	eachOutsideOwn(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "down")
		at := w.origin(t) // which nobody else comes to
		name := w.name(t, "down", at)
		succeeds(t, l.reach(t, "down", hello("http://"+name), name))
		before := l.containersOf(t, "down")
		l.stop(syscall.SIGKILL)
		eventually(t, "its own connections have closed", func() bool { return l.place.command(t, "ss", "-Htn", "dst", at.String()) == "" })
		capture := w.capture(t)
		// Past the service: Docker runs it in the same container.
		text := ""
		eventually(t, "the agent has ended, which ends all that runs there", func() bool {
			text = l.inside(t, before[0].ID, "sh", "-c", "curl -sS --max-time 2 --resolve "+name+":80:"+at.String()+" http://"+name+"/hello & "+
				"curl -sS --max-time 2 -k --resolve "+name+":443:"+at.String()+" https://"+name+"/hello & timeout 2 getent hosts "+name+" & wait; echo end")
			return strings.Contains(text, "end")
		})
		if strings.Contains(text, "hello from") {
			t.Errorf("%q", text)
		}
		if n := seen(t, capture, at); n != 0 {
			t.Errorf("%d packets came while the service was down", n)
		}
		if err := l.start(); err != nil {
			t.Fatal(err)
		}
		out := l.reach(t, "down", hello("http://"+name), name)
		if got := succeeds(t, out); got != "hello from "+name || out.Cold {
			t.Errorf("%q, cold %t", got, out.Cold)
		}
		if after := l.containersOf(t, "down"); len(after) != 1 || after[0].ID != before[0].ID {
			t.Error("it is another container")
		}
	})
}

// Rules that someone flushed are put back; a network that someone changed is recreated.
func TestEgressRepairs(t *testing.T) {
	eachOutsideOwn(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "repair")
		name := w.name(t, "repair", w.shared)
		call := func() types.Output { return l.reach(t, "repair", hello("http://"+name), name) }
		succeeds(t, call())
		table := l.egress + "-isolated"
		good := l.place.nft(t, "-s", "-t", "list", "table", "inet", table)
		l.place.nft(t, "flush", "table", "inet", table)
		eventually(t, "the rules are back", func() bool { return l.place.nft(t, "-s", "-t", "list", "table", "inet", table) == good })
		eventually(t, "the log tells of the repair", func() bool { return strings.Contains(l.log.String(), "repaired") })
		succeeds(t, call())

		// The bridge loses its address: the next container notices.
		for _, spoil := range [][]string{{"addr", "flush", "dev", l.egress + "-iso"}, {"link", "del", l.egress + "-iso"}} {
			l.place.ip(t, spoil...)
			l.registerAs(t, "repair2", types.Registration{UserID: "repair2", Permissions: types.Permissions{Network: true}})
			if got := succeeds(t, l.reach(t, "repair2", hello("http://"+name), name)); got != "hello from "+name {
				t.Errorf("after %v: %q", spoil, got)
			}
			if got := succeeds(t, call()); got != "hello from "+name {
				t.Errorf("after %v, the first user: %q", spoil, got)
			}
			l.cool(t, "repair2")
		}

		// Docker lets go of a network on which it counts no container, as of those that their runtime has connected. It is made again,
		// and they go on.
		before, linked := l.containerOf(t, "repair").ID, strings.Contains(t.Name(), "/runsc")
		if err := l.engine.NetworkRemove(t.Context(), table); (err == nil) != linked {
			t.Errorf("the network is removed: %v", err)
		}
		succeeds(t, l.reach(t, "repair2", hello("http://"+name), name))
		succeeds(t, call())
		if now := l.containerOf(t, "repair").ID; now != before {
			t.Errorf("the container was made again")
		}
	})
}

// Nothing of a lab is left on the host when it is closed.
func TestEgressLeavesNothing(t *testing.T) {
	w := openWorld(t)
	l := newLab(t, "runc", worldSettings(w)...)
	l.traveller(t, w, "leaves")
	succeeds(t, l.reach(t, "leaves", "true", "example.org"))
	l.close()
	if _, err := net.InterfaceByName(l.egress + "-iso"); err == nil {
		t.Error("the bridge is left")
	}
	if listed := l.place.nft(t, "list", "tables"); strings.Contains(listed, l.egress) {
		t.Errorf("tables are left:\n%s", listed)
	}
	if _, err := os.Stat(l.dir); err == nil {
		t.Error("the folder is left")
	}
}

// Without the right to make rules the service does not start; where the operator accepts that, calls have
// no network or all of it, and none is said to be filtered.
func TestEgressWithoutRights(t *testing.T) {
	w := openWorld(t)
	l := newLab(t, "runc", worldSettings(w)...)
	l.stop(syscall.SIGTERM)
	l.wrap = []string{"setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"}
	if err := l.start(); err == nil || !strings.Contains(err.Error(), "CAP_NET_ADMIN") || !strings.Contains(err.Error(), "enableWeakerNestedSandbox") {
		t.Errorf("without the right: %v", err)
	}
	l.environ = append(l.environ, "SANDBOXD_DOCKER_ENABLE_WEAKER_NESTED_SANDBOX=true")
	if err := l.start(); err != nil {
		t.Fatal(err)
	}
	l.traveller(t, w, "weak")
	_, err := l.client.Exec(t.Context(), "weak", types.Exec{Command: "true", Permissions: []string{"@network"}, AllowedDomains: []string{"example.org"}})
	if kindOf(err) != types.Denied || !strings.Contains(err.Error(), "cannot restrict a call to names") {
		t.Errorf("filtered: %v", err)
	}
	name := w.name(t, "weak", w.shared)
	if got := succeeds(t, l.reach(t, "weak", hello("http://"+name), "*")); got != "hello from "+name {
		t.Errorf("open: %q", got)
	}
	if out := l.run(t, "weak", types.Exec{Command: hello("http://" + w.shared.String())}); !out.Failed {
		t.Errorf("blocked: %q", out.Stdout)
	}
}
