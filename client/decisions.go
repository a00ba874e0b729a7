package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/daycare-run/sandbox/api/apitypes"
)

// DecisionQuery says which decisions of egress are meant. A field that is zero asks for nothing.
type DecisionQuery struct {
	UserID, Container string
	Verdict           apitypes.Verdict
	Via               apitypes.Via
	// Name matches itself and all names below it.
	Name string
	// After is a Seq: it matches what was decided after that.
	After uint64
	// Since matches what was decided at that time or later.
	Since time.Time
	// Limit is how many there are at most of what was decided before the call, from 0 to 1000; the latest of
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
func (c *Client) Decisions(ctx context.Context, q DecisionQuery) ([]apitypes.Decision, error) {
	var list apitypes.DecisionList
	err := c.call(ctx, http.MethodGet, q.path(false), nil, &list)
	return list.Decisions, err
}

// FollowDecisions returns the latest decisions that match and then each as it is made, with a Count of 1.
// An event without a Decision says how many were left out because they were not taken in time. The
// sequence calls the service anew each time it is ranged over. It blocks for the next event, until the
// caller leaves it, or with one last error: the cause of ctx, or ErrStopped when the service stops.
func (c *Client) FollowDecisions(ctx context.Context, q DecisionQuery) iter.Seq2[apitypes.DecisionEvent, error] {
	return func(yield func(apitypes.DecisionEvent, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		response, err := c.followDecisions(ctx, q)
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			yield(apitypes.DecisionEvent{}, err)
			return
		}
		defer response.Body.Close()
		for events := jsontext.NewDecoder(response.Body); ; {
			var event apitypes.DecisionEvent
			if err := json.UnmarshalDecode(events, &event); err != nil {
				yield(apitypes.DecisionEvent{}, ended(ctx, err))
				return
			}
			if !yield(event, nil) {
				return
			}
		}
	}
}

// ErrStopped says that a sequence without an end of its own has ended because the service stops.
var ErrStopped = errors.New("the service has stopped")

func (c *Client) followDecisions(ctx context.Context, q DecisionQuery) (*http.Response, error) {
	request, err := newRequest(ctx, http.MethodGet, q.path(true), nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/x-ndjson")
	return c.do(request)
}

// ended says why there are no further events.
func ended(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("the connection to the service was lost: %w", err)
	case errors.Is(err, io.EOF):
		return ErrStopped
	default:
		return fmt.Errorf("cannot read the service's answer: %w", err)
	}
}
