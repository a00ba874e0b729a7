package doctor

import (
	"context"
	"fmt"
	"strings"
)

// Leftovers returns the check for what services that are gone have left on the host. find returns a
// line for each thing, such as "container x, of dataDir /y, which is gone".
func Leftovers(root bool, find func(context.Context) ([]string, error)) Check {
	return Check{"leftovers", func(ctx context.Context) Finding {
		left, err := find(ctx)
		switch {
		case err != nil && !root:
			return skipped("only root can see what is left of services: %v", err)
		case err != nil:
			return skipped("%v", err)
		case len(left) == 0:
			return ok("nothing is left of services that are gone")
		}
		const limit = 10
		more := ""
		if len(left) > limit {
			more = fmt.Sprintf("; and %d more", len(left)-limit)
			left = left[:limit]
		}
		return warning(
			"sandboxd cleanup --all-instances removes what services that no longer run have left (with --dry-run it says what)",
			"%s%s", strings.Join(left, "; "), more)
	}}
}
