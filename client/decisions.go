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

// DecisionQuery selects egress decisions. A zero field does not restrict them.
type DecisionQuery struct {
	UserID, Container string
	Verdict           types.Verdict
	Via               types.Via
	// Name selects this name and all names below it.
	Name string
	// After is a Seq: it selects later decisions.
	After uint64
	// Since selects decisions made at that time or later.
	Since time.Time
	// Limit is the maximum number of decisions from before the call, from 0 to 10000; the latest
	// ones are returned. Nil means 100.
	Limit *int
}

func (q DecisionQuery) path(follow bool) string {
	values := url.Values{}
	for name, value := range map[string]string{
		"userId": q.UserID, "container": q.Container, "verdict": string(q.Verdict),
		"via": string(q.Via), "name": q.Name,
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

// AllDecisions is like Decisions, and also returns the hosts of the cluster that did not answer.
func (c *Client) AllDecisions(ctx context.Context,
	q DecisionQuery) (list types.DecisionList, err error) {
	err = c.call(ctx, http.MethodGet, q.path(false), nil, &list)
	return list, err
}

// FollowDecisions returns the latest decisions that match and then each new one, with a Count of 1.
// An event without a Decision says how many were dropped because they were not read in time. The
// sequence calls the service again each time it is ranged over. It blocks for the next event until
// the caller stops, or yields one last error: the cause of ctx, or ErrStopped when the service
// stops.
func (c *Client) FollowDecisions(ctx context.Context,
	q DecisionQuery) iter.Seq2[types.DecisionEvent, error] {
	return follow[types.DecisionEvent](ctx, c, q.path(true))
}
