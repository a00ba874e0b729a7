package process

import (
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/events"
	"github.com/daycare-run/sandbox/internal/quota"
)

// What the log says of a process's life comes of its events, and has nothing that it was started with.
func TestTheLogOfAProcess(t *testing.T) {
	var log strings.Builder
	h := newHost(t)
	s := h.serve(func(cfg *Config) { cfg.Events = events.New(events.Log(zerolog.New(&log))) })
	r, _, err := s.Start(t.Context(), Intent{UserID: "alice", SandboxID: "box", Command: "TOPSECRET", KeepAlive: true, Env: map[string]string{"A": "TOPSECRET"}},
		quota.Token{}, map[string]string{"B": "TOPSECRET"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.exits(r.ID, Exit{Code: 3})
	s.run.onStart = func(Record) error { return errTest }
	s.pass(2 * time.Second)
	s.run.onStart = nil
	s.pass(4 * time.Second)
	if err := s.Remove(t.Context(), "alice", r.ID); err != nil {
		t.Fatal(err)
	}
	about := `{"level":"info","process":"` + r.ID + `","user":"alice",`
	want := about + `"message":"process started"}
` + about + `"status":"exited","exitCode":3,"signal":"","oom":false,"reason":"","restartInMs":2000,"message":"process ended"}
` + about + `"reason":"it cannot be started again: the engine is away","restartInMs":4000,"message":"process not started again"}
` + about + `"restarts":2,"message":"process started again"}
` + about + `"status":"stopped","exitCode":null,"signal":"SIGTERM","oom":false,"reason":"","restartInMs":0,"message":"process ended"}
` + about + `"message":"process removed"}
`
	if got := log.String(); got != want {
		t.Errorf("the log is\n%s\nand not\n%s", got, want)
	}
}
