package access

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/daycare-run/sandbox/internal/errs"
)

// TCP is the way in over TCP. It refuses browsers that were tricked into calling the service, by a
// foreign page (another Origin) or by a name that was made to resolve to this service (another
// Host), before it looks at the token.
type TCP struct {
	Tokens *Tokens
	// Listen is the address on which the service listens, as host:port.
	Listen string
	// Hosts are additional names for the service, besides the host in Listen and localhost.
	Hosts []string
	// Origins are the web pages that may call, such as https://console.example.org; empty for none.
	Origins []string
}

// Caller returns who sent a request. The error is of class Unauthenticated if a token is missing or
// wrong, InvalidArgument for a body without a Content-Type, and PermissionDenied otherwise.
func (t TCP) Caller(req *http.Request) (Caller, error) {
	if err := t.Admit(req); err != nil {
		return Caller{}, err
	}
	// The types that a page may send without a preflight do not include application/json.
	if req.ContentLength != 0 && req.Header.Get("Content-Type") == "" {
		return Caller{},
			errs.Invalid(
				"a body over TCP needs a Content-Type: application/json, or application/octet-stream for an upload")
	}
	headers := req.Header.Values("Authorization")
	if len(headers) != 1 {
		return Caller{},
			errs.Unauthenticated(
				"the request has %d Authorization headers: send one, Authorization: Bearer TOKEN",
				len(headers))
	}
	token, ok := bearer(headers[0])
	if !ok {
		return Caller{},
			errs.Unauthenticated(
				"the Authorization header has no bearer token: send Authorization: Bearer TOKEN")
	}
	caller, ok := t.Tokens.Find(token)
	if !ok {
		return Caller{}, errs.Unauthenticated("the token is not known")
	}
	return caller, nil
}

// Admit refuses a request that a browser was tricked into. The error is of class PermissionDenied.
func (t TCP) Admit(req *http.Request) error {
	if !t.mayBeCalled(req.Host) {
		return errs.Denied(
			"the service is not called %.200q; the operator may add that to tcp.allowedHosts in the settings",
			req.Host)
	}
	return refuseOrigin(req, t.Origins)
}

// mayBeCalled checks a Host header. A browser takes it from the address of its page, so it cannot
// be one of these names if somebody made another name resolve to this host. An IP address cannot be
// made to lead elsewhere: if the service listens on all addresses, any of them is accepted.
func (t TCP) mayBeCalled(host string) bool {
	name := hostOf(host)
	listen := hostOf(t.Listen)
	if name == "" {
		return false
	}
	if name == listen || name == "localhost" ||
		slices.ContainsFunc(t.Hosts, func(h string) bool { return strings.EqualFold(h, name) }) {
		return true
	}
	addr, err := netip.ParseAddr(name)
	if err != nil {
		return false
	}
	own, err := netip.ParseAddr(listen)
	return addr.IsLoopback() || listen == "" || err == nil && own.IsUnspecified()
}

// hostOf returns the host of host:port, or of a host alone, in lower case and without brackets.
func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(address, "["), "]")
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// refuseOrigin refuses requests that a browser sends for a page that is not allowed.
func refuseOrigin(req *http.Request, allowed []string) error {
	for _, origin := range req.Header.Values("Origin") {
		if !slices.Contains(allowed, origin) {
			return errs.Denied(
				"the web page %.200q may not call this service; the operator may add it to tcp.allowedOrigins in the settings",
				origin)
		}
	}
	return nil
}

// Exposed reports whether unencrypted traffic to an address can be read on the way, because the
// address is not a loopback address of this host.
func Exposed(listen string) bool {
	host := hostOf(listen)
	addr, err := netip.ParseAddr(host)
	return host != "localhost" && (err != nil || !addr.IsLoopback())
}
