package access

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/daycare-run/sandbox/internal/errs"
)

// TCP is the way in by TCP. A browser that was talked into calling the service, by a page of its own
// (another Origin) or by a name that was made to lead here (another Host), is refused before its token is
// looked at.
type TCP struct {
	Tokens *Tokens
	// Listen is the address that the service listens on, as host:port.
	Listen string
	// Hosts are names by which callers may address it beside the host in Listen and localhost.
	Hosts []string
	// Origins are the web pages that may call, such as https://console.example.org; none for none.
	Origins []string
}

// Caller says who a request is from. The error is of class Unauthenticated where a token is missing or
// wrong, InvalidArgument for a body that does not say what it is, and else PermissionDenied.
func (t TCP) Caller(req *http.Request) (Caller, error) {
	if err := t.Admit(req); err != nil {
		return Caller{}, err
	}
	// The type that a page may send without asking is no application/json.
	if req.ContentLength != 0 && req.Header.Get("Content-Type") == "" {
		return Caller{}, errs.Invalid("a body over TCP needs a Content-Type: application/json, or application/octet-stream for an upload")
	}
	headers := req.Header.Values("Authorization")
	if len(headers) != 1 {
		return Caller{}, errs.Unauthenticated("the request has %d Authorization headers: send one, Authorization: Bearer TOKEN", len(headers))
	}
	token, ok := bearer(headers[0])
	if !ok {
		return Caller{}, errs.Unauthenticated("the Authorization header has no bearer's token: send Authorization: Bearer TOKEN")
	}
	caller, ok := t.Tokens.Find(token)
	if !ok {
		return Caller{}, errs.Unauthenticated("the token is not known")
	}
	return caller, nil
}

// Admit refuses a request that a browser was talked into. The error is of class PermissionDenied.
func (t TCP) Admit(req *http.Request) error {
	if !t.mayBeCalled(req.Host) {
		return errs.Denied("the service is not called %.200q; the operator may add that to tcp.allowedHosts in the settings", req.Host)
	}
	return refuseOrigin(req, t.Origins)
}

// mayBeCalled looks at a Host header. A browser takes the one of its page's address, so a name that
// somebody else makes lead here cannot be among these. An address as such cannot be made to lead elsewhere:
// where the service listens on all addresses, any of them will do.
func (t TCP) mayBeCalled(host string) bool {
	name := hostOf(host)
	listen := hostOf(t.Listen)
	if name == "" {
		return false
	}
	if name == listen || name == "localhost" || slices.ContainsFunc(t.Hosts, func(h string) bool { return strings.EqualFold(h, name) }) {
		return true
	}
	addr, err := netip.ParseAddr(name)
	if err != nil {
		return false
	}
	own, err := netip.ParseAddr(listen)
	return addr.IsLoopback() || listen == "" || err == nil && own.IsUnspecified()
}

// hostOf is the host of host:port, or of a host alone, in lower case and without brackets.
func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(address, "["), "]")
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// refuseOrigin refuses what a browser sends for a page.
func refuseOrigin(req *http.Request, allowed []string) error {
	for _, origin := range req.Header.Values("Origin") {
		if !slices.Contains(allowed, origin) {
			return errs.Denied("the web page %.200q may not call this service; the operator may add it to tcp.allowedOrigins in the settings", origin)
		}
	}
	return nil
}

// Exposed reports whether what goes over an address can be read on the way, unless it is encrypted: it is none of
// this host's own.
func Exposed(listen string) bool {
	host := hostOf(listen)
	addr, err := netip.ParseAddr(host)
	return host != "localhost" && (err != nil || !addr.IsLoopback())
}
