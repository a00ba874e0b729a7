package e2e

import (
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
)

// knowsItself says what a program finds out about its own machine's names: the addresses of its own name and of localhost,
// whether ::1 can be bound just where it has a name, and the servers of names.
const knowsItself = `python3 -c '
import socket
print("self", socket.gethostbyname(socket.gethostname()))
print("localhost", *sorted({a[4][0] for a in socket.getaddrinfo("localhost", 80)}))
def can(do):
    try: do(); return True
    except OSError: return False
bound = can(lambda: socket.socket(socket.AF_INET6).bind(("::1", 0)))
named = can(lambda: socket.getaddrinfo("ip6-localhost", 80, socket.AF_INET6))
print("::1", "as named" if bound == named else f"bound {bound}, named {named}")
print("servers", sum(line.startswith("nameserver") for line in open("/etc/resolv.conf")))
'; getent hosts $(hostname) | tr -s ' '; getent ahostsv6 $(hostname); getent ahostsv6 localhost; true`

// What knowsItself says in a container with so many servers of names.
func itself(servers string) string {
	return "self 127.0.0.1\nlocalhost 127.0.0.1\n::1 as named\nservers " + servers + "\n127.0.0.1 localhost sandbox"
}

// Every kind of container knows its own name, and to ask for it is no attempt to reach another; a container without a network
// knows no servers.
func TestEveryContainerKnowsItself(t *testing.T) {
	eachOutside(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "itself")
		if got := l.sh(t, "itself", knowsItself); got != itself("0") {
			t.Errorf("without a network: %q", got)
		}
		for _, domain := range []string{w.name(t, "some", w.shared), "*"} {
			out := l.reach(t, "itself", knowsItself, domain)
			if got := strings.TrimSpace(out.Stdout); got != itself("1") || len(out.Egress) != 0 {
				t.Errorf("with %s: %q %q, told %+v", domain, got, out.Stderr, out.Egress)
			}
		}
		for servers, p := range map[string]types.StartProcess{
			"0": {Command: knowsItself + "; sleep 987651"},
			"1": {Command: knowsItself + "; sleep 987651", Permissions: []string{"@network"}, AllowedDomains: []string{w.name(t, "one", w.shared)}},
		} {
			prints(t, l.startProcess(t, "itself", p), itself(servers))
		}
	})
}
