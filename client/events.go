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
	return stream(ctx, func(ctx context.Context) (*http.Response, error) { return c.openEvents(ctx, q) }, serverSent)
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
