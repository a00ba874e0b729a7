package plan

import (
	"strings"
	"testing"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/pathmap"
)

func TestTheLaterLayerWins(t *testing.T) {
	got := listed(merged(
		[]string{"PATH=/bin", "HOME=/root", "A=image", "EMPTY=", "EQUALS=a=b", "no variable"},
		map[string]string{"HOME": "/home", "A": "home"},
		map[string]string{"A": "env", "B": "env"},
		map[string]string{"B": "secret"},
		nil,
	))
	want := []string{"A=env", "B=secret", "EMPTY=", "EQUALS=a=b", "HOME=/home", "PATH=/bin"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
}

func TestHomeVariables(t *testing.T) {
	got := Plan{Home: "/home", state: "/var/state", tmp: "/var/tmp/x"}.variables()
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

// TestGitTrustsWhatIsMounted: in a sandbox with further mounts alone, and without a word against what the caller says.
func TestGitTrustsWhatIsMounted(t *testing.T) {
	const ours = "GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0=*"
	shown := make([]pathmap.Mount, 2) // the home first
	for _, tt := range []struct {
		name   string
		mounts int
		given  map[string]string
		want   string
	}{
		{"no mount", 1, nil, ""},
		{"a mount", 2, nil, "GIT_CONFIG_COUNT=1 " + ours},
		{"other configuration", 2, map[string]string{"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "user.name", "GIT_CONFIG_VALUE_0": "x"},
			"GIT_CONFIG_COUNT=2 GIT_CONFIG_KEY_0=user.name GIT_CONFIG_KEY_1=safe.directory GIT_CONFIG_VALUE_0=x GIT_CONFIG_VALUE_1=*"},
		{"the caller's own", 2, map[string]string{"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "Safe.Directory", "GIT_CONFIG_VALUE_0": "/mnt/a"},
			"GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=Safe.Directory GIT_CONFIG_VALUE_0=/mnt/a"},
		{"no number", 2, map[string]string{"GIT_CONFIG_COUNT": "many"}, "GIT_CONFIG_COUNT=many"},
		{"no such number", 2, map[string]string{"GIT_CONFIG_COUNT": "2000000000"}, "GIT_CONFIG_COUNT=2000000000"},
	} {
		var got []string
		for _, entry := range (Plan{Decided: Decided{Call: &Call{Shown: shown[:tt.mounts]}}}).Environment(tt.given) {
			if strings.HasPrefix(entry, "GIT_CONFIG_") {
				got = append(got, entry)
			}
		}
		if got := strings.Join(got, " "); got != tt.want {
			t.Errorf("%s: %s\nwant %s", tt.name, got, tt.want)
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
		err := CheckVariables("secrets", map[string]string{tt.variable: tt.value})
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
