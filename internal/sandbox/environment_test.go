package sandbox

import (
	"strings"
	"testing"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

func TestTheLaterLayerWins(t *testing.T) {
	got := environment(
		[]string{"PATH=/bin", "HOME=/root", "A=image", "EMPTY=", "EQUALS=a=b", "no variable"},
		map[string]string{"HOME": "/home", "A": "home"},
		map[string]string{"A": "env", "B": "env"},
		map[string]string{"B": "secret"},
		nil,
	)
	want := []string{"A=env", "B=secret", "EMPTY=", "EQUALS=a=b", "HOME=/home", "PATH=/bin"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
}

func TestHomeVariables(t *testing.T) {
	got := plan{home: "/home", state: "/var/state", tmp: "/var/tmp/x"}.variables()
	for name, value := range got {
		want := "/var/state/"
		switch name {
		case "HOME", "USERPROFILE", "npm_config_prefix":
			want = "/home/"
		case "TMPDIR", "TMP", "TEMP":
			want = "/var/tmp/x/"
		}
		if !strings.HasPrefix(value+"/", want) {
			t.Errorf("%s=%s is not in %s", name, value, want)
		}
	}
	// What a program of a kind looks for.
	for name, want := range map[string]string{
		"XDG_CONFIG_HOME": "/var/state/.config", "CARGO_HOME": "/var/state/.cargo", "PIP_CACHE_DIR": "/var/state/.cache/pip",
	} {
		if got[name] != want {
			t.Errorf("%s=%s, want %s", name, got[name], want)
		}
	}
}

func TestVariablesThatCannotBe(t *testing.T) {
	for _, tt := range []struct {
		name, variable, value, message string
	}{
		{"plain", "A", "1", ""},
		{"empty value", "A", "", ""},
		{"any characters", "a-b.c é", "=\n\t", ""},
		{"no name", "", "1", "without a name"},
		{"= in the name", "A=B", "1", `"A=B"`},
		{"NUL in the name", "A\x00", "1", `"A\x00"`},
		{"NUL in the value", "A", "topsecret\x00", "secrets.A"},
	} {
		err := checkVariables("secrets", map[string]string{tt.variable: tt.value})
		switch {
		case tt.message == "" && err != nil:
			t.Errorf("%s: %v", tt.name, err)
		case tt.message != "" && (!cerrdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), tt.message)):
			t.Errorf("%s: %v, want %s", tt.name, err, tt.message)
		case err != nil && strings.Contains(err.Error(), "topsecret"):
			t.Errorf("%s: the value is shown: %v", tt.name, err)
		}
	}
}
