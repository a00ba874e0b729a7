package hints

import (
	"fmt"
	"strings"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/policy"
)

// names is each door's advice about a name that was not allowed: how to allow it, and what denies a
// name that the call itself has denied.
var names = [doors]struct{ allow, denies string }{
	CLI: {"allow it with --allow-domain %s", "--deny-domain"},
	MCP: {"if it is needed, ask for @network in permissions and %q in allowedDomains",
		"deniedDomains"},
	Wrapper: {"add to network.allowedDomains of the settings: %s",
		"network.deniedDomains of the settings"},
}

// Remedy returns what to do about a refusal, or "" if nothing can be done; denied are the patterns
// that the call has denied itself. The name comes from the command: if it is more than a name, such
// as a wildcard, it must not become advice that is pasted.
func Remedy(door Door, r types.Refusal, denied []string) string {
	if r.Verdict != types.VerdictDenied || r.Reason != types.ReasonNotAllowed ||
		strings.Contains(r.Name, "*") {
		return ""
	}
	if domain, err := policy.ParseDomain(r.Name); err != nil || domain.String() != r.Name {
		return ""
	}
	if taken, err := policy.ParseDenied(denied); err == nil && taken.Allows(r.Name) {
		return names[door].denies + " takes it away"
	}
	return fmt.Sprintf(names[door].allow, r.Name)
}
