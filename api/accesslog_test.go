package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/sandboxtest"
	"github.com/daycare-run/sandbox/internal/warm"
)

func TestRequestIDs(t *testing.T) {
	server := newLab(t, nil).serve()
	for _, tt := range []struct {
		name, given string
		kept        bool
	}{
		{"none", "", false},
		{"a UUID", "1f0c2a52-8d7e-4e0a-9d5b-0d8b6a1c2e3f", true},
		{"longest", strings.Repeat("a", 128), true},
		{"too long", strings.Repeat("a", 129), false},
		{"space", "a b", false},
		{"not ASCII", "é", false},
		{"tab", "a\tb", false},
	} {
		req := exchange{route: "GET /v1/nothing"}.request(t, server.URL)
		if tt.given != "" {
			req.Header.Set("X-Request-Id", tt.given)
		}
		failure, _ := refused(t, req)
		if (failure.RequestID == tt.given) != tt.kept || failure.RequestID == "" {
			t.Errorf("%s: %q became %q", tt.name, tt.given, failure.RequestID)
		}
	}
	response, err := http.Get(server.URL + "/v1/health")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.Header.Get("X-Request-Id") == "" {
		t.Error("a success has no X-Request-Id")
	}
}

// TestAccessLog looks for everything that a call carried, at every level.
func TestAccessLog(t *testing.T) {
	var log lines
	server := newLab(t, sandboxtest.Started(func(ctx context.Context, _ warm.Command, out session.Output) (warm.Result, error) {
		zerolog.Ctx(ctx).Info().Msg("inside")
		return warm.Result{}, out(session.Stdout, []byte("TOPSECRET-output"))
	})).serveConfig(func(cfg *Config) {
		logTo(&log, zerolog.TraceLevel)(cfg)
		cfg.LogCalls = func() bool { return true }
	})
	const body = `{"command":"echo TOPSECRET-command","env":{"A":"TOPSECRET-env"},"secrets":{"B":"TOPSECRET-secret"},"stdin":"TOPSECRET-stdin"}`
	for _, x := range []exchange{
		{route: "POST /v1/sandboxes/agent-7/exec?TOPSECRET=query", body: body},
		{route: "POST /v1/sandboxes/agent-7/exec", body: `{"command":"ls","env":{"TOPSECRET=x":"1"},"TOPSECRET":1}`},
		{route: "POST /v1/sandboxes/TOPSECRET/exec", body: `{"command":["TOPSECRET"]}`},
		{route: "GET /v1/TOPSECRET"},
		{route: "GET /v1/egress/decisions?TOPSECRET=1"},
	} {
		req := x.request(t, server.URL)
		req.Header.Set("Authorization", "Bearer TOPSECRET-token")
		req.Header.Set("X-Request-Id", "r-1")
		response, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
	}
	server.Close() // when the calls have been logged
	if strings.Contains(log.String(), "TOPSECRET") {
		t.Errorf("what a call carried is in the log:\n%s", log.String())
	}
	type line struct {
		Level, Message, RequestID, Method, Route, Caller, Sandbox, Kind string
		Status                                                          int
		Bytes                                                           int64
		Took                                                            float64
	}
	var calls []line
	for decoder := json.NewDecoder(strings.NewReader(log.String())); ; {
		var l line
		if err := decoder.Decode(&l); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if l.RequestID != "r-1" {
			t.Errorf("a line without the request's id: %+v", l)
		}
		if l.Message == "call" {
			calls = append(calls, l)
		}
	}
	if len(calls) != 5 {
		t.Fatalf("%d calls in\n%s", len(calls), log.String())
	}
	first := calls[0]
	if first.Level != "info" || first.Method != "POST" || first.Route != "POST /v1/sandboxes/{id}/exec" || first.Status != 200 ||
		first.Bytes == 0 || first.Took <= 0 || first.Caller != "test" || first.Sandbox != "agent-7" || first.Kind != "" {
		t.Errorf("%+v", first)
	}
	if second := calls[1]; second.Status != 400 || second.Kind != "invalid" {
		t.Errorf("%+v", second)
	}
}

func TestAccessLogIsForDebuggingUnlessAskedFor(t *testing.T) {
	var log lines
	server := newLab(t, nil).serveConfig(logTo(&log, zerolog.InfoLevel))
	response, err := http.Get(server.URL + "/v1/sandboxes")
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	server.Close()
	if log.String() != "" {
		t.Errorf("logged: %s", log.String())
	}
}

func TestFaultsOfTheServiceAreLogged(t *testing.T) {
	var log lines
	server := newLab(t, prints(warm.Result{}, errors.New("disk broken"))).serveConfig(logTo(&log, zerolog.InfoLevel))
	response, err := http.Post(server.URL+"/v1/sandboxes/a/exec", "application/json", strings.NewReader(`{"command":"x"}`))
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	server.Close()
	if !strings.Contains(log.String(), `"level":"warn"`) || !strings.Contains(log.String(), "disk broken") {
		t.Errorf("logged: %s", log.String())
	}
}
