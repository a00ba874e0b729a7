package sandbox

import (
	"errors"
	"os"
	"path/filepath"
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

// TestGitTrustsWhatIsMounted: in a sandbox with further mounts alone, and without a word against what the caller says.
func TestGitTrustsWhatIsMounted(t *testing.T) {
	const ours = "GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0=*"
	for _, tt := range []struct {
		name    string
		mounted bool
		given   map[string]string
		want    string
	}{
		{"no mount", false, nil, ""},
		{"a mount", true, nil, "GIT_CONFIG_COUNT=1 " + ours},
		{"other configuration", true, map[string]string{"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "user.name", "GIT_CONFIG_VALUE_0": "x"},
			"GIT_CONFIG_COUNT=2 GIT_CONFIG_KEY_0=user.name GIT_CONFIG_KEY_1=safe.directory GIT_CONFIG_VALUE_0=x GIT_CONFIG_VALUE_1=*"},
		{"the caller's own", true, map[string]string{"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "Safe.Directory", "GIT_CONFIG_VALUE_0": "/mnt/a"},
			"GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=Safe.Directory GIT_CONFIG_VALUE_0=/mnt/a"},
		{"no number", true, map[string]string{"GIT_CONFIG_COUNT": "many"}, "GIT_CONFIG_COUNT=many"},
		{"no such number", true, map[string]string{"GIT_CONFIG_COUNT": "2000000000"}, "GIT_CONFIG_COUNT=2000000000"},
	} {
		var got []string
		for _, entry := range (plan{mounted: tt.mounted}).environment(tt.given) {
			if strings.HasPrefix(entry, "GIT_CONFIG_") {
				got = append(got, entry)
			}
		}
		if got := strings.Join(got, " "); got != tt.want {
			t.Errorf("%s: %s\nwant %s", tt.name, got, tt.want)
		}
	}
}

// TestCachesOnTheDisk: a call that may write only to a part keeps them there, in what is a directory of its own.
func TestCachesOnTheDisk(t *testing.T) {
	s := newService(t, nil, "")
	planFor(t, s, Confinement{})
	home, root := filepath.Join(s.usersDir(), "alice", "home"), filepath.Dir(s.usersDir())
	s.allowMounts(nil, root)
	for _, dir := range []string{home + "/project", home + "/out", home + "/linked", home + "/taken", root + "/ours", root + "/others"} {
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.Chown(dir, testUID, testGID)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Chown(root+"/others", 0, 0), os.Symlink("../out", home+"/linked/.cache"), os.Mkdir(home+"/taken/.cache", 0o755),
		os.WriteFile(home+"/notes.md", nil, 0o666)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Put("agent", Registration{
		UserID: "alice", WorkingDir: "/home/project", WriteDirs: []string{"/home", "/mnt/ours", "/mnt/others"},
		Mounts: []MountRequest{{Source: root + "/ours", Target: "/mnt/ours"}, {Source: root + "/others", Target: "/mnt/others"}},
	}); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ tags, denied, state, caches, tmp string }{
		{"", "", "/tmp", "/tmp/.cache", "/tmp"},
		{"@write:/home", "", "/home", "/home/.cache", "/home/.cache/tmp"},
		{"@workspace", "", "/home/project/.cache", "/home/project/.cache", "/home/project/.cache/tmp"},
		{"@write:/home/out @workspace", "", "/home/project/.cache", "/home/project/.cache", "/home/project/.cache/tmp"},
		{"@write:/home/out", "", "/home/out/.cache", "/home/out/.cache", "/home/out/.cache/tmp"},
		{"@write:/mnt/ours", "", "/mnt/ours/.cache", "/mnt/ours/.cache", "/mnt/ours/.cache/tmp"},
		{"@write:/mnt/others", "", "/tmp", "/tmp/.cache", "/tmp"},
		{"@write:/home/notes.md", "", "/tmp", "/tmp/.cache", "/tmp"},
		{"@write:/home/linked", "", "/tmp", "/tmp/.cache", "/tmp"},
		{"@write:/home/taken", "", "/tmp", "/tmp/.cache", "/tmp"},
		{"@write:/home/new.md", "", "/tmp", "/tmp/.cache", "/tmp"},
		{"@write:/home/out", "/home/out/.cache", "/tmp", "/tmp/.cache", "/tmp"},
		{"@write:/home/out", "/home/out/.cache/tmp", "/tmp", "/tmp/.cache", "/tmp"},
	} {
		asked := Confinement{Permissions: strings.Fields(tt.tags)}
		if tt.denied != "" {
			asked.DenyRead = []string{tt.denied}
		}
		c, err := s.call("agent", asked)
		if err != nil {
			t.Fatal(err)
		}
		for _, dryRun := range []bool{true, false} {
			p, err := s.resolver.plan(t.Context(), c, dryRun)
			if err != nil {
				t.Fatal(err)
			}
			if p.state != tt.state || p.cacheDir() != tt.caches || (p.tmp != tt.tmp && !dryRun) {
				t.Errorf("%s (dry: %t): %s, %s, %s", tt.tags, dryRun, p.state, p.cacheDir(), p.tmp)
			}
		}
	}
	if text, err := os.ReadFile(home + "/project/.cache/.gitignore"); err != nil || string(text) != "*\n" {
		t.Errorf("%q, %v", text, err)
	}
}

// TestAnAppsDataHasNoCaches: no tag has asked for what is in it, so it has what the app makes.
func TestAnAppsDataHasNoCaches(t *testing.T) {
	s := newService(t, nil, "")
	if _, _, err := s.Put("agent", Registration{UserID: "alice", AppID: "one", WorkingDir: "/home/apps/one/data"}); err != nil {
		t.Fatal(err)
	}
	for _, tags := range [][]string{nil, {"@workspace"}} {
		if p := planFor(t, s, Confinement{Permissions: tags}); p.state != "/tmp" {
			t.Errorf("%v: %s", tags, p.state)
		}
	}
	checkNoLeftovers(t, filepath.Join(s.usersDir(), "alice/home/apps/one/data"))
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
