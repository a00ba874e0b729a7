package watchdog

import (
	"regexp"
	"slices"
	"strings"
)

// varies is what differs in stacks that are alike.
var varies = regexp.MustCompile(
	`(?m)^goroutine .*|\([{0-9.][^\n]*\)$| \+0x[0-9a-f]+| in goroutine \d+`)

// Pick returns, of a dump of stacks as the runtime writes it, those with a line that begins with
// one of the prefixes, each kind once. A function's line is its name and a newline: what it was
// called with is not looked at. It stops after max bytes.
func Pick(dump string, max int, prefixes ...string) string {
	var out strings.Builder
	kinds := map[string]bool{}
	for block := range strings.SplitSeq(dump, "\n\n") {
		block = strings.TrimSpace(block)
		kind := varies.ReplaceAllString(block, "")
		if !kinds[kind] && out.Len() < max &&
			slices.ContainsFunc(prefixes, func(prefix string) bool {
				return strings.Contains(kind, "\n"+prefix)
			}) {
			kinds[kind] = true
			out.WriteString(block + "\n\n")
		}
	}
	return out.String()
}
