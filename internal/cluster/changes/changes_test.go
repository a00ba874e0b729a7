package changes

import (
	"errors"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/events"
)

func TestLines(t *testing.T) {
	for want, detail := range map[string]events.Line{
		`{"level":"warn","host":"h1","message":"a host is lost, and may still run something"}`:                                          Node{"h1", "lost"},
		`{"level":"error","host":"h1","message":"this host has no lease any more: all that it does for users ends"}`:                    Node{"h1", "fenced"},
		`{"level":"warn","user":"ann","host":"h2","epoch":9,"from":"h1","fromEpoch":7,"message":"a user of a lost host is taken over"}`: Seat{"h2", 9, "h1", 7, true},
		"": Seat{"h2", 9, "h1", 7, false},
		`{"level":"error","error":"no power","host":"h1","epoch":7,"message":"a lost host is not fenced off yet, so its users wait"}`: FenceCommand{"h1", 7, errors.New("no power")},
		`{"level":"warn","host":"h1","epoch":7,"message":"cluster.fenceCommand has succeeded: other hosts may take its users over"}`:  FenceCommand{"h1", 7, nil},
	} {
		var log strings.Builder
		events.New(events.Log(zerolog.New(&log))).Publish(events.Node, "ann", detail)
		if got := strings.TrimSpace(log.String()); got != want {
			t.Errorf("%s and not\n%s", got, want)
		}
	}
}
