package sandbox

import (
	"strings"
	"testing"

	cerrdefs "github.com/containerd/errdefs"
)

// What is warm is the container of the call with these tags, whatever else the sandbox may be granted.
func TestWarmIsTheCallsContainer(t *testing.T) {
	executor := &fakeExecutor{}
	s := newService(t, executor, "")
	for _, tags := range [][]string{nil, {}, {"@workspace"}, {"@workspace", "@write:/home/more"}} {
		executor.warmed = nil
		r := Registration{UserID: "alice", WorkingDir: "/home/project", WriteDirs: []string{"/home/more"}, Network: true, Warm: tags}
		if _, _, err := s.Put("agent", r); err != nil {
			t.Fatal(err)
		}
		if tags == nil {
			if len(executor.warmed) != 0 {
				t.Errorf("nobody asked for %+v", executor.warmed)
			}
			continue
		}
		want := planFor(t, s, Confinement{Permissions: tags}).Spec.Fingerprint()
		if len(executor.warmed) != 1 || executor.warmed[0].Fingerprint() != want {
			t.Errorf("%q: %+v", tags, executor.warmed)
		}
	}
}

func TestWarmTagsThatAreRefused(t *testing.T) {
	for _, tt := range []struct {
		name, tag string
		class     func(error) bool
		message   string
	}{
		{"not held", "@write:/mnt/data", cerrdefs.IsPermissionDenied, "warm: "},
		{"another user's", "@read:/home/../etc", cerrdefs.IsInvalidArgument, "warm: "},
		{"not held network", "@network", cerrdefs.IsPermissionDenied, "warm: "},
		{"unknown", "@wrokspace", cerrdefs.IsInvalidArgument, `unknown tag "@wrokspace"`},
		{"empty", "", cerrdefs.IsInvalidArgument, "warm: "},
	} {
		executor := &fakeExecutor{}
		s := newService(t, executor, "")
		_, _, err := s.Put("other", Registration{UserID: "bob", Warm: []string{"@workspace", tt.tag}})
		if !tt.class(err) || !strings.Contains(err.Error(), tt.message) {
			t.Errorf("%s: %v", tt.name, err)
		}
		if list := s.List(); len(list) != 1 || len(executor.warmed) != 0 {
			t.Errorf("%s: registered %v, warmed %v", tt.name, list, executor.warmed)
		}
	}
}

// Which names a call allows is not known before the call.
func TestWarmHasNoNetwork(t *testing.T) {
	s := newService(t, nil, "")
	_, _, err := s.Put("other", Registration{UserID: "bob", Network: true, Warm: []string{"@network"}})
	if !cerrdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "leave @network out") || len(s.List()) != 1 {
		t.Error(err)
	}
}

// Nothing is made for a sandbox that is not registered.
func TestWarmOfAnotherUsersSandbox(t *testing.T) {
	executor := &fakeExecutor{}
	s := newService(t, executor, "")
	if _, _, err := s.Put("agent", Registration{UserID: "bob", Warm: []string{}}); !cerrdefs.IsConflict(err) || len(executor.warmed) != 0 {
		t.Errorf("%v; %v", err, executor.warmed)
	}
}
