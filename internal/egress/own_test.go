package egress

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"github.com/rs/zerolog"
)

// What clouds answer, each in its own way, and what others answer to the same questions.
func TestPublicAddresses(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(w http.ResponseWriter, r *http.Request)
		want   string
	}{
		"Amazon": {func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.Method == http.MethodPut && r.URL.Path == "/latest/api/token" && r.Header.Get("X-aws-ec2-metadata-token-ttl-seconds") != "":
				fmt.Fprint(w, "secret")
			case r.URL.Path == "/latest/meta-data/public-ipv4" && r.Header.Get("X-aws-ec2-metadata-token") == "secret":
				fmt.Fprint(w, "203.0.113.7")
			default:
				w.WriteHeader(http.StatusUnauthorized)
			}
		}, "[203.0.113.7]"},
		"Google": {func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Metadata-Flavor") != "Google" || r.URL.Path != "/computeMetadata/v1/instance/network-interfaces/0/access-configs/0/external-ip" {
				w.WriteHeader(http.StatusForbidden)
				return
			}
			fmt.Fprintln(w, "203.0.113.8")
		}, "[203.0.113.8]"},
		"Azure": {func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Metadata") != "true" {
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			fmt.Fprint(w, "203.0.113.9")
		}, "[203.0.113.9]"},
		"another":   {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>hello</html>") }, "[]"},
		"a bouncer": {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) }, "[]"},
	} {
		server := httptest.NewServer(http.HandlerFunc(c.answer))
		if got := fmt.Sprint(PublicAddresses(t.Context(), server.URL)); got != c.want {
			t.Errorf("%s: %s", name, got)
		}
		server.Close()
	}
	if got := PublicAddresses(t.Context(), "http://127.0.0.1:1"); got != nil {
		t.Errorf("nobody: %v", got)
	}
}

func TestNamedAddressesAreOwn(t *testing.T) {
	addr := netip.MustParseAddr("203.0.113.7")
	o := newOwnAddresses(t.Context(), []netip.Addr{addr}, false, zerolog.Nop())
	if !o.has(addr) || !o.has(netip.AddrFrom16(addr.As16())) || o.has(addr.Next()) {
		t.Error("what is named is own, and nothing else")
	}
	if got := fmt.Sprint(o.prefixes()); got != "[203.0.113.7/32]" {
		t.Error(got)
	}
}
