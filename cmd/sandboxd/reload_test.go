package main

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/config"
)

// A kept-alive connection is let in by the tokens of each request's time.
func TestTokensAreReadAgain(t *testing.T) {
	const other = "fedcba9876543210fedcba9876543210"
	lab := newAccessLab(t)
	cfg := lab.settings()
	tokens, err := readTokens(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	l := &daemon{tokens: tokens, log: zerolog.New(&log)}
	l.cfg.Store(&cfg)
	lab.serveTo(cfg, tokens)
	web, dialled := webClient(t, "", nil), 0
	web.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		dialled++
		var d net.Dialer
		return d.DialContext(ctx, network, address)
	}
	for _, tt := range []struct {
		name, file string
		old, new   int
		log        string
	}{
		{"as at the start", `{"tokens":[{"name":"engine","token":"` + token + `"}]}`, 204, 403, `"gone":[],"new":[]`},
		{"both", `{"tokens":[{"name":"engine","token":"` + token + `"},{"name":"next","token":"` + other + `"}]}`, 204, 204, `"gone":[],"new":["next"]`},
		{"the new one alone", `{"tokens":[{"name":"next","token":"` + other + `"}]}`, 403, 204, `"gone":["engine"],"new":[]`},
		{"none that can be", `{"tokens":[{"name":"engine","token":"` + token[:9] + `"}]}`, 403, 204, `tokens[0] (\"engine\"): the token has 9 characters`},
		{"half a file", `{"tokens":[{"name":"engine","token":"` + token + `"}`, 403, 204, lab.path("tokens.json") + `: 1 fault\n  line 1, column 72, near tokens[1]: the JSON ends too early`},
		{"back again", `{"tokens":[{"name":"engine","token":"` + token + `"}]}`, 204, 403, `"gone":["next"],"new":["engine"]`},
	} {
		log.Reset()
		lab.file("tokens.json", tt.file)
		failed := l.reloadTokens()
		if !strings.Contains(log.String(), tt.log) || (failed != nil) != strings.Contains(log.String(), "those from before stay in force") {
			t.Errorf("%s: %v, log %s", tt.name, failed, log.String())
		}
		for _, secret := range []string{token[:9], other} {
			if strings.Contains(log.String(), secret) {
				t.Errorf("%s: the log tells a token: %s", tt.name, log.String())
			}
		}
		for bearer, want := range map[string]int{token: tt.old, other: tt.new} {
			if status, err := lab.get(web, "http://"+cfg.TCP.Listen+"/", bearer); err != nil || status != want {
				t.Errorf("%s: %.4s… is answered %d, want %d (%v)", tt.name, bearer, status, want, err)
			}
		}
	}
	if dialled != 1 {
		t.Errorf("%d connections: want one that is kept", dialled)
	}
}

// Without TCP there are no tokens to read.
func TestNoTokensWithoutTCP(t *testing.T) {
	l := &daemon{log: zerolog.New(errorWriter{t})}
	l.cfg.Store(&config.Config{})
	if err := l.reloadTokens(); err != nil {
		t.Error(err)
	}
}

type errorWriter struct{ t *testing.T }

func (e errorWriter) Write(line []byte) (int, error) {
	e.t.Errorf("the log says %s", line)
	return len(line), nil
}
