package client_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/client"
)

// The events come from a fake: events that are not JSON, and an end without a proper one, are errors.
func TestStreamsOfEvents(t *testing.T) {
	const first = "id: e-1\nevent: open\ndata: {\"id\":\"e-1\",\"kind\":\"open\"}\n\n"
	for _, tt := range []struct{ name, body, seen, end string }{
		{"a comment and what is not known", first + ":\n\n" + "data: {\"id\":\"e-2\",\"kind\":\"call\",\"new\":1}\n\n", "e-1 open; e-2 call; ", "the service has stopped"},
		{"cut in an event", first + `data: {"id":"e-`, "e-1 open; ", "connection to the service was lost"},
		{"no JSON", "data: hello\n\n", "", "cannot read the service's answer"},
		{"larger than any", "data: " + strings.Repeat("x", 2<<20), "", "cannot read the service's answer"},
		{"dies", first, "e-1 open; ", "connection to the service was lost"},
	} {
		c := dialHandler(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(tt.body))
			_ = http.NewResponseController(w).Flush()
			if tt.name == "dies" {
				panic(http.ErrAbortHandler)
			}
		}))
		var seen string
		var end error
		for event, err := range c.Events(t.Context(), client.EventQuery{}) {
			if end = err; err == nil {
				seen += event.ID + " " + string(event.Kind) + "; "
			}
		}
		if seen != tt.seen || end == nil || !strings.Contains(end.Error(), tt.end) {
			t.Errorf("%s: %q, %v", tt.name, seen, end)
		}
	}
}
