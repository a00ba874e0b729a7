package dockerexec

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/events"
)

func TestLinesOfIncidents(t *testing.T) {
	for want, i := range map[string]Incident{
		`{"level":"info","user":"ann","container":"c","runtime":"runsc","adopted":false,"took":3,"message":"container ready"}`: {
			What: "container ready", Container: "c", Runtime: "runsc", Took: 3 * time.Millisecond},
		`{"level":"error","error":"no space","user":"ann","container":"c","message":"container failed"}`: {
			What: "container failed", Level: zerolog.ErrorLevel, Container: "c", Err: errors.New("no space")},
		`{"level":"warn","user":"ann","container":"c","commands":2,"message":"cut off"}`: {What: "cut off", Level: zerolog.WarnLevel, Container: "c", Commands: 2},
		`{"level":"info","user":"ann","sandbox":"s","container":"c","id":"i","why":"w","quota":"q","try":1,"message":"all"}`: {
			What: "all", Sandbox: "s", Container: "c", ID: "i", Why: "w", Quota: "q", Try: 1},
	} {
		var log strings.Builder
		events.New(events.Log(zerolog.New(&log))).Tell(t.Context(), "ann", i)
		if got := log.String(); got != want+"\n" {
			t.Errorf("%s and not\n%s", got, want)
		}
	}
}
