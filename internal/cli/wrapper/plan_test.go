package wrapper

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/api/types"
)

func same(name string) string { return name }

// In a user's home, and in a directory of the host's.
var (
	atHome = Where{Cwd: "/data/users/alice/home/project", Home: "/root", UsersDir: "/data/users", Real: same}
	atWork = Where{Cwd: "/srv/work", Home: "/root", UsersDir: "/data/users", Real: same}
)

// atWorkAs is atWork in the sandbox of a user.
func atWorkAs(user string) Where {
	w := atWork
	w.User = user
	return w
}

func plan(t *testing.T, w Where, f Filesystem, n Network) (Call, error) {
	t.Helper()
	return Settings{Filesystem: f, Network: n}.Plan(w)
}

func TestSandboxOfTheWorkingDirectory(t *testing.T) {
	for _, tt := range []struct {
		cwd, user, usersDir string
		want, inside        string
		mounts              []types.Mount
		fault               string
	}{
		{cwd: "/data/users/alice/home/project", want: "alice", inside: "/home/project"},
		{cwd: "/data/users/alice/home", want: "alice", inside: "/home"},
		{cwd: "/data/users/alice/home", user: "alice", want: "alice", inside: "/home"},
		{cwd: "/data/users/alice/home", user: "bob", fault: "--user bob: the working directory is in the home of alice"},
		{cwd: "/data/users/alice/homework", want: "wrapper", inside: "/data/users/alice/homework", mounts: []types.Mount{{Source: "/data/users/alice/homework", Target: "/data/users/alice/homework"}}},
		{cwd: "/data/users2/alice/home", want: "wrapper", inside: "/data/users2/alice/home", mounts: []types.Mount{{Source: "/data/users2/alice/home", Target: "/data/users2/alice/home"}}},
		{cwd: "/srv/work", user: "bob", want: "bob", inside: "/srv/work", mounts: []types.Mount{{Source: "/srv/work", Target: "/srv/work"}}},
		{cwd: "/home/bob/work", want: "wrapper", inside: "/workspace", mounts: []types.Mount{{Source: "/home/bob/work", Target: "/workspace"}}},
		{cwd: "/workspace/x", want: "wrapper", inside: "/workspace/x", mounts: []types.Mount{{Source: "/workspace/x", Target: "/workspace/x"}}},
		{cwd: "/", want: "wrapper", inside: "/workspace", mounts: []types.Mount{{Source: "/", Target: "/workspace"}}},
	} {
		w := atWork
		w.Cwd, w.User = tt.cwd, tt.user
		got, err := plan(t, w, Filesystem{}, Network{})
		if tt.fault != "" {
			if err == nil || !strings.Contains(err.Error(), tt.fault) {
				t.Errorf("%+v: %v", tt, err)
			}
			continue
		}
		if err != nil || got.Registration.UserID != tt.want || got.Exec.Cwd != tt.inside {
			t.Errorf("%+v: %+v, %v", tt, got, err)
		}
		if diff := cmp.Diff(tt.mounts, got.Registration.Mounts); diff != "" {
			t.Errorf("%+v: want (-), got (+):\n%s", tt, diff)
		}
	}
}

// TestPaths holds what a call asks for against what the settings say.
func TestPaths(t *testing.T) {
	for _, tt := range []struct {
		name string
		w    Where
		f    Filesystem
		want types.Exec
	}{
		{"nothing at home", atHome, Filesystem{}, types.Exec{}},
		{"nothing at work", atWork, Filesystem{}, types.Exec{Permissions: []string{"@read:/srv/work"}}},
		{"the working directory", atHome, Filesystem{AllowWrite: []string{"."}}, types.Exec{Permissions: []string{"@write:/home/project"}}},
		{"... at work", atWork, Filesystem{AllowWrite: []string{"."}}, types.Exec{Permissions: []string{"@write:/srv/work"}}},
		{"a part of it", atWork, Filesystem{AllowWrite: []string{"out", "./log/**"}}, types.Exec{Permissions: []string{"@write:/srv/work/out", "@write:/srv/work/log", "@read:/srv/work"}}},
		{"by its path", atHome, Filesystem{AllowWrite: []string{"/data/users/alice/home/a/", "../b"}}, types.Exec{Permissions: []string{"@write:/home/a", "@write:/home/b"}}},
		{"all there is", atHome, Filesystem{AllowWrite: []string{"/"}}, types.Exec{Permissions: []string{"@write:/home"}}},
		{"/tmp is writable anyway", atHome, Filesystem{AllowWrite: []string{"/tmp"}}, types.Exec{}},
		{"another directory", atHome, Filesystem{AllowWrite: []string{"/srv/out/x", "/srv/out"}}, types.Exec{Permissions: []string{"@write:/srv/out", "@write:/srv/out/x"}}},
		{"denied", atWork, Filesystem{AllowWrite: []string{"."}, DenyRead: []string{".env", "~/.ssh", "/etc/passwd"}, DenyWrite: []string{".git", "/srv/other"}},
			types.Exec{Permissions: []string{"@write:/srv/work"}, Restrictions: types.Restrictions{DenyRead: []string{"/srv/work/.env"}, DenyWrite: []string{"/srv/work/.git"}}}},
		{"denied from above", atWork, Filesystem{AllowWrite: []string{"."}, DenyWrite: []string{"/srv"}},
			types.Exec{Permissions: []string{"@write:/srv/work"}, Restrictions: types.Restrictions{DenyWrite: []string{"/srv/work"}}}},
		{"given back as a whole", atWork, Filesystem{DenyRead: []string{"/srv"}, AllowRead: []string{"."}}, types.Exec{Permissions: []string{"@read:/srv/work"}}},
		{"given back elsewhere", atWork, Filesystem{AllowRead: []string{"/usr", "src"}}, types.Exec{Permissions: []string{"@read:/srv/work"}}},
		{"home", Where{Cwd: "/data/users/alice/home", Home: "/data/users/alice/home", UsersDir: "/data/users", Real: same}, Filesystem{AllowWrite: []string{"~"}, DenyRead: []string{"~/vault"}},
			types.Exec{Permissions: []string{"@write:/home"}, Restrictions: types.Restrictions{DenyRead: []string{"/home/vault"}}}},
		{"denied in the user's home, from elsewhere", atWorkAs("bob"), Filesystem{DenyRead: []string{"/data/users/bob/home/vault", "/data/users/alice/home/vault"}},
			types.Exec{Permissions: []string{"@read:/srv/work"}, Restrictions: types.Restrictions{DenyRead: []string{"/home/vault"}}}},
		{"... of nobody in particular", atWork, Filesystem{DenyRead: []string{"/data/users/wrapper/home/vault"}},
			types.Exec{Permissions: []string{"@read:/srv/work"}, Restrictions: types.Restrictions{DenyRead: []string{"/home/vault"}}}},
		{"... but given back", atWorkAs("bob"), Filesystem{DenyRead: []string{"/data", "/data/users/bob/home/vault"}, AllowRead: []string{"/data/users/bob/home"}},
			types.Exec{Permissions: []string{"@read:/srv/work"}}},
		{"... in a part that is mounted, too", atWorkAs("bob"), Filesystem{AllowWrite: []string{"/data/users/bob/home/a"}, DenyRead: []string{"/data/users/bob/home/a/key"}},
			types.Exec{Permissions: []string{"@write:/data/users/bob/home/a", "@read:/srv/work"}, Restrictions: types.Restrictions{DenyRead: []string{"/data/users/bob/home/a/key", "/home/a/key"}}}},
		{"write denied in the user's home, from elsewhere", atWorkAs("bob"), Filesystem{DenyWrite: []string{"/data/users/bob/home/vault"}},
			types.Exec{Permissions: []string{"@read:/srv/work"}}},
	} {
		got, err := plan(t, tt.w, tt.f, Network{})
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		tt.want.Cwd = got.Exec.Cwd
		if diff := cmp.Diff(tt.want, got.Exec); diff != "" {
			t.Errorf("%s: want (-), got (+):\n%s", tt.name, diff)
		}
		for _, tag := range got.Exec.Permissions {
			held := append(got.Registration.Permissions.WriteDirs, got.Registration.Permissions.ReadDirs...)
			if _, path, _ := strings.Cut(tag, ":"); !strings.Contains(strings.Join(held, " ")+" ", path+" ") {
				t.Errorf("%s: %s is not held: %v", tt.name, tag, held)
			}
		}
	}
}

func TestPathsRefused(t *testing.T) {
	for _, tt := range []struct {
		f    Filesystem
		says string
	}{
		{Filesystem{DenyRead: []string{"a", "*.pem"}}, `filesystem.denyRead[1]: "*.pem" is a pattern; name files or directories`},
		{Filesystem{DenyWrite: []string{"src/**/x"}}, `filesystem.denyWrite[0]: "src/**/x" is a pattern`},
		{Filesystem{AllowWrite: []string{""}}, "filesystem.allowWrite[0]: \"\" is empty"},
		{Filesystem{AllowWrite: []string{"~bob/x"}}, "names another user's home"},
		{Filesystem{AllowWrite: []string{"a\x00"}}, "has a NUL byte"},
		{Filesystem{AllowWrite: []string{"/var/cache/x"}}, `filesystem.allowWrite[0]: "/var/cache/x" lies outside of the working directory, and its name is taken inside`},
		{Filesystem{DenyRead: []string{"."}}, `filesystem.denyRead[0]: "." holds the working directory`},
		{Filesystem{DenyRead: []string{"/srv"}}, `filesystem.denyRead[0]: "/srv" holds "/srv/work", which the command is to see`},
		{Filesystem{DenyRead: []string{"/data"}}, `filesystem.denyRead[0]: "/data" holds the home of wrapper, which every command sees at /home: name what is to be hidden in it, or name "/data/users/wrapper/home" in filesystem.allowRead`},
		{Filesystem{DenyRead: []string{"/data/users/wrapper/home"}}, `filesystem.denyRead[0]: "/data/users/wrapper/home" holds the home of wrapper, which`},
		{Filesystem{DenyRead: []string{"vault"}, AllowRead: []string{"vault/open"}}, `filesystem.allowRead[0]: "vault/open" lies in "vault"`},
		{Filesystem{AllowRead: []string{"a?"}}, "filesystem.allowRead[0]"},
	} {
		if got, err := plan(t, atWork, tt.f, Network{}); err == nil || !strings.Contains(err.Error(), tt.says) || len(got.Exec.Permissions) > 0 {
			t.Errorf("%+v: %+v, %v", tt.f, got, err)
		}
	}
}

func TestNetwork(t *testing.T) {
	got, err := plan(t, atHome, Filesystem{}, Network{AllowedDomains: []string{"*.example.org"}, DeniedDomains: []string{"a.example.org"}})
	want := types.Exec{
		Cwd: "/home/project", Permissions: []string{"@network"}, AllowedDomains: []string{"*.example.org"},
		Restrictions: types.Restrictions{DeniedDomains: []string{"a.example.org"}},
	}
	if diff := cmp.Diff(want, got.Exec); diff != "" || err != nil || !got.Registration.Permissions.Network {
		t.Errorf("%v, want (-), got (+):\n%s", err, diff)
	}
	if got, err := plan(t, atHome, Filesystem{}, Network{DeniedDomains: []string{"a.example.org"}}); err != nil || len(got.Exec.Permissions) > 0 || got.Registration.Permissions.Network {
		t.Errorf("denied alone: %+v, %v", got, err)
	}
}

// TestWarnings: what the settings say of the host's /tmp is about another one.
func TestWarnings(t *testing.T) {
	got, err := plan(t, atHome, Filesystem{AllowWrite: []string{"/tmp/x"}}, Network{})
	if err != nil || len(got.Warnings) != 1 || !strings.Contains(got.Warnings[0], `filesystem.allowWrite[0]: "/tmp/x" is not the host's`) {
		t.Errorf("%q, %v", got.Warnings, err)
	}
}

// TestLinks: a path is what its links lead to.
func TestLinks(t *testing.T) {
	w := atWork
	w.Real = func(name string) string {
		return strings.Replace(strings.Replace(name, "/srv/link", "/srv/work", 1), "/srv/work/out", "/elsewhere", 1)
	}
	got, err := plan(t, w, Filesystem{AllowWrite: []string{"/srv/link/a"}, DenyRead: []string{"out/x"}}, Network{})
	if diff := cmp.Diff([]string{"@write:/srv/work/a", "@read:/srv/work"}, got.Exec.Permissions); diff != "" || err != nil || got.Exec.DenyRead != nil {
		t.Errorf("%+v, %v, %s", got, err, diff)
	}
}

const applied = `{
  "platform": {"instance": "x", "runtime": "runsc"}, "user": "alice", "uid": 1000, "gid": 1000, "spoolDir": "/data/users/alice",
  "mounts": [
    {"source": "/data/users/alice/home", "target": "/home", "readOnly": true, "id": {"dev": 1, "ino": 2, "since": 3}, "verify": false},
    {"source": "/data/users/alice/home/project", "target": "/home/project", "readOnly": false},
    {"source": "/data/users/alice/home/project/.git", "target": "/home/project/.git", "readOnly": true},
    {"source": "/srv/data", "target": "/mnt/data", "readOnly": true},
    {"source": "/srv/data/part", "target": "/mnt/data/part", "readOnly": false},
    {"source": "/srv/skills", "target": "/shared/skills", "readOnly": true}
  ],
  "masks": [
    {"target": "/etc/shadow", "file": true}, {"target": "/home/.ssh"}, {"target": "/home/apps", "listable": true},
    {"target": "/home/vault"}, {"target": "/home/project/never", "vacant": true}
  ],
  "pins": [], "links": [], "events": false,
  "egress": {"profile": "isolated", "domains": ["*.example.org"], "denied": ["a.example.org"]},
  "process": {"id": "p-aaaaaaaaaaaa", "dir": "/x"}
}`

// A sandbox.json that was cut at any byte is neither that nor settings.
func TestAppliedThatWasCut(t *testing.T) {
	for length := range len(applied) {
		text := []byte(applied[:length])
		if _, _, err := Parse(text); IsApplied(text) || err == nil {
			t.Errorf("cut to %d bytes, it is taken", length)
		}
	}
}

// TestApplied: the sandbox.json of a process gives another command what the process has.
func TestApplied(t *testing.T) {
	if !IsApplied([]byte(applied)) || IsApplied([]byte(`{"filesystem":{}}`)) || IsApplied([]byte(`nothing`)) {
		t.Error("a sandbox.json is told apart wrongly")
	}
	a, err := ParseApplied([]byte(applied))
	if err != nil {
		t.Fatal(err)
	}
	got, err := a.Plan(atHome, []string{".ssh"})
	if err != nil {
		t.Fatal(err)
	}
	want := Call{
		Registration: types.Registration{
			UserID: "alice", SkillsDir: "/srv/skills", Mounts: []types.Mount{{Source: "/srv/data", Target: "/mnt/data"}},
			Permissions: types.Permissions{WriteDirs: []string{"/home/project", "/mnt/data/part"}, ReadDirs: []string{"/mnt/data"}, Network: true},
		},
		Exec: types.Exec{
			Cwd: "/home/project", Permissions: []string{"@read:/mnt/data", "@write:/home/project", "@write:/mnt/data/part", "@network"},
			AllowedDomains: []string{"*.example.org"},
			Restrictions: types.Restrictions{
				DenyRead: []string{"/home/vault"}, DenyWrite: []string{"/home/project/.git", "/home/project/never"}, DeniedDomains: []string{"a.example.org"},
			},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
	w := atWork
	if _, err := a.Plan(w, nil); err == nil || !strings.Contains(err.Error(), "in no place that the process sees") {
		t.Error(err)
	}
	w.Cwd = "/srv/data/part"
	if got, err := a.Plan(w, nil); err != nil || got.Exec.Cwd != "/mnt/data/part" {
		t.Errorf("%+v, %v", got.Exec, err)
	}
	w.User = "bob"
	if _, err := a.Plan(w, nil); err == nil || !strings.Contains(err.Error(), "the process belongs to alice") {
		t.Error(err)
	}
}
