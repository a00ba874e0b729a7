package policy_test

import (
	"slices"
	"testing"

	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/pathmap"
)

func TestModesAreOrdered(t *testing.T) {
	names := []string{"hidden", "empty", "readOnly", "writable"}
	for i, mode := range []policy.Mode{policy.Hidden, policy.Empty, policy.ReadOnly, policy.Writable} {
		if int(mode) != i || mode.String() != names[i] {
			t.Errorf("mode %d is %q", mode, mode)
		}
	}
}

func TestPinned(t *testing.T) {
	s := agent(t, "/home/a/b/ws", "")
	s.WriteDirs = paths(t, "/home", "/home/.config", "/home/x/y")
	tests := []struct {
		name string
		tags []string
		want []string
	}{
		{"nothing can be renamed in a read-only home", nil, nil},
		{"the workspace holds its apps directly", []string{"@workspace"}, nil},
		{"a writable home", []string{"@write:/home"}, []string{
			"/home/.config", "/home/Library", "/home/Library/Application Support",
			"/home/a", "/home/a/b", "/home/a/b/ws"}}, // for a/b/ws/apps
		{"a part of it", []string{"@write:/home/.config"}, nil},
		{"a grant in a writable home is nothing new", []string{"@write:/home", "@write:/home/x/y"}, []string{
			"/home/.config", "/home/Library", "/home/Library/Application Support", "/home/a", "/home/a/b", "/home/a/b/ws"}},
		{"beside what is hidden", []string{"@write:/home/x/y"}, nil},
	}
	for _, tt := range tests {
		got := view(t, s, tt.tags...).Pinned()
		if want := paths(t, tt.want...); !slices.Equal(got, want) {
			t.Errorf("%s: Pinned() = %v, want %v", tt.name, got, want)
		}
	}
}

func TestAroundAndHolds(t *testing.T) {
	s := agent(t, "/home/ws", "mail")
	s.WriteDirs = paths(t, "/home/out")
	v := view(t, s, "@write:/home/out")
	for name, want := range map[string]string{
		"/home/ws/apps/mail/data": "/home/ws/apps/mail", "/home/ws/apps/mail": "/home/ws/apps", "/home/ws/apps": "/home",
		"/home/out": "/home", "/home/.config/gh": "/home", "/home": "", "/tmp": "", "/etc/ssh": "", "/": "",
	} {
		if around, ok := v.Around(path(t, name)); around.Path.String() != want || ok != (want != "") {
			t.Errorf("Around(%s) = %v, %v, want %q", name, around.Path, ok, want)
		}
	}
	for name, want := range map[string]string{
		"/home/ws": "/home/ws/apps", "/home/ws/apps/mail": "/home/ws/apps/mail/data", "/home/.config": "/home/.config/gcloud",
		"/home/Library": "/home/Library/Application Support/com.apple.TCC", "/shared": "",
		"/home/out": "", "/home/ws/apps/mail/data": "", "/home/ou": "", "/tmp": "",
	} {
		if inner, ok := v.Holds(path(t, name)); inner.Path.String() != want || ok != (want != "") {
			t.Errorf("Holds(%s) = %v, %v, want %q", name, inner.Path, ok, want)
		}
	}
}

// TestZeroPath: what is no path is in no region.
func TestZeroPath(t *testing.T) {
	v := view(t, agent(t, "/home", ""))
	if at, ok := v.At(pathmap.ContainerPath{}); ok {
		t.Errorf("At of the zero path is %+v", at)
	}
	if _, err := agent(t, "/home", "").Decide(policy.Grants{Write: make([]pathmap.ContainerPath, 1)}); err == nil {
		t.Error("the zero path is granted")
	}
	if at, ok := (policy.View{}).At(path(t, "/home")); ok {
		t.Errorf("the zero view has %+v", at)
	}
}

// TestOneRegionForEachMount: a region is a mount in the container, so those that say nothing new are
// left out, and those that do are not.
func TestOneRegionForEachMount(t *testing.T) {
	s := agent(t, "/home/ws", "")
	s.WriteDirs = paths(t, "/home/ws/a", "/home/ws/a/b", "/home/ws2")
	s.ReadDirs = paths(t, "/home/r", "/home/ws/r", "/tmp/r")
	without := view(t, s, "@workspace", "@write:/home/ws2")
	with := view(t, s, "@workspace", "@write:/home/ws2", "@write:/home/ws/a", "@write:/home/ws/a/b", "@read:/home/r", "@read:/home/ws/r", "@read:/tmp/r")
	if got, want := len(with.Regions()), len(without.Regions()); got != want {
		t.Errorf("there are %d regions, want %d: %v", got, want, with.Regions())
	}
	for _, r := range with.Regions() {
		if r.Why == "" {
			t.Errorf("%s has no reason", r.Path)
		}
	}
}
