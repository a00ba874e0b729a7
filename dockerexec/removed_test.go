package dockerexec

import (
	"strings"
	"testing"
)

// homeSpec is a Spec with a home.
func (s *scriptedEngine) homeSpec(user string) Spec {
	spec := s.spec(user)
	spec.Mounts = []Mount{{Source: "/users/" + user, Target: "/home"}}
	return spec
}

func TestPlacesOfWhatIsRemoved(t *testing.T) {
	spec := newScriptedEngine(t).homeSpec("alice")
	spec.Mounts = append(spec.Mounts, Mount{Source: "/users/alice/work/own", Target: "/home/work/own"})
	spec.Masks = []Mask{{Target: "/home/work"}}
	for _, tt := range []struct{ host, inside, want string }{
		{"/users/alice/a/b", "/home/a/b", "/home/a/b"},
		{"/users/alicia/a", "/home/a", ""},
		{"/users/alice/work/secret", "/home/work/secret", ""},
		{"/users/alice/work/own/x", "/home/work/own/x", "/home/work/own/x"},
		{"/volumes/tmp/x", "/tmp/x", "/tmp/x"},
		{"/elsewhere/x", "/mnt/x", ""},
	} {
		if got := strings.Join(spec.placesOf(tt.host, tt.inside), " "); got != tt.want {
			t.Errorf("%s: %q", tt.host, got)
		}
	}
}
