package main

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
	"github.com/daycare-run/sandbox/internal/quota"
)

// Each directory and each choice of settings has a sandbox, which the next call there uses again.
// Where directories are temporary, these become as many as a user may have; then the oldest go.

// mostRemoved is how many sandboxes make room at once: some, so that few calls have to.
const mostRemoved = 50

// put registers the sandbox of a call. If the user has as many as may be, it first removes some
// that earlier calls have left.
func put(ctx context.Context, c *client.Client, id string, r types.Registration) error {
	_, err := c.Put(ctx, id, r)
	refused, is := errors.AsType[*client.Error](err)
	if is && refused.Limit == quota.Sandboxes.String() && makeRoom(ctx, c, r.UserID) {
		_, err = c.Put(ctx, id, r)
	}
	return err
}

// makeRoom removes a user's oldest sandboxes of the wrapper in which nothing is and nothing runs,
// and reports whether there were any.
func makeRoom(ctx context.Context, c *client.Client, user string) (made bool) {
	boxes, err := target{user: user}.ofUser(ctx, c)
	if err != nil {
		return false
	}
	processes, err := c.Processes(ctx, boxes[0].ID) // all of the user's
	if err != nil {
		return false
	}
	slices.SortFunc(boxes, func(a, b types.Sandbox) int { return a.UpdatedAt.Compare(b.UpdatedAt) })
	left := mostRemoved
	for _, box := range boxes {
		hash, is := strings.CutPrefix(box.ID, wrapPrefix(user))
		if !is || !wrapHash.MatchString(hash) || box.Paused || left == 0 ||
			slices.ContainsFunc(processes, func(p types.Process) bool {
				return p.SandboxID == box.ID // it is started again from what is registered
			}) {
			continue
		}
		if _, err := c.Pause(ctx, box.ID); err != nil {
			continue // a command runs in it
		}
		if c.Delete(ctx, box.ID) == nil {
			made = true
			left--
		}
	}
	return made
}

// wrapPrefix is what the ids of a user's sandboxes of the wrapper begin with; wrapHash is the rest.
func wrapPrefix(user string) string { return "wrap-" + user + "-" }

var wrapHash = regexp.MustCompile(`^[0-9a-f]{8}$`)
