package pathmap_test

import (
	"path"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/pathmap"
)

// alice has what a user of the service has: a home, mounts beside it and mounts inside it.
func alice(t testing.TB) pathmap.Map {
	return newMap(t,
		"/data/users/alice/home", "/home",
		"/var/lib/daycare-sandbox/tmp/alice", "/tmp",
		"/srv/skills", "/shared/skills",
		"/srv/datasets", "/home/datasets", // hides the home's own directory "datasets"
		"/data/users/alice/home/apps/mail", "/home/apps/mail", // the same directory again, another mode
	)
}

func TestMap(t *testing.T) {
	tests := []struct{ name, host, container string }{
		{"home", "/data/users/alice/home", "/home"},
		{"file in the home", "/data/users/alice/home/notes.txt", "/home/notes.txt"},
		{"tmp", "/var/lib/daycare-sandbox/tmp/alice/out.txt", "/tmp/out.txt"},
		{"skills", "/srv/skills/a/SKILL.md", "/shared/skills/a/SKILL.md"},
		{"mount inside the home", "/srv/datasets/x.csv", "/home/datasets/x.csv"},
		{"name that only begins like a mount inside", "/data/users/alice/home/datasets2", "/home/datasets2"},
		{"part of the home mounted at its own place", "/data/users/alice/home/apps/mail/data", "/home/apps/mail/data"},
		{"beside it", "/data/users/alice/home/apps/chat", "/home/apps/chat"},
		{"bytes that are not UTF-8", "/data/users/alice/home/\xff", "/home/\xff"},
	}
	m := alice(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := m.Parse(tt.host); err != nil || got.String() != tt.container {
				t.Errorf("Parse(%q) = %q, %v, want %q", tt.host, got, err, tt.container)
			}
			if got, err := onHost(m, container(t, tt.container)); err != nil || got.String() != tt.host {
				t.Errorf("Locate(%q) = %q, %v, want %q", tt.container, got, err, tt.host)
			}
		})
	}
}

// What no mount shows is no name of the host's, but one inside, as it was written.
func TestParseOfWhatNoMountShows(t *testing.T) {
	tests := []struct{ name, path string }{
		{"another user", "/data/users/bob/home/notes.txt"},
		{"user whose name begins alike", "/data/users/alice2/home"},
		{"home whose name begins alike", "/data/users/alice/home2"},
		{"above the home", "/data/users/alice"},
		{"root", "/"},
		{"hidden by a nested mount", "/data/users/alice/home/datasets"},
		{"under what is hidden", "/data/users/alice/home/datasets/x.csv"},
	}
	m := alice(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := m.Parse(tt.path)
			if err != nil || got.String() != tt.path {
				t.Fatalf("Parse(%q) = %q, %v", tt.path, got, err)
			}
			if at, err := onHost(m, got); !errdefs.IsNotFound(err) {
				t.Errorf("%q is %q, %v", tt.path, at, err)
			}
		})
	}
}

func TestLocateRefuses(t *testing.T) {
	m := alice(t)
	for _, name := range []string{"/", "/etc/passwd", "/homework", "/shared", "/tmpx", "/data/users/alice/home"} {
		if got, err := onHost(m, container(t, name)); !errdefs.IsNotFound(err) || !got.IsZero() {
			t.Errorf("Locate(%q) = %q, %v", name, got, err)
		}
	}
}

func TestZeroValues(t *testing.T) {
	root := newMap(t, "/", "/")
	if _, err := root.Parse(""); !errdefs.IsInvalidArgument(err) {
		t.Errorf("Parse of no path: %v", err)
	}
	if _, _, err := root.Locate(pathmap.ContainerPath{}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("Locate of the zero path: %v", err)
	}
	var none pathmap.Map
	if _, err := onHost(none, container(t, "/home")); !errdefs.IsNotFound(err) {
		t.Errorf("the zero map maps: %v", err)
	}
	if got, err := none.Parse("/home"); err != nil || got.String() != "/home" {
		t.Errorf("the zero map maps: %q, %v", got, err)
	}
}

func TestNewRefuses(t *testing.T) {
	home := pathmap.Mount{Host: host(t, "/data/users/alice/home"), Container: container(t, "/home")}
	other := pathmap.Mount{Host: host(t, "/data/users/bob/home"), Container: home.Container}
	_, err := pathmap.New(home, pathmap.Mount{Host: home.Host}, other, pathmap.Mount{Container: home.Container})
	if !errdefs.IsInvalidArgument(err) {
		t.Fatalf("New: %v", err)
	}
	for _, want := range []string{"mount 1", `twice at "/home"`, "mount 3"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the message lacks %q: %v", want, err)
		}
	}
	if strings.Contains(err.Error(), "data") {
		t.Errorf("a host path leaks: %v", err)
	}
}

func TestAliases(t *testing.T) {
	m := newMap(t,
		"/srv/shared", "/mnt/b",
		"/srv/shared", "/mnt/a",
		"/srv/shared/deep", "/deep",
		"/srv/other", "/deep/hidden",
	)
	tests := []struct {
		host, name string
		aliases    []string
	}{
		{"/srv/shared/x", "/mnt/a/x", []string{"/mnt/a/x", "/mnt/b/x"}},
		{"/srv/shared/deep/x", "/deep/x", []string{"/deep/x", "/mnt/a/deep/x", "/mnt/b/deep/x"}},
		// Hidden under /deep, yet the container sees it under the shorter mounts.
		{"/srv/shared/deep/hidden/x", "/mnt/a/deep/hidden/x", []string{"/mnt/a/deep/hidden/x", "/mnt/b/deep/hidden/x"}},
	}
	for _, tt := range tests {
		if got, err := m.Parse(tt.host); err != nil || got.String() != tt.name {
			t.Errorf("Parse(%q) = %q, %v, want %q", tt.host, got, err, tt.name)
		}
		for _, alias := range tt.aliases {
			if got, err := onHost(m, container(t, alias)); err != nil || got.String() != tt.host {
				t.Errorf("Locate(%q) = %q, %v, want %q", alias, got, err, tt.host)
			}
		}
	}
}

func TestLocate(t *testing.T) {
	m := alice(t)
	tests := []struct{ path, root, rest string }{
		{"/home", "/data/users/alice/home", "."},
		{"/home/a/b", "/data/users/alice/home", "a/b"},
		{"/home/datasets", "/srv/datasets", "."},
		{"/home/apps/mail/x", "/data/users/alice/home/apps/mail", "x"},
	}
	for _, tt := range tests {
		mount, rest, err := m.Locate(container(t, tt.path))
		if err != nil || mount.Host.String() != tt.root || rest != tt.rest {
			t.Errorf("Locate(%q) = %q, %q, %v", tt.path, mount.Host, rest, err)
		}
	}
	if _, rest, err := newMap(t, "/", "/").Locate(container(t, "/a/b")); err != nil || rest != "a/b" {
		t.Errorf("Locate under a root mount = %q, %v", rest, err)
	}
}

func TestNamesThatGrowTooLong(t *testing.T) {
	long := "/" + strings.Repeat("a", 200)
	m := newMap(t, "/h", long, long, "/c")
	rest := "/" + strings.Repeat("b", pathmap.MaxLen-100)
	if got, err := m.Parse("/h" + rest); err != nil || got.String() != "/h"+rest {
		t.Errorf("Parse: %q, %v", got, err)
	}
}

// onHost returns the host path that Locate means.
func onHost(m pathmap.Map, p pathmap.ContainerPath) (pathmap.HostPath, error) {
	mount, rest, err := m.Locate(p)
	if err != nil {
		return pathmap.HostPath{}, err
	}
	return pathmap.ParseHost(path.Join(mount.Host.String(), rest))
}

// newMap takes pairs of a host path and a container path.
func newMap(t testing.TB, pairs ...string) pathmap.Map {
	t.Helper()
	var mounts []pathmap.Mount
	for i := 0; i < len(pairs); i += 2 {
		mounts = append(mounts, pathmap.Mount{Host: host(t, pairs[i]), Container: container(t, pairs[i+1])})
	}
	m, err := pathmap.New(mounts...)
	if err != nil {
		t.Fatal(err)
	}
	return m
}
