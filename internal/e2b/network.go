package e2b

import (
	"net/http"
	"net/netip"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/daycare-run/sandbox/internal/workload/persistent"
)

// networkBody is what a client says about a sandbox's network. What is not supported is read so
// that it can be refused by name.
type networkBody struct {
	AllowOut []string `json:"allowOut"`
	DenyOut  []string `json:"denyOut"`
	Public   *bool    `json:"allowPublicTraffic"`
	Internet *bool    `json:"allow_internet_access"`

	Rules           jsontext.Value `json:"rules"`
	EgressProxy     jsontext.Value `json:"egressProxy"`
	MaskRequestHost jsontext.Value `json:"maskRequestHost"`
	HTTPSPorts      jsontext.Value `json:"httpsPorts"`
}

// policy reads what a new sandbox may reach, and who may reach it.
func (c controlCall) policy(internet *bool, text jsontext.Value) (persistent.Network, note, error) {
	var written networkBody
	if given(text) {
		if err := json.Unmarshal(text, &written, json.RejectUnknownMembers(true)); err != nil {
			return persistent.Network{}, note{}, named("network", err)
		}
	}
	if internet == nil {
		internet = written.Internet
	}
	reach, err := c.reach(internet, written)
	return reach, note{Private: written.Public != nil && !*written.Public}, err
}

func (c controlCall) reach(internet *bool, n networkBody) (persistent.Network, error) {
	for _, field := range []struct {
		name, why string
		value     jsontext.Value
	}{
		{"egressProxy", "a sandbox's traffic goes through the service's own guard", n.EgressProxy},
		{"rules", "requests are not changed on their way", n.Rules},
		{"maskRequestHost", "requests to ports are not changed on their way", n.MaskRequestHost},
		{"httpsPorts", "TLS to ports is not terminated here", n.HTTPSPorts},
	} {
		if given(field.value) && string(field.value) != "{}" && string(field.value) != "[]" {
			return persistent.Network{},
				invalid("network.%s is not possible here (%s): leave it out", field.name, field.why)
		}
	}
	if internet != nil && !*internet {
		if len(n.AllowOut) > 0 {
			return persistent.Network{},
				invalid("network.allowOut: allow_internet_access is false, so nothing can be allowed: leave one of them out")
		}
		return persistent.Network{None: true}, nil
	}
	allow, err := readList("allowOut", n.AllowOut)
	if err != nil {
		return persistent.Network{}, err
	}
	deny, err := readList("denyOut", n.DenyOut)
	if err != nil {
		return persistent.Network{}, err
	}
	return c.together(allow, deny, internet, n.AllowOut != nil)
}

// together returns what both lists leave; given says whether the first was sent. It refuses lists
// that could not be enforced.
func (c controlCall) together(allow, deny reachList, internet *bool,
	given bool) (persistent.Network, error) {
	all, some := allow.all, len(allow.names)+len(allow.ranges) > 0
	switch {
	case len(deny.names) > 0 && (all || len(allow.ranges) > 0 || !some && !deny.all):
		return persistent.Network{},
			invalid("network.denyOut: names can be denied only if allowOut lists names, and no addresses, at which they would still be reached: list what may be reached in allowOut, or deny everything with 0.0.0.0/0")
	case len(deny.ranges) > 0 && (all || !some && !given && !deny.all):
		return persistent.Network{},
			invalid("network.denyOut: addresses can be denied only out of a list of what is allowed: give that list in allowOut, or deny everything with 0.0.0.0/0")
	case all:
		return persistent.Network{Allow: []string{"*"}}, nil
	case some:
		return persistent.Network{Allow: allow.names, Deny: deny.names, Addresses: allow.ranges,
			DenyAddresses: deny.ranges}, nil
	case deny.all, given: // a list is all that may be reached, also an empty one
		return persistent.Network{}, nil // nothing, until PUT …/network says otherwise
	case c.server.cfg.Blocked && internet == nil:
		return persistent.Network{None: true}, nil
	}
	return persistent.Network{Allow: []string{"*"}}, nil
}

// reachList is a list of allowOut or denyOut. all says that it contains every address.
type reachList struct {
	names, ranges []string
	all           bool
}

func readList(field string, list []string) (r reachList, err error) {
	for i, written := range list {
		prefix, err := netip.ParsePrefix(written)
		addr, notOne := netip.ParseAddr(written)
		isRange, isIPv6 := err == nil || notOne == nil, addr.Is6() || prefix.Addr().Is6()
		switch {
		case addr.Is4In6() || prefix.Addr().Is4In6():
			return reachList{},
				invalid("network.%s[%d]: %.100q is IPv4 written as IPv6: write it as IPv4", field,
					i, written)
		case isIPv6 && field == "allowOut":
			return reachList{},
				invalid("network.%s[%d]: %.100q is IPv6, which sandboxes do not have", field, i,
					written)
		case isIPv6: // nobody reaches it: ::/0 is not everything
		case written == "*", err == nil && prefix.Bits() == 0:
			r.all = true
		case isRange && err == nil && prefix != prefix.Masked():
			return reachList{},
				invalid("network.%s[%d]: %.100q has bits beyond its length: the range is %s", field,
					i, written, prefix.Masked())
		case isRange:
			r.ranges = append(r.ranges, written)
		case strings.HasPrefix(written, "${"):
			return reachList{},
				invalid("network.%s[%d]: %.100q is a variable, and there are none here", field, i,
					written)
		default:
			r.names = append(r.names, written)
		}
	}
	return r, nil
}

// network replaces what a sandbox that runs may reach.
func (c controlCall) network(b *persistent.Sandbox,
	req *http.Request) (int, any, error) {
	var body networkBody
	if err := read(req, &body); err != nil {
		return 0, nil, err
	}
	if body.Public != nil && *body.Public == noteOf(b.Info()).Private {
		return 0, nil,
			invalid("allowPublicTraffic is set when a sandbox is created: it cannot be changed later")
	}
	asked, err := c.reach(body.Internet, body)
	if err != nil {
		return 0, nil, err
	}
	if asked.None {
		asked = persistent.Network{} // its interface stays, and leads nowhere
	}
	return http.StatusNoContent, nil, b.SetNetwork(req.Context(), asked)
}
