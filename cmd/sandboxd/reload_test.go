package main

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/config"
	"github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/metrics"
	"github.com/daycare-run/sandbox/internal/sandboxtest"
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

// lineWriter passes on the lines of a log.
type lineWriter chan string

func (w lineWriter) Write(line []byte) (int, error) {
	w <- string(line)
	return len(line), nil
}

// await waits for a line with a text.
func (w lineWriter) await(t *testing.T, text string) {
	t.Helper()
	for late := time.After(20 * time.Second); ; {
		select {
		case line := <-w:
			if strings.Contains(line, text) {
				return
			}
		case <-late:
			t.Errorf("the log does not say %s", text)
			return
		}
	}
}

// silentDocker returns a Docker that reports a runtime of no use, but only once answer is closed. asked tells when it is asked.
func silentDocker(t *testing.T, answer <-chan struct{}) (docker *engine.Client, asked <-chan struct{}) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "docker.sock")
	asked = serveDocker(t, socket, answer)
	return connectDocker(t, socket), asked
}

func connectDocker(t *testing.T, socket string) *engine.Client {
	t.Helper()
	docker, err := engine.Connect(socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = docker.Close() })
	return docker
}

// serveDocker is silentDocker's server.
func serveDocker(t *testing.T, socket string, answer <-chan struct{}) (asked <-chan struct{}) {
	t.Helper()
	first := make(chan struct{}, 1)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !strings.HasSuffix(req.URL.Path, "/info") {
			w.Header().Set("Api-Version", "1.41")
			return
		}
		select {
		case first <- struct{}{}:
		default:
		}
		<-answer
		_, _ = w.Write([]byte(`{"Runtimes":{"useless":{}}}`))
	}))
	_ = server.Listener.Close()
	server.Listener = listener
	server.Start()
	t.Cleanup(server.Close)
	return first
}

// Settings of which nobody can say whether they can be used wait for a Docker that is stopped.
func TestSettingsWaitForDocker(t *testing.T) {
	cfg := newAccessLab(t).settings()
	cfg.Docker.Runtime = "kata"
	socket, lines, answer := filepath.Join(t.TempDir(), "docker.sock"), make(lineWriter, 100), make(chan struct{})
	close(answer)
	d := &daemon{
		log: zerolog.New(lines), docker: connectDocker(t, socket), metrics: metrics.New(), service: sandboxtest.New(t, sandboxtest.Options{}),
		read: func() (config.Config, error) { return cfg, nil },
	}
	d.cfg.Store(&cfg)
	stop := inBackground(t.Context(), d.reload)
	defer stop()
	lines.await(t, "take effect when Docker answers")
	serveDocker(t, socket, answer)
	lines.await(t, "docker.runtime: the Docker daemon does not know the runtime")
}

// A token is revoked at once, even while settings that were to be read before wait for Docker.
func TestTokensDoNotWaitForDocker(t *testing.T) {
	lab := newAccessLab(t)
	cfg := lab.settings()
	tokens, err := readTokens(cfg)
	if err != nil {
		t.Fatal(err)
	}
	answer, lines := make(chan struct{}), make(lineWriter, 100)
	docker, asked := silentDocker(t, answer)
	d := &daemon{
		tokens: tokens, log: zerolog.New(lines), docker: docker, metrics: metrics.New(), service: sandboxtest.New(t, sandboxtest.Options{}),
		read: func() (config.Config, error) { return cfg, nil },
	}
	d.cfg.Store(&cfg)
	lab.serveTo(cfg, tokens)
	signals := make(chan os.Signal, 1)
	stop := inBackground(t.Context(), func(ctx context.Context) { d.reloadWhenever(ctx, signals) })
	defer func() {
		close(answer)
		for range 2 { // the settings are read at both signals
			lines.await(t, "nothing has changed")
		}
		stop()
	}()
	signals <- syscall.SIGHUP
	<-asked
	lab.file("tokens.json", `{"tokens":[{"name":"next","token":"fedcba9876543210fedcba9876543210"}]}`)
	signals <- syscall.SIGHUP
	lines.await(t, `"gone":["engine"]`)
	if status, err := lab.get(webClient(t, "", nil), "http://"+cfg.TCP.Listen+"/", token); err != nil || status != http.StatusForbidden {
		t.Errorf("the token that is gone is answered %d (%v)", status, err)
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
