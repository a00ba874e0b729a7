package sandbox

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/plantest"
)

// places returns where a plan's commands keep their state, caches and temporary files.
func places(p plan.Plan) (state, caches, tmp string) {
	env := map[string]string{}
	for _, entry := range p.Environment() {
		name, value, _ := strings.Cut(entry, "=")
		env[name] = value
	}
	return strings.TrimSuffix(env["XDG_CONFIG_HOME"], "/.config"), env["XDG_CACHE_HOME"], env["TMPDIR"]
}

// TestCachesOnTheDisk: a call that may write only to a part keeps them there, in what is a directory of its own. Under gVisor,
// temporary files are in the container's memory.
func TestCachesOnTheDisk(t *testing.T) {
	for _, runtime := range []string{"runc", "runsc"} {
		t.Run(runtime, func(t *testing.T) { cachesOnTheDisk(t, runtime) })
	}
}

func cachesOnTheDisk(t *testing.T, runtime string) {
	platform := plantest.Platform(t)
	platform.Settings.Runtime = runtime
	s := newServiceOn(t, platform, nil, "")
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
			p, err := s.plan(t.Context(), c, dryRun)
			if err != nil {
				t.Fatal(err)
			}
			if runtime == "runsc" {
				tt.tmp = "/var/tmp"
			}
			if state, caches, tmp := places(p); state != tt.state || caches != tt.caches || (tmp != tt.tmp && !dryRun) {
				t.Errorf("%s (dry: %t): %s, %s, %s", tt.tags, dryRun, state, caches, tmp)
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
		if state, _, _ := places(planFor(t, s, Confinement{Permissions: tags})); state != "/tmp" {
			t.Errorf("%v: %s", tags, state)
		}
	}
	checkNoLeftovers(t, filepath.Join(s.usersDir(), "alice/home/apps/one/data"))
}
