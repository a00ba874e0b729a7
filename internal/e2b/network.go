package e2b

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/daycare-run/sandbox/internal/lasting"
)

// networkBody is what a client says of a sandbox's network. What is not kept here is read to be refused by its name.
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

// policy reads what a sandbox that is to be made may reach, and who may reach it.
func (s *server) policy(internet *bool, text jsontext.Value) (lasting.Network, note, error) {
	var written networkBody
	if given(text) {
		if err := json.Unmarshal(text, &written, json.RejectUnknownMembers(true)); err != nil {
			return lasting.Network{}, note{}, named("network", err)
		}
	}
	if internet == nil {
		internet = written.Internet
	}
	reach, err := s.reach(internet, written)
	return reach, note{Private: written.Public != nil && !*written.Public}, err
}

func (s *server) reach(internet *bool, n networkBody) (lasting.Network, error) {
	for _, field := range []struct {
		name, why string
		value     jsontext.Value
	}{
		{"egressProxy", "a sandbox's traffic goes through the service's own guard", n.EgressProxy},
		{"rules", "requests are not changed on their way", n.Rules},
		{"maskRequestHost", "requests to ports are not changed on their way", n.MaskRequestHost},
		{"httpsPorts", "TLS of ports is not ended here", n.HTTPSPorts},
	} {
		if given(field.value) && string(field.value) != "{}" && string(field.value) != "[]" {
			return lasting.Network{}, invalid("network.%s cannot be kept here (%s): leave it out", field.name, field.why)
		}
	}
	if internet != nil && !*internet {
		if len(n.AllowOut) > 0 {
			return lasting.Network{}, invalid("network.allowOut: allow_internet_access is false, so nothing can be allowed: leave one of them out")
		}
		return lasting.Network{None: true}, nil
	}
	allow, _, err := names("allowOut", n.AllowOut)
	if err != nil {
		return lasting.Network{}, err
	}
	deny, everything, err := names("denyOut", n.DenyOut)
	switch {
	case err != nil:
		return lasting.Network{}, err
	case slices.Contains(allow, "*") && len(deny) > 0, len(allow) == 0 && len(deny) > 0 && !everything:
		return lasting.Network{}, invalid("network.denyOut: names can be denied only out of those that allowOut names: name what may be reached in allowOut, or deny all of it with 0.0.0.0/0")
	case len(allow) > 0:
		return lasting.Network{Allow: allow, Deny: deny}, nil
	case everything, n.AllowOut != nil: // a list is all that may be reached, also an empty one
		return lasting.Network{}, nil // nothing, until PUT …/network says otherwise
	case s.cfg.Blocked && internet == nil:
		return lasting.Network{None: true}, nil
	}
	return lasting.Network{Allow: []string{"*"}}, nil
}

// names reads a list of allowOut or denyOut, and whether it has everything in it. Other addresses than all of them are
// refused: what is kept to is names.
func names(field string, list []string) (patterns []string, everything bool, err error) {
	for i, written := range list {
		prefix, err := netip.ParsePrefix(written)
		_, notOne := netip.ParseAddr(written)
		switch {
		case written == "*", err == nil && prefix.Bits() == 0:
			everything = true
		case err == nil || notOne == nil:
			return nil, false, invalid("network.%s[%d]: %.100q is an address: a sandbox is kept to names here, such as api.example.org or *.example.org; all addresses are 0.0.0.0/0", field, i, written)
		case strings.HasPrefix(written, "${"):
			return nil, false, invalid("network.%s[%d]: %.100q is a variable, and there are none here", field, i, written)
		default:
			patterns = append(patterns, written)
		}
	}
	if everything && field == "allowOut" {
		patterns = []string{"*"}
	}
	return patterns, everything, nil
}

// network replaces what a sandbox that runs may reach.
func (s *server) network(c controlCall, w http.ResponseWriter, req *http.Request) error {
	b, err := s.own(c, req)
	if err != nil {
		return err
	}
	var body networkBody
	if err := read(req, &body); err != nil {
		return err
	}
	if body.Public != nil && *body.Public == noteOf(b.Info()).Private {
		return invalid("allowPublicTraffic is for a sandbox that is made: it cannot be changed later")
	}
	asked, err := s.reach(body.Internet, body)
	if err != nil {
		return err
	}
	if asked.None {
		asked = lasting.Network{} // its interface stays, and leads nowhere
	}
	if err := b.SetNetwork(req.Context(), asked); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
