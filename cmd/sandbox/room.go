package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"regexp"
	"slices"
	"strings"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
	"github.com/daycare-run/sandbox/internal/quota"
)

// Each choice of grants has a sandbox, and so has each directory with each choice of the wrapper's
// settings. The next call with the same uses it again. Where directories are temporary, these
// become as many as a user may have; then the oldest go.

// mostRemoved is how many sandboxes make room at once: some, so that few calls have to.
const mostRemoved = 50

// put registers the sandbox of a call. If there are as many as may be, it first removes some that
// earlier calls for the user have left.
func put(ctx context.Context, c *client.Client, id string, r types.Registration) error {
	_, err := c.Put(ctx, id, r)
	refused, is := errors.AsType[*client.Error](err)
	if is && refused.Limit == quota.Sandboxes.String() && makeRoom(ctx, c, r.UserID) {
		_, err = c.Put(ctx, id, r)
	}
	return err
}

// makeRoom removes a user's oldest sandboxes that single calls have left, in which nothing is and
// nothing runs, and reports whether there were any.
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
		if !ofOneCall(user, box.ID) || box.Paused || left == 0 ||
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

// ofOneCall reports whether an id of a user's sandbox is one that a single call makes, for its
// grants or as the wrapper.
func ofOneCall(user, id string) bool {
	rest, is := strings.CutPrefix(id, ownID(user))
	if !is {
		rest, is = strings.CutPrefix(id, wrapPrefix(user))
	}
	return is && hashed.MatchString(rest)
}

// wrapPrefix is what the ids of a user's sandboxes of the wrapper begin with.
func wrapPrefix(user string) string { return "wrap-" + user }

// hashOf returns the end of an id that depends on a text; hashed matches it.
func hashOf(text []byte) string {
	sum := sha256.Sum256(text)
	return "-" + hex.EncodeToString(sum[:4])
}

var hashed = regexp.MustCompile(`^-[0-9a-f]{8}$`)
