package main

import (
	"context"
	"encoding/pem"
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/api"
	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/access"
)

const testToken = "0123456789abcdef0123456789abcdef"

// overTLS serves a lab over TLS too, and returns its URL and the names of the files with a token and with the
// server's authority.
func (l *lab) overTLS() (url, token, authority string) {
	l.t.Helper()
	dir := l.t.TempDir()
	file := func(name, text string) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			l.t.Fatal(err)
		}
		return name
	}
	tokens, err := access.ReadTokens(file("tokens.json", `{"tokens":[{"name":"cli","token":"`+testToken+`"}]}`))
	if err != nil {
		l.t.Fatal(err)
	}
	server := httptest.NewTLSServer(api.New(l.Service, api.Config{
		Authenticator: access.TCP{Tokens: tokens, Listen: "127.0.0.1:1"}.Caller,
		Doctor: func(context.Context) (types.DoctorReport, error) {
			return types.DoctorReport{Findings: []types.DoctorFinding{
				{Check: "docker", Level: "ok", Found: "it answers"}, {Check: "disk", Level: "fault", Found: "it is full\x1b", Remedy: "make room"},
			}}, nil
		},
		Version: "v1", MaxRequest: 1 << 20, MaxOutput: 1 << 20, Log: zerolog.Nop(),
	}))
	l.t.Cleanup(server.Close)
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return server.URL, file("token", testToken+"\n"), file("ca.pem", string(certificate))
}

func TestOverTLS(t *testing.T) {
	l := newLab(t, nil)
	url, token, authority := l.overTLS()
	root := func(args ...string) (string, error) {
		var out strings.Builder
		cmd := rootCommand()
		cmd.SetArgs(args)
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		err := cmd.ExecuteContext(t.Context())
		return out.String(), err
	}
	explain := []string{"explain", "--user", "alice"}
	if out, err := root(append(explain, "--url", url, "--token-file", token, "--ca-file", authority)...); err != nil {
		t.Errorf("flags: %v %s", err, out)
	}
	remote := []string{"doctor", "--url", url, "--token-file", token, "--ca-file", authority}
	out, err := root(remote...)
	want := "docker  ok       it answers\ndisk    fault    \"it is full\\x1b\"\n                 to do: make room\n"
	if exit := exitCode(0); !errors.As(err, &exit) || exit != 1 || out != want {
		t.Errorf("doctor: %v %q", err, out)
	}
	if out, err := root(append(remote, "--json")...); exitCode(1) != err || !strings.Contains(out, `"level": "fault"`) {
		t.Errorf("doctor --json: %v %s", err, out)
	}
	if _, err := root(append(remote, "--offline")...); err == nil || !strings.Contains(err.Error(), "unknown flag: --offline; only --json goes with --url") {
		t.Errorf("doctor --offline: %v", err)
	}
	for _, tt := range []struct {
		name string
		args []string
		want string // a part of the error
	}{
		{"socket and URL", []string{"--socket", "/s", "--url", url}, "both given"},
		{"no token", []string{"--url", url}, "--token-file or $SANDBOX_TOKEN_FILE"},
		{"token that is not there", []string{"--url", url, "--token-file", "/nowhere"}, "cannot read the token"},
		{"empty token", []string{"--url", url, "--token-file", os.DevNull}, "needs a token"},
		{"token for a socket", []string{"--token-file", token}, "go with --url"},
		{"authority that is none", []string{"--url", url, "--token-file", token, "--ca-file", token}, "cannot use --ca-file, or --cert-file and --key-file: failed to append certificates from PEM file: \"" + token},
		{"authority that is not named", []string{"--url", url, "--token-file", token}, "is not trusted"},
		{"certificate without a key", []string{"--url", url, "--token-file", token, "--cert-file", authority}, "go together"},
		{"key that is none", []string{"--url", url, "--token-file", token, "--cert-file", authority, "--key-file", token}, "--cert-file and --key-file: could not load X509 key pair"},
		{"no URL", []string{"--url", "localhost:7480", "--token-file", token}, "want a URL such as"},
	} {
		if _, err := root(append(explain, tt.args...)...); err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), testToken) {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
		}
	}
	t.Setenv("SANDBOX_URL", url)
	t.Setenv("SANDBOX_TOKEN_FILE", token)
	t.Setenv("SANDBOX_CA_FILE", authority)
	if out, err := root(explain...); err != nil {
		t.Errorf("variables: %v %s", err, out)
	}
	t.Setenv("SANDBOX_TOKEN_FILE", "/nowhere")
	for _, tt := range []struct{ words, want string }{{"ex", "exec\t"}, {"exec --user a", ":1\n"}} {
		if out, err := root(append([]string{"__complete"}, strings.Fields(tt.words)...)...); err != nil || !strings.HasPrefix(out, tt.want) {
			t.Errorf("completion of %s without a token: %v %q", tt.words, err, out)
		}
	}
	if out, err := root("__completeNoDesc", "ex"); err != nil || !strings.HasPrefix(out, "exec\n") {
		t.Errorf("completion without descriptions: %v %q", err, out)
	}
	t.Setenv("SANDBOX_TOKEN_FILE", token)
	t.Setenv("SANDBOX_SOCKET", "/nowhere")
	if _, err := root(explain...); err == nil || !strings.Contains(err.Error(), "SANDBOX_URL and SANDBOX_SOCKET are both set") {
		t.Errorf("both variables: %v", err)
	}
	if _, err := root(append(explain, "--socket", "/elsewhere")...); err == nil || !strings.Contains(err.Error(), "no service answers at /elsewhere") {
		t.Errorf("a flag over the variables: %v", err)
	}
	if out, err := root(append(explain, "--url", url)...); err != nil {
		t.Errorf("the other flag: %v %s", err, out)
	}
}
