package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/creack/pty"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// value is what the service has.
func (l *lab) value(name string) string {
	l.t.Helper()
	value, err := l.ValueOf(name)
	if err != nil {
		l.t.Fatal(err)
	}
	return value
}

func TestCredential(t *testing.T) {
	l := newLab(t, nil)
	if got, want := l.ok("a value\n", "credential", "set", "github", "--preset", "github"), "github is set for api.github.com; a call asks for it with --grant @secret:github\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	l.ok("other\r\n", "credential", "set", "search", "--host", "a.example.org,*.example.net", "--query", "key", "--method", "GET", "--path", "/v1", "--user", "alice", "--user", "bob")
	if got := l.value("github") + "," + l.value("search"); got != "a value,other" {
		t.Errorf("the values are %q", got)
	}
	list := l.ok("", "credential", "list")
	for i, want := range []string{"NAME", "github api.github.com Authorization: Bearer {secret} all GITHUB_TOKEN", "search *.example.net, a.example.org ?key={secret} alice, bob -"} {
		if line := strings.Join(strings.Fields(strings.Split(list, "\n")[i]), " "); !strings.HasPrefix(line, want) {
			t.Errorf("%q, want %q", line, want)
		}
	}
	got := l.ok("", "credential", "get", "search")
	for _, want := range []string{"name         search\n", "put in as    ?key={secret}\n", "methods      GET\n", "paths        /v1\n", "users        alice, bob\n", "placeholder  daycare-secret-"} {
		if !strings.Contains(got, want) {
			t.Errorf("there is no %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, "variable") || strings.Contains(got+list+l.ok("", "credential", "list", "--json"), "a value") {
		t.Errorf("%s\n%s", got, list)
	}
	if got := l.ok("", "__complete", "credential", "rm", ""); got != "github\nsearch\n:4\n" {
		t.Errorf("rm completes to %q", got)
	}
	l.ok("a third", "credential", "set", "search", "--host", "a.example.org", "--query", "key", "--keep-value")
	var search types.Credential
	decode(t, l.ok("", "credential", "get", "search", "--json"), &search)
	if len(search.Hosts) != 1 || search.Users != nil || search.Methods != nil || l.value("search") != "other" {
		t.Errorf("%+v", search)
	}
	l.ok("", "credential", "rm", "search")
	for verb, want := range map[string]string{"get": "search", "rm": "search"} {
		if _, _, err := l.run(t.Context(), "", "credential", verb, "search"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s of what is gone: %v", verb, err)
		}
	}
}

// The service takes each preset, and flags beside it say something else.
func TestCredentialPresets(t *testing.T) {
	l := newLab(t, nil)
	for name, want := range credentialPresets {
		l.ok("x", "credential", "set", name, "--preset", name)
		var got types.Credential
		decode(t, l.ok("", "credential", "get", name, "--json"), &got)
		if diff := cmp.Diff(want, got.CredentialTerms); diff != "" {
			t.Errorf("%s: want (-), got (+):\n%s", name, diff)
		}
	}
	bearer := types.CredentialPlace{Header: "Authorization", Template: "Bearer {secret}"}
	for _, tt := range []struct {
		flags string
		want  types.CredentialTerms
	}{
		{"--preset github --host github.example.org", types.CredentialTerms{Hosts: []string{"github.example.org"}, CredentialPlace: bearer, Env: "GITHUB_TOKEN"}},
		{"--preset github --env= --user alice", types.CredentialTerms{Hosts: []string{"api.github.com"}, CredentialPlace: bearer, Users: []string{"alice"}}},
		{"--preset github --basic x --env GH", types.CredentialTerms{Hosts: []string{"api.github.com"}, CredentialPlace: types.CredentialPlace{Basic: "x"}, Env: "GH"}},
		{"--preset gitlab --bearer --method GET,PUT --path /a --path /b", types.CredentialTerms{Hosts: []string{"gitlab.com"}, CredentialPlace: bearer, Env: "GITLAB_TOKEN", Methods: []string{"GET", "PUT"}, Paths: []string{"/a", "/b"}}},
		{"--preset github --template token:{secret}", types.CredentialTerms{Hosts: []string{"api.github.com"}, CredentialPlace: types.CredentialPlace{Header: "Authorization", Template: "token:{secret}"}, Env: "GITHUB_TOKEN"}},
		{"--host example.org --header X-Api-Key", types.CredentialTerms{Hosts: []string{"example.org"}, CredentialPlace: types.CredentialPlace{Header: "X-Api-Key", Template: "{secret}"}}},
	} {
		var got types.Credential
		decode(t, l.ok("x", append([]string{"credential", "set", "c", "--json"}, strings.Fields(tt.flags)...)...), &got)
		if diff := cmp.Diff(tt.want, got.CredentialTerms); diff != "" {
			t.Errorf("%s: want (-), got (+):\n%s", tt.flags, diff)
		}
	}
}

func TestCredentialsThatAreRefused(t *testing.T) {
	l := newLab(t, nil)
	const value = "TOPSECRET"
	file := filepath.Join(t.TempDir(), "value")
	writeFile(t, file, "")
	for _, tt := range []struct{ flags, stdin, want string }{
		{"--bearer", value, "give --host or --preset"},
		{"--host example.org", value, "give --bearer, --header"},
		{"--preset githb", value, "it is one of anthropic, github"},
		{"--host example.org --bearer --query key", value, "none of the others can be"},
		{"--host example.org --basic x --template {secret}", value, "template"},
		{"--host *.com --bearer", value, "*.com"},
		{"--preset github " + value, "", "the value comes from stdin or from --value-file"},
		{"--preset github", "", "the value is empty"},
		{"--preset github", "\n", "the value is empty"},
		{"--preset github", "a\n" + value, "value"},
		{"--preset github", strings.Repeat(value, 2000), "more than 16384 bytes"},
		{"--preset github --value-file " + file, value, "the value is empty"},
		{"--preset github --value-file " + file + "-not", value, "no such file"},
		{"--preset github --keep-value", value, "value"},
		{"--preset github --keep-value --value-file " + file, value, "none of the others can be"},
	} {
		_, says, err := l.run(t.Context(), tt.stdin, append([]string{"credential", "set", "new"}, strings.Fields(tt.flags)...)...)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %s", tt.flags, err, tt.want)
		} else if strings.Contains(err.Error()+says, value) {
			t.Errorf("%s: the value is in %v %s", tt.flags, err, says)
		}
	}
	if list := l.Credentials.List(); len(list) > 0 {
		t.Errorf("%+v", list)
	}
}

func TestValueOfAFile(t *testing.T) {
	l := newLab(t, nil)
	file := filepath.Join(t.TempDir(), "value")
	longest := strings.Repeat("a", maxValue)
	for content, want := range map[string]string{"a b": "a b", "one\n": "one", longest + "\r\n": longest} {
		writeFile(t, file, content)
		l.ok("another", "credential", "set", "c", "--preset", "github", "--value-file", file)
		if got := l.value("c"); got != want {
			t.Errorf("%d bytes, want %d", len(got), len(want))
		}
	}
}

// A terminal shows nothing of what is typed, and is as before afterwards, also after an interrupt.
func TestValueIsTypedUnseen(t *testing.T) {
	l := newLab(t, nil)
	shows := func(terminal *os.File) bool {
		mode, err := unix.IoctlGetTermios(int(terminal.Fd()), unix.TCGETS)
		if err != nil {
			t.Fatal(err)
		}
		return mode.Lflag&unix.ECHO != 0
	}
	for _, tt := range []struct {
		name, typed string
		exit        int
		says        string
	}{
		{"a value", "a typed value\n", 0, "c is set"},
		{"nothing", "\n", exitFailure, "the value is empty"},
		{"more than a terminal takes", strings.Repeat("a", 5000) + "\n", exitFailure, "pass it on stdin"},
		{"an interrupt", "a\x03", 130, ""},
	} {
		near, far, err := pty.Open()
		if err != nil {
			t.Fatal(err)
		}
		cmd := l.command("credential", "set", "c", "--preset", "github")
		var out strings.Builder
		cmd.Stdin, cmd.Stdout, cmd.Stderr = far, &out, &out
		cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		waittest.Until(t, "the terminal shows nothing", func() bool { return !shows(far) })
		if _, err := near.WriteString(tt.typed); err != nil {
			t.Fatal(err)
		}
		err = cmd.Wait()
		if got := cmd.ProcessState.ExitCode(); got != tt.exit {
			t.Errorf("%s: exit code %d, %v: %s", tt.name, got, err, out.String())
		}
		if !strings.HasPrefix(out.String(), "Value of c: \n") || !strings.Contains(out.String(), tt.says) || !shows(far) {
			t.Errorf("%s: it shows what is typed: %v; it said %q", tt.name, shows(far), out.String())
		}
		if err := errors.Join(far.Close(), near.Close()); err != nil {
			t.Error(err)
		}
	}
	if got := l.value("c"); got != "a typed value" {
		t.Errorf("the value is %q", got)
	}
}
