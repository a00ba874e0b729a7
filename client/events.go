package client

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/daycare-run/sandbox/api/types"
)

// EventQuery selects events. A zero field does not restrict them.
type EventQuery struct {
	UserID string
	// Kinds are call, container, process, decision, node and seat; empty for all.
	Kinds []types.ServiceKind
	// Replay starts with the events that the service has kept. After, an event's ID, starts after
	// that event.
	Replay bool
	After  string
}

// maxEvent bounds one event, in bytes.
const maxEvent = 1 << 20

// Events returns events as they happen; the first one is ServiceOpen. The sequence calls the
// service again each time it is ranged over. It blocks for the next event until the caller stops,
// or yields one last error: the cause of ctx, or ErrStopped when the service stops.
func (c *Client) Events(ctx context.Context, q EventQuery) iter.Seq2[types.ServiceEvent, error] {
	return stream(ctx, func(ctx context.Context) (*http.Response, error) {
		return c.openEvents(ctx, q)
	}, serverSent)
}

// serverSent reads server-sent events.
func serverSent(from io.Reader) func(*types.ServiceEvent) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, maxEvent)
	return func(event *types.ServiceEvent) error {
		for lines.Scan() {
			if data, is := bytes.CutPrefix(lines.Bytes(), []byte("data: ")); is {
				return json.Unmarshal(data, event)
			}
		}
		return cmp.Or(lines.Err(), io.EOF)
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
