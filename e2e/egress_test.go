package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/e2e/inet"
)

// A call reaches what it names, by HTTP and HTTPS, and nothing else; what it did not reach is told.
func TestEgressByName(t *testing.T) {
	eachOutside(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "byname")
		allowed, denied := w.name(t, "allowed", w.shared), w.name(t, "denied", w.shared)
		for _, scheme := range []string{"http://", "https://"} {
			if got := succeeds(t, l.reach(t, "byname", hello(scheme+allowed), allowed)); got != "hello from "+allowed {
				t.Errorf("%s: %q", scheme, got)
			}
		}
		if n := len(w.arrivals(allowed)); n != 2 {
			t.Errorf("%d requests arrived, not 2", n)
		}
		// Without an answer the resolver would wait for longer than curl does, whose word is then another.
		out := l.reach(t, "byname", "RES_OPTIONS='timeout:30 attempts:5' curl -sS --max-time 60 https://"+denied+"/hello; echo code $?", allowed)
		if !strings.Contains(out.Stdout, "code 6") { // curl's word for a name that does not resolve
			t.Errorf("denied: %q %q", out.Stdout, out.Stderr)
		}
		if verdict, count := refused(out, denied); verdict != "denied" || count == 0 {
			t.Errorf("the result tells %+v", out.Egress)
		}
		if n := w.DNS.Asked(denied); n != 0 {
			t.Errorf("the denied name was asked for %d times outside", n)
		}
		if out := l.reach(t, "byname", hello("https://"+allowed), allowed); len(out.Egress) != 0 {
			t.Errorf("a call that was refused nothing tells %+v", out.Egress)
		}
		// Without the grant there is not even an interface.
		if got := l.sh(t, "byname", "ls /sys/class/net 2>/dev/null | grep -v '^lo$' | wc -l; curl -sS --max-time 10 http://"+allowed+" >/dev/null 2>&1; echo code $?"); !strings.HasPrefix(got, "0\ncode 6") {
			t.Errorf("without @network: %q", got)
		}
	})
}

// What is asked at the API: each row of the table of grants and names.
func TestEgressOfRequests(t *testing.T) {
	eachOutside(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "table")
		l.registerAs(t, "tableless", types.Registration{UserID: "table"})
		for _, c := range []struct {
			name, sandbox string
			e             types.Exec
			kind          types.Kind
			want          string
		}{
			{"names without the grant", "table", types.Exec{AllowedDomains: []string{"example.org"}}, types.Denied, "allowedDomains needs @network"},
			{"presets without the grant", "table", types.Exec{PackageManagers: []string{"node"}}, types.Denied, "packageManagers needs @network"},
			{"the grant without a name", "table", types.Exec{Permissions: []string{"@network"}}, types.Invalid, "@network needs a domain"},
			{"an empty list", "table", types.Exec{Permissions: []string{"@network"}, AllowedDomains: []string{}}, types.Invalid, "@network needs a domain"},
			{"a sandbox that does not hold it", "tableless", types.Exec{Permissions: []string{"@network"}, AllowedDomains: []string{"example.org"}}, types.Denied, "@network"},
			{"an address", "table", types.Exec{Permissions: []string{"@network"}, AllowedDomains: []string{"198.51.100.10"}}, types.Invalid, "198.51.100.10"},
			{"all of a suffix", "table", types.Exec{Permissions: []string{"@network"}, AllowedDomains: []string{"*.com"}}, types.Invalid, "*.com"},
			{"a scheme", "table", types.Exec{Permissions: []string{"@network"}, AllowedDomains: []string{"https://example.org"}}, types.Invalid, "https://example.org"},
			{"an unknown preset", "table", types.Exec{Permissions: []string{"@network"}, PackageManagers: []string{"npm"}}, types.Invalid, "npm"},
			{"neither", "table", types.Exec{Permissions: []string{}}, "", ""},
		} {
			c.e.Command = "true"
			_, err := l.client.Exec(t.Context(), c.sandbox, c.e)
			if kindOf(err) != c.kind || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v", c.name, err)
			}
		}
	})
}

func TestEgressWildcards(t *testing.T) {
	eachOutside(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "wild")
		apex := w.name(t, "apex", w.shared)
		below, deep, beside := "a."+apex, "a.b."+apex, "evil"+apex
		for _, name := range []string{below, deep, beside} {
			w.DNS.SetA(name, time.Minute, w.shared)
		}
		for name, ok := range map[string]bool{below: true, deep: true, apex: false, beside: false, strings.ToUpper(below): true, below + ".": true} {
			out := l.reach(t, "wild", hello("http://"+name), "*."+apex)
			if out.Failed == ok {
				t.Errorf("%s: %s %q %q", name, exitText(out), out.Stdout, out.Stderr)
			}
		}
		// A name beyond ASCII is the one that DNS knows it by.
		idna := "xn--bcher-kva." + apex
		w.DNS.SetA(idna, time.Minute, w.shared)
		if got := succeeds(t, l.reach(t, "wild", hello("http://"+idna), "Bücher."+apex+".")); got != "hello from "+idna {
			t.Errorf("%q", got)
		}
	})
}

// Open reaches all that is public, by address and on any port, and still nothing of the host or of
// private networks; an operator may forbid it.
func TestEgressOpen(t *testing.T) {
	eachOutside(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "open")
		port := netip.AddrPortFrom(w.fresh(), 5432)
		if err := w.Listen(port); err != nil {
			t.Fatal(err)
		}
		capture, private := w.capture(t), w.private(t)
		out := l.reach(t, "open", dial(port)+"; "+hello("http://"+w.other.String())+"; for a in "+private.String()+" "+w.metadata.String()+"; do curl -s --max-time 3 http://$a/hello; done; true", "*")
		if want := "connected\nhello from " + w.other.String(); strings.TrimSpace(out.Stdout) != want {
			t.Errorf("%q %q, want %q", out.Stdout, out.Stderr, want)
		}
		for _, addr := range []netip.Addr{private, w.metadata} {
			if n := seen(t, capture, addr); n != 0 {
				t.Errorf("%d packets came to %s", n, addr)
			}
		}
	})
	eachOutsideOwn(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "open")
		_, err := l.client.Exec(t.Context(), "open", types.Exec{Command: "true", Permissions: []string{"@network"}, AllowedDomains: []string{"*"}})
		if kindOf(err) != types.Denied || !strings.Contains(err.Error(), `"*" is forbidden`) {
			t.Errorf("%v", err)
		}
	}, "SANDBOXD_EGRESS_ALLOW_GLOBAL_WILDCARD=false")
}

// dial is a command that says whether a TCP connection came about.
func dial(to netip.AddrPort) string {
	return fmt.Sprintf(`python3 -c 'import socket
try:
    socket.create_connection(("%s", %d), 20).close(); print("connected")
except OSError as e: print("refused", e)'`, to.Addr(), to.Port())
}

// seen is how many packets a capture has of what went to an address.
func seen(t *testing.T, c *inet.Capture, to netip.Addr) int {
	t.Helper()
	if err := c.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c.Seen(inet.Flow{Dst: to})
}

// Only the name that is asked for decides: where an alias leads does not matter.
func TestEgressAliases(t *testing.T) {
	eachOutside(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "alias")
		target, alias := w.name(t, "target", w.shared), w.name(t, "alias")
		w.DNS.SetCNAME(alias, time.Minute, target)
		if got := succeeds(t, l.reach(t, "alias", hello("https://"+alias), alias)); got != "hello from "+alias {
			t.Errorf("%q", got)
		}
		if out := l.reach(t, "alias", hello("https://"+target), alias); !out.Failed {
			t.Errorf("the alias's target: %q", out.Stdout)
		}
	})
}

// Two names at one address: what the first bytes ask for decides, on each request.
func TestEgressSharedAddress(t *testing.T) {
	eachOutside(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "shared")
		allowed, denied := w.name(t, "allowed", w.shared), w.name(t, "denied", w.shared)
		at := w.shared.String()
		for _, c := range []struct {
			name, command, want string
			ok                  bool
		}{
			{"TLS, allowed", hello("--resolve " + allowed + ":443:" + at + " https://" + allowed), "hello from " + allowed, true},
			{"TLS, denied at the same address", hello("--resolve " + denied + ":443:" + at + " https://" + denied), "", false},
			{"HTTP, denied at the same address", "curl -sS -f --max-time 20 -H 'Host: " + denied + "' http://" + allowed + "/hello", "", false},
			{"HTTP, absolute URI", "curl -sS -f --max-time 20 --proxy http://" + at + ":80 http://" + denied + "/hello", "", false},
			{"HTTP, kept alive", "curl -sS --max-time 20 http://" + allowed + "/hello --next -sS -f --max-time 20 -H 'Host: " + denied + "' http://" + allowed + "/kept", "hello from " + allowed, false},
		} {
			out := l.reach(t, "shared", c.command, allowed)
			if out.Failed == c.ok || !strings.Contains(out.Stdout, c.want) {
				t.Errorf("%s: %s %q %q", c.name, exitText(out), out.Stdout, out.Stderr)
			}
		}
		if paths := w.arrivals(denied); len(paths) != 0 {
			t.Errorf("requests arrived for the denied name: %v", paths)
		}
	})
}

// What an operator opens beside HTTP and HTTPS is open at the allowed names alone.
func TestEgressExtraPorts(t *testing.T) {
	eachOutsideOwn(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "ports")
		here, there := w.fresh(), w.fresh()
		for _, addr := range []netip.Addr{here, there} {
			for _, port := range []uint16{22, 2222} {
				if err := w.Listen(netip.AddrPortFrom(addr, port)); err != nil {
					t.Fatal(err)
				}
			}
		}
		name, capture := w.name(t, "git", here), w.capture(t)
		out := l.reach(t, "ports", strings.Join([]string{
			"getent ahostsv4 " + name + " >/dev/null", fmt.Sprintf("echo x > /dev/udp/%s/443", here), dial(netip.AddrPortFrom(here, 22)), dial(netip.AddrPortFrom(here, 2222)),
			strings.Replace(dial(netip.AddrPortFrom(there, 22)), ".close()", ".recv(1)", 1), // until the service has ended it
		}, "\n"), name)
		text := succeeds(t, out)
		// What was refused is told, by the name that was asked for where there is one.
		const open = "only TCP ports 22, 80, 443 are open here; the operator can open more with egress.extraPorts"
		want := []types.Refusal{
			{Name: name, Port: 443, Verdict: types.VerdictDenied, Via: types.ViaUDP, Reason: open, Count: 1},
			{Name: name, Port: 2222, Verdict: types.VerdictDenied, Via: types.ViaTCP, Reason: open, Count: 1},
			{Name: there.String(), Port: 22, Verdict: types.VerdictDenied, Via: types.ViaTCP, Reason: "the address was not answered for an allowed name, or too long ago: ask for the name again", Count: 1},
		}
		for i, r := range out.Egress {
			if r.Port == 2222 { // who reads the answer after more than a second has asked twice
				out.Egress[i].Count = min(r.Count, 1)
			}
		}
		inAnyOrder := cmpopts.SortSlices(func(a, b types.Refusal) bool { return a.Port < b.Port }) // gateway and guard do not wait for each other
		if diff := cmp.Diff(want, out.Egress, inAnyOrder); diff != "" {
			t.Errorf("want (-), got (+):\n%s", diff)
		}
		// At the other address the service answers, and ends it.
		if lines := strings.Split(text, "\n"); len(lines) != 3 || lines[0] != "connected" || !strings.HasPrefix(lines[1], "refused") {
			t.Errorf("%q", text)
		}
		if n := seen(t, capture, there); n != 0 || seen(t, capture, here) == 0 {
			t.Errorf("%d packets came to where no name leads: %v", n, capture.Packets())
		}
	}, "SANDBOXD_EGRESS_EXTRA_PORTS=22")
}

// Real programs go through the filter as they do elsewhere.
func TestEgressOfRealPrograms(t *testing.T) {
	eachOutside(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "programs")
		name := w.name(t, "files", w.shared)
		for program, command := range map[string]string{
			"large download": "test $(curl -sS https://" + name + "/bytes?n=100000000 | wc -c) = 100000000",
			"upload":         "test $(head -c 3000000 /dev/zero | curl -sS --data-binary @- -H 'Content-Type: application/octet-stream' https://" + name + "/echo | wc -c) = 3000000",
			"wget":           "wget -q --ca-certificate=/home/ca.pem -O- https://" + name + "/hello",
			"python":         `python3 -c 'import urllib.request; print(urllib.request.urlopen("https://` + name + `/hello").read())'`,
			"http/2":         "curl -sS --http2 -o /dev/null -w '%{http_version}' https://" + name + "/hello | grep 2",
			"half-close":     `python3 -c 'import socket; s = socket.create_connection(("` + name + `", 80)); s.sendall(b"GET /hello HTTP/1.1\r\nHost: ` + name + `\r\nConnection: close\r\n\r\n"); s.shutdown(socket.SHUT_WR); b = b"".join(iter(lambda: s.recv(1000), b"")); assert b"hello from" in b, b'`,
			"many at once":   "for i in $(seq 20); do curl -sS -o /dev/null https://" + name + "/hello & all=\"$all $!\"; done; for one in $all; do wait $one || exit; done",
			"unreachable":    "! curl -sS --max-time 20 https://" + w.name(t, "nowhere", w.Addr(200)) + " 2>/dev/null",
		} {
			out := l.reach(t, "programs", command, "*.example")
			if out.Failed {
				t.Errorf("%s: %s %.300q %.300q %v", program, exitText(out), out.Stdout, out.Stderr, out.Egress)
			}
		}
	})
}

// The log of decisions has what was asked, by whom, and follows.
func TestEgressDecisions(t *testing.T) {
	eachOutside(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "decisions")
		allowed, denied := w.name(t, "one", w.shared), w.name(t, "another", w.shared) // which do not say the verdict themselves
		succeeds(t, l.reach(t, "decisions", hello("http://"+allowed)+"; "+hello("http://"+denied)+"; true", allowed))
		for _, name := range []string{allowed, denied} {
			out, err := l.cli("egress", "log", "--user", "decisions", "--name", name).CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			printed := string(out)
			want := "allowed" // which a reason for the other may say, too
			if name == denied {
				want = "denied"
			}
			if !strings.Contains(printed, name) || !strings.Contains(printed, want) || strings.Contains(printed, "denied") != (name == denied) {
				t.Errorf("%q", printed)
			}
		}
		// What is counted is counted by verdict, never by name.
		web := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", l.path("sandboxd.sock"))
		}}}
		answer, err := web.Get("http://x/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		out, err := io.ReadAll(answer.Body)
		if err != nil || !strings.Contains(string(out), `sandboxd_egress_decisions_total{verdict="denied",via="dns"}`) || strings.Contains(string(out), denied) {
			t.Errorf("metrics: %v\n%.2000s", err, out)
		}
	})
}
