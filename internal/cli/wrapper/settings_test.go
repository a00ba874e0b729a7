package wrapper

import (
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	s, warnings, err := Parse([]byte(`{
		"filesystem": {"denyRead": ["~/.ssh"], "allowWrite": [".", "/tmp"], "denyWrite": [".env"]},
		"network": {"allowedDomains": ["*.example.org"], "deniedDomains": ["a.example.org"]},
		"enableWeakerNestedSandbox": false
	}`))
	if err != nil || len(warnings) != 0 {
		t.Fatalf("%q, %v", warnings, err)
	}
	if !slices.Equal(s.Filesystem.AllowWrite, []string{".", "/tmp"}) || !slices.Equal(s.Filesystem.DenyRead, []string{"~/.ssh"}) ||
		!slices.Equal(s.Filesystem.DenyWrite, []string{".env"}) || !slices.Equal(s.Network.AllowedDomains, []string{"*.example.org"}) ||
		!slices.Equal(s.Network.DeniedDomains, []string{"a.example.org"}) {
		t.Errorf("%+v", s)
	}
	if _, _, err := Parse([]byte(`{}`)); err != nil {
		t.Errorf("nothing: %v", err)
	}
}

// TestParseTolerates: what srt knows and what means nothing here is told, not refused.
func TestParseTolerates(t *testing.T) {
	for text, says := range map[string]string{
		`{"enableWeakerNestedSandbox": true}`:                              "docker.enableWeakerNestedSandbox decides",
		`{"ignoreViolations": {"*": ["/usr"]}}`:                            "ignoreViolations has no meaning",
		`{"ripgrep": {"command": "rg"}, "mandatoryDenySearchDepth": 3}`:    "ripgrep has no meaning",
		`{"network": {"allowLocalBinding": true}}`:                         "network.allowLocalBinding has no effect",
		`{"network": {"httpProxyPort": 8080}}`:                             "network.httpProxyPort has no meaning",
		`{"filesystem": {"allowGitConfig": true}}`:                         "filesystem.allowGitConfig has no meaning",
		`{"allowPty": true}`:                                               "allowPty",
		`{"network": {"deniedDomainReasons": {"a.org": "no"}}}`:            "deniedDomainReasons",
		`{"seccomp": {"applyPath": "/x"}, "git": {"safeDirectories": []}}`: "seccomp",
	} {
		_, warnings, err := Parse([]byte(text))
		if err != nil || !strings.Contains(strings.Join(warnings, "\n"), says) {
			t.Errorf("%s: %q, %v", text, warnings, err)
		}
	}
	quiet := `{"allowPty": false, "ignoreViolations": {}, "network": {"allowUnixSockets": [], "allowAllUnixSockets": false, "strictAllowlist": true, "allowLocalBinding": false}}`
	if _, warnings, err := Parse([]byte(quiet)); err != nil || len(warnings) != 0 {
		t.Errorf("%q, %v", warnings, err)
	}
}

func TestParseRefuses(t *testing.T) {
	for text, says := range map[string]string{
		`{"network": {"allowUnixSockets": ["/var/run/docker.sock"]}}`: "network.allowUnixSockets: sockets of the host",
		`{"network": {"allowAllUnixSockets": true}}`:                  "network.allowAllUnixSockets",
		`{"filesystem": {"disabled": true}}`:                          "filesystem.disabled",
		`{"network": {"mitmProxy": {"socketPath": "/x"}}}`:            "network.mitmProxy",
		`{"network": {"tlsTerminate": {"caCertPath": "/x"}}}`:         "network.tlsTerminate",
		`{"credentials": {"files": [{"path": "~/.netrc"}]}}`:          "credentials: no credential",
		`{"enableWeakerNetworkIsolation": true}`:                      "enableWeakerNetworkIsolation",
		`{"allowAppleEvents": true}`:                                  "allowAppleEvents",
		`{"filesystem": {"denyread": []}}`:                            "filesystem.denyread: unknown key (did you mean denyRead?)",
		`{"Filesystem": {}}`:                                          "Filesystem: unknown key",
		`{"network": {"allowedDomains": "example.org"}}`:              `network.allowedDomains: want a list of strings, got "example.org"`,
		`{"network": {"allowedDomains": [1]}}`:                        "network.allowedDomains[0]: want a string, got 1",
		`{"network": {}, "network": {}}`:                              "network: is given more than once",
		`{"network": {"allowAllUnixSockets": "no"}}`:                  `network.allowAllUnixSockets: want true or false, got "no"`,
		`{`:     "the JSON ends too early",
		``:      "the JSON ends too early",
		`[]`:    "the file: want an object, got []",
		`{} {}`: "there is more after the first value",
	} {
		if _, _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %s", text, err, says)
		}
	}
}

func TestCommandOf(t *testing.T) {
	for _, tt := range []struct {
		args    []string
		command string
	}{
		{[]string{"ls"}, ""}, {[]string{"./run.sh"}, ""}, {[]string{"/usr/bin/env"}, ""},
		{[]string{"ls -l"}, "ls -l"}, {[]string{"a;b"}, "a;b"}, {[]string{"echo\n"}, "echo\n"}, {[]string{"$X"}, "$X"}, {[]string{"'a'"}, "'a'"},
		{[]string{"ls", "-l"}, ""}, {[]string{"printf", "%s", "a b", "", "--", "$x"}, ""}, {[]string{"a b", "c"}, ""},
	} {
		command, argv := CommandOf(tt.args)
		if command != tt.command || (command == "") != slices.Equal(argv, tt.args) {
			t.Errorf("%q: %q, %q", tt.args, command, argv)
		}
	}
}
