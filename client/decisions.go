package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/daycare-run/sandbox/api/types"
)

// DecisionQuery says which decisions of egress are meant. A field that is zero asks for nothing.
type DecisionQuery struct {
	UserID, Container string
	Verdict           types.Verdict
	Via               types.Via
	// Name matches itself and all names below it.
	Name string
	// After is a Seq: it matches what was decided after that.
	After uint64
	// Since matches what was decided at that time or later.
	Since time.Time
	// Limit is how many there are at most of what was decided before the call, from 0 to 10000; the latest of
	// them. Nil is for 100.
	Limit *int
}

func (q DecisionQuery) path(follow bool) string {
	values := url.Values{}
	for name, value := range map[string]string{
		"userId": q.UserID, "container": q.Container, "verdict": string(q.Verdict), "via": string(q.Via), "name": q.Name,
	} {
		if value != "" {
			values.Set(name, value)
		}
	}
	if q.After != 0 {
		values.Set("after", strconv.FormatUint(q.After, 10))
	}
	if !q.Since.IsZero() {
		values.Set("since", q.Since.UTC().Format(time.RFC3339Nano))
	}
	if q.Limit != nil {
		values.Set("limit", strconv.Itoa(*q.Limit))
	}
	if follow {
		values.Set("follow", "true")
	}
	return "/v1/egress/decisions?" + values.Encode()
}

// Decisions returns the latest decisions that match, oldest first.
func (c *Client) Decisions(ctx context.Context, q DecisionQuery) ([]types.Decision, error) {
	list, err := c.AllDecisions(ctx, q)
	return list.Decisions, err
}

// AllDecisions is Decisions, and the hosts of the cluster that did not say which are theirs.
func (c *Client) AllDecisions(ctx context.Context, q DecisionQuery) (list types.DecisionList, err error) {
	err = c.call(ctx, http.MethodGet, q.path(false), nil, &list)
	return list, err
}

// FollowDecisions returns the latest decisions that match and then each as it is made, with a Count of 1.
// An event without a Decision says how many were left out because they were not taken in time. The
// sequence calls the service again each time it is ranged over. It blocks for the next event, until the
// caller leaves it, or with one last error: the cause of ctx, or ErrStopped when the service stops.
func (c *Client) FollowDecisions(ctx context.Context, q DecisionQuery) iter.Seq2[types.DecisionEvent, error] {
	return follow[types.DecisionEvent](ctx, c, q.path(true))
}
