package client

import (
	"bufio"
	"bytes"
	"context"
	"iter"
	"net/http"
	"net/url"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/daycare-run/sandbox/api/types"
)

// EventQuery says which events are meant. A field that is zero asks for nothing.
type EventQuery struct {
	UserID string
	// Kinds are call, container, process, decision, node and seat; none is all.
	Kinds []types.ServiceKind
	// Replay begins with what the service has kept, and After, an event's ID, after that event.
	Replay bool
	After  string
}

// maxEvent bounds one event, in bytes.
const maxEvent = 1 << 20

// Events returns what happens, as it happens; the first event is ServiceOpen. The sequence calls the service again each time it is
// ranged over. It blocks for the next event, until the caller leaves it, or with one last error: the cause of ctx, or ErrStopped
// when the service stops.
func (c *Client) Events(ctx context.Context, q EventQuery) iter.Seq2[types.ServiceEvent, error] {
	return func(yield func(types.ServiceEvent, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		response, err := c.openEvents(ctx, q)
		if err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			yield(types.ServiceEvent{}, err)
			return
		}
		defer response.Body.Close()
		lines := bufio.NewScanner(response.Body)
		lines.Buffer(nil, maxEvent)
		for lines.Scan() {
			data, is := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
			if !is {
				continue
			}
			var event types.ServiceEvent
			if err := json.Unmarshal(data, &event); err != nil {
				yield(event, ended(ctx, err))
				return
			}
			if !yield(event, nil) {
				return
			}
		}
		if err = ErrStopped; lines.Err() != nil {
			err = lines.Err()
		}
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		yield(types.ServiceEvent{}, err)
	}
}

func (c *Client) openEvents(ctx context.Context, q EventQuery) (*http.Response, error) {
	values := url.Values{}
	if q.UserID != "" {
		values.Set("userId", q.UserID)
	}
	if len(q.Kinds) > 0 {
		var kinds []string
		for _, kind := range q.Kinds {
			kinds = append(kinds, string(kind))
		}
		values.Set("kind", strings.Join(kinds, ","))
	}
	if q.Replay {
		values.Set("replay", "true")
	}
	request, err := newRequest(ctx, http.MethodGet, "/v1/events?"+values.Encode(), nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "text/event-stream")
	if q.After != "" {
		request.Header.Set("Last-Event-ID", q.After)
	}
	return c.do(request)
}
