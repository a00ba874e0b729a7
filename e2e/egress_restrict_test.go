package e2e

import (
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
)

// A name that a call gives up is denied to it below a wildcard that it allows, and others are reached.
func TestDeniedDomains(t *testing.T) {
	eachOutside(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "give-domain")
		base := w.name(t, "base", w.shared)
		open, closed := "open."+base, "closed."+base
		for _, name := range []string{open, closed} {
			w.DNS.SetA(name, 60e9, w.shared)
		}
		get := func(scheme string) types.Output {
			return l.run(t, "give-domain", types.Exec{
				Command:     hello(scheme+"://"+open) + "; " + hello(scheme+"://"+closed),
				Permissions: []string{"@network"}, AllowedDomains: []string{"*." + base}, Restrictions: types.Restrictions{DeniedDomains: []string{closed}},
				Env: map[string]string{"CURL_CA_BUNDLE": "/home/ca.pem"},
			})
		}
		for _, scheme := range []string{"http", "https"} {
			out := get(scheme)
			if verdict, _ := refused(out, closed); verdict != "denied" || len(w.arrivals(open)) == 0 || len(w.arrivals(closed)) != 0 {
				t.Errorf("%s: %+v, arrived %v and %v: %s", scheme, out.Egress, w.arrivals(open), w.arrivals(closed), out.Stderr)
			}
		}
		// Also when the address is known: the name that is asked for decides.
		out := l.run(t, "give-domain", types.Exec{
			Command:     "curl -sS --max-time 20 --resolve " + closed + ":443:" + w.shared.String() + " https://" + closed + "/hello",
			Permissions: []string{"@network"}, AllowedDomains: []string{"*." + base}, Restrictions: types.Restrictions{DeniedDomains: []string{closed}},
			Env: map[string]string{"CURL_CA_BUNDLE": "/home/ca.pem"},
		})
		if verdict, _ := refused(out, closed); verdict != "denied" || len(w.arrivals(closed)) != 0 {
			t.Errorf("past DNS: %+v", out.Egress)
		}
		// And what gives nothing up reaches it.
		if out := l.reach(t, "give-domain", hello("https://"+closed), "*."+base); out.Failed || len(w.arrivals(closed)) == 0 {
			t.Errorf("without a restriction: %+v", out)
		}
		_, err := l.client.Exec(t.Context(), "give-domain", types.Exec{
			Command: "true", Permissions: []string{"@network"}, AllowedDomains: []string{"*"}, Restrictions: types.Restrictions{DeniedDomains: []string{closed}},
		})
		if kindOf(err) != types.Invalid || !strings.Contains(err.Error(), "nothing is filtered") {
			t.Errorf("with *: %v", err)
		}
	})
}
