package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// ErrStopped is the error of a sequence that ended because the service stopped.
var ErrStopped = errors.New("the service has stopped")

// follow returns the lines of a stream. The last error is the cause of ctx, ErrStopped or a
// failure.
func follow[Event any](ctx context.Context, c *Client, path string) iter.Seq2[Event, error] {
	return stream(ctx, func(ctx context.Context) (*http.Response, error) {
		return c.send(ctx, http.MethodGet, path, ndjson, nil)
	}, func(from io.Reader) func(*Event) error {
		lines := jsontext.NewDecoder(from)
		return func(event *Event) error { return json.UnmarshalDecode(lines, event) }
	})
}

// stream yields the events that next reads from an answer, one after the other, until it returns an
// error: io.EOF at the end.
func stream[Event any](ctx context.Context, open func(context.Context) (*http.Response, error),
	next func(io.Reader) func(*Event) error) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		var none Event
		response, err := open(ctx)
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			yield(none, err)
			return
		}
		defer response.Body.Close()
		for read := next(response.Body); ; {
			var event Event
			if err := read(&event); err != nil {
				yield(none, ended(ctx, err))
				return
			}
			if !yield(event, nil) {
				return
			}
		}
	}
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
