package sandbox

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/files"
	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/rootfs"
)

func TestFurtherMountsThatAreRefused(t *testing.T) {
	s := newService(t, nil, "")
	users := s.usersDir()
	s.allowMounts([]string{"/var/lib/own/data", "/run/own/socket"}, users, "/srv/data", "/var/lib/own", "/run")
	for _, tt := range []struct {
		name, source, target string
		class                func(error) bool
		message              string
	}{
		{"a good one", users + "/alice/home/shared", "/mnt/shared", nil, ""},
		{"a folder beside homes", users + "/alice/skills", "/mnt/shared", nil, ""},
		{"a root itself", "/srv/data", "/mnt/data", nil, ""},
		{"outside of the roots", "/etc", "/mnt/etc", cerrdefs.IsPermissionDenied, "allowedMountRoots"},
		{"a root whose name begins alike", "/srv/data2", "/mnt/data", cerrdefs.IsPermissionDenied, "allowedMountRoots"},
		{"all homes", users, "/mnt/users", cerrdefs.IsPermissionDenied, "homes of users"},
		{"a user's folder", users + "/bob", "/mnt/bob", cerrdefs.IsPermissionDenied, "a user's home"},
		{"a home", users + "/bob/home", "/mnt/bob", cerrdefs.IsPermissionDenied, "a user's home"},
		{"secrets", users + "/bob/home/.ssh", "/mnt/bob", cerrdefs.IsPermissionDenied, ".ssh"},
		{"in secrets", users + "/bob/home/.ssh/keys", "/mnt/bob", cerrdefs.IsPermissionDenied, ".ssh"},
		{"a directory with secrets", users + "/bob/home/.config", "/mnt/bob", cerrdefs.IsPermissionDenied, ".config/"},
		{"apps", users + "/bob/home/apps/mail", "/mnt/bob", cerrdefs.IsPermissionDenied, "apps"},
		{"processes", users + "/alice/processes", "/mnt/p", cerrdefs.IsPermissionDenied, "the service's own"},
		{"a process's folder", users + "/alice/processes/p-aaaaaaaaaaaa", "/mnt/p", cerrdefs.IsPermissionDenied, "the service's own"},
		{"in a process's folder", users + "/alice/processes/p-aaaaaaaaaaaa/x", "/mnt/p", cerrdefs.IsPermissionDenied, "the service's own"},
		{"a spool", users + "/alice/.spool-123", "/mnt/p", cerrdefs.IsPermissionDenied, "the service's own"},
		{"a directory being removed", users + "/alice/.removed-x/0", "/mnt/p", cerrdefs.IsPermissionDenied, "the service's own"},
		{"another entry of the service's", users + "/.pool/1/home", "/mnt/p", cerrdefs.IsPermissionDenied, "the service's own"},
		{"a parent of dataDir", "/var/lib/own", "/mnt/p", cerrdefs.IsPermissionDenied, "the service's own"},
		{"dataDir", "/var/lib/own/data", "/mnt/p", cerrdefs.IsPermissionDenied, "the service's own"},
		{"in dataDir", "/var/lib/own/data/processes", "/mnt/p", cerrdefs.IsPermissionDenied, "the service's own"},
		{"beside dataDir", "/var/lib/own/data2", "/mnt/p", nil, ""},
		{"a parent of a socket", "/run/own", "/mnt/p", cerrdefs.IsPermissionDenied, "the service's own"},
		{"relative", "srv/data", "/mnt/data", cerrdefs.IsInvalidArgument, "not absolute"},
		{"unclean", "/srv/data/../../etc", "/mnt/data", cerrdefs.IsInvalidArgument, "not clean"},
		{"target in the home", "/srv/data", "/home/data", cerrdefs.IsInvalidArgument, "/home"},
		{"target around the home", "/srv/data", "/", cerrdefs.IsInvalidArgument, "not free"},
		{"target in the system", "/srv/data", "/usr/lib/x", cerrdefs.IsInvalidArgument, "/usr"},
		{"target of the agent", "/srv/data", "/.daycare/agent", cerrdefs.IsInvalidArgument, "/.daycare"},
		{"target relative", "/srv/data", "mnt", cerrdefs.IsInvalidArgument, "target"},
	} {
		_, _, err := s.Put("mounts", Registration{UserID: "alice", Mounts: []MountRequest{{Source: tt.source, Target: tt.target}}})
		switch {
		case tt.class == nil && err != nil, tt.class != nil && (!tt.class(err) || !strings.Contains(err.Error(), tt.message)):
			t.Errorf("%s: %v, want %q", tt.name, err, tt.message)
		}
		if err != nil && strings.Contains(err.Error(), users) {
			t.Errorf("%s: a host path in the message: %v", tt.name, err)
		}
	}
	if _, _, err := s.Put("mounts", Registration{UserID: "alice", SkillsDir: users + "/bob/home"}); !cerrdefs.IsPermissionDenied(err) {
		t.Errorf("skills: %v", err)
	}
	s.allowMounts(nil)
	if _, _, err := s.Put("mounts", Registration{UserID: "alice", Mounts: []MountRequest{{Source: "/srv/data", Target: "/mnt/d"}}}); !cerrdefs.IsPermissionDenied(err) {
		t.Errorf("no roots are not all roots: %v", err)
	}
}

// TestTargetsThatMeanTwoFiles: a written path is taken for one on the host if a mount shows it, so a target must not be
// the name of something else on the host. What was registered before goes on.
func TestTargetsThatMeanTwoFiles(t *testing.T) {
	s := newService(t, nil, "")
	s.allowMounts(nil, "/mnt", "/srv", "/home")
	for _, tt := range []struct {
		name   string
		mounts []MountRequest
		skills string
		says   string
	}{
		{"apart", []MountRequest{{Source: "/srv/a", Target: "/mnt/a"}, {Source: "/srv/b", Target: "/mnt/b"}}, "/srv/skills", ""},
		{"a name that begins alike", []MountRequest{{Source: "/mnt/data", Target: "/mnt/old"}, {Source: "/srv/new", Target: "/mnt/data2"}}, "", ""},
		{"another's source", []MountRequest{{Source: "/mnt/data", Target: "/mnt/old"}, {Source: "/srv/new", Target: "/mnt/data"}}, "", `mounts[1].target: "/mnt/data" is, holds or lies in the host path of what is mounted at "/mnt/old"`},
		{"the source of a later one", []MountRequest{{Source: "/srv/new", Target: "/mnt/data"}, {Source: "/mnt/data", Target: "/mnt/old"}}, "", `mounts[0].target: "/mnt/data"`},
		{"in another's source", []MountRequest{{Source: "/mnt/data", Target: "/mnt/old"}, {Source: "/srv/new", Target: "/mnt/data/new"}}, "", `mounts[1].target: "/mnt/data/new"`},
		{"around another's source", []MountRequest{{Source: "/mnt/data/part", Target: "/mnt/old"}, {Source: "/srv/new", Target: "/mnt/data"}}, "", `mounts[1].target: "/mnt/data"`},
		{"around its own source", []MountRequest{{Source: "/srv/data", Target: "/srv"}}, "", `mounts[0].target: "/srv"`},
		{"in its own source", []MountRequest{{Source: "/srv", Target: "/srv/data"}}, "", `mounts[0].target: "/srv/data"`},
		{"around the skills", []MountRequest{{Source: "/srv/new", Target: "/mnt/data"}}, "/mnt/data/skills", `mounted at "/shared/skills"`},
		{"the same path on both sides", []MountRequest{{Source: "/srv/data", Target: "/srv/data"}, {Source: "/srv/data/part", Target: "/mnt/part"}}, "", ""},
		{"the host's own below /home", []MountRequest{{Source: "/home/data", Target: "/mnt/data"}}, "", ""},
	} {
		_, _, err := s.Put("two", Registration{UserID: "alice", Mounts: tt.mounts, SkillsDir: tt.skills})
		if tt.says == "" && err != nil || tt.says != "" && (!cerrdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.says)
		}
	}
	s.planner.Files().Use(rootfs.Config{UsersDir: "/data/users", AllowedMountRoots: []string{"/srv"}})
	for target, says := range map[string]string{"/data": "", "/data/users/alice/home": `what is mounted at "/home"`, "/data/users/alice/home/x": `what is mounted at "/home"`} {
		_, _, err := s.Put("two", Registration{UserID: "alice", Mounts: []MountRequest{{Source: "/srv/new", Target: target}}})
		if says == "" && err != nil || says != "" && (!cerrdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), says)) {
			t.Errorf("%s, around or in the home: %v, want %q", target, err, says)
		}
	}
}

func TestTargetsThatWereRegisteredBefore(t *testing.T) {
	s := newService(t, nil, "")
	s.allowMounts(nil, "/mnt", "/srv")
	asked := Registration{UserID: "alice", Mounts: []MountRequest{{Source: "/mnt/data", Target: "/mnt/old"}, {Source: "/srv/new", Target: "/mnt/data"}}}
	before, err := s.Get("agent")
	if err != nil {
		t.Fatal(err)
	}
	if before.ID, err = ids.ParseSandbox("before"); err != nil {
		t.Fatal(err)
	}
	if err := s.parseMounts(&before, asked); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.registry.Put(before, time.Now()); err != nil {
		t.Fatal(err)
	}
	again := newPlanner(t, rootfs.Config{UsersDir: s.usersDir()})
	found, err := again.Sandboxes().Get(before.ID)
	if err == nil {
		_, err = again.Resolve(found, Confinement{})
	}
	if err != nil || len(found.Mounts) != 2 {
		t.Errorf("%+v, %v", found, err)
	}
	if _, _, err := s.Put("before", asked); !cerrdefs.IsInvalidArgument(err) {
		t.Errorf("registered again: %v", err)
	}
}

// The operator may reach usersDir over a link; it makes no other name for a home.
func TestLinksOfTheOperators(t *testing.T) {
	dir := t.TempDir()
	real, named := filepath.Join(dir, "disk"), filepath.Join(dir, "data")
	if err := errors.Join(os.MkdirAll(real+"/users", 0o755), os.Symlink("disk", named)); err != nil {
		t.Fatal(err)
	}
	s := New(testConfig(), Parts{
		Planner: newPlanner(t, rootfs.Config{UsersDir: named + "/users", AllowedMountRoots: []string{real}}),
		Runner:  &fakeExecutor{t: t}, Executor: &fakeExecutor{t: t}, Processes: openProcesses(t, dir),
	})
	if _, _, err := s.Put("agent", Registration{UserID: "alice"}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Put("agent", Registration{UserID: "alice", Mounts: []MountRequest{{Source: real + "/users/bob/home/.ssh", Target: "/mnt/x"}}}); !cerrdefs.IsPermissionDenied(err) {
		t.Errorf("another name for a home: %v", err)
	}
	if _, err := s.Write(t.Context(), "agent", files.WriteRequest{Path: "~/x", Body: strings.NewReader("x")}); err != nil {
		t.Error(err)
	}
	p := planFor(t, s, Confinement{Permissions: []string{"@write:" + named + "/users/alice/home/sub"}})
	for _, m := range p.Spec.Mounts {
		if !strings.HasPrefix(m.Source, real+"/users/alice/home") {
			t.Errorf("%s is mounted from %s, behind a link", m.Target, m.Source)
		}
	}
	checkNoLeftovers(t, real+"/users/alice/home", "sub", "x")
}

func TestListsOfDirectoriesAreBounded(t *testing.T) {
	s := newService(t, nil, "")
	for n, allowed := range map[int]bool{256: true, 257: false} {
		dirs := slices.Repeat([]string{"/home/a"}, n)
		for _, r := range []Registration{{UserID: "alice", WriteDirs: dirs}, {UserID: "alice", ReadDirs: dirs}} {
			if _, _, err := s.Put("places", r); (err == nil) != allowed || err != nil && !cerrdefs.IsInvalidArgument(err) {
				t.Errorf("%d directories: %v", n, err)
			}
		}
	}
}
