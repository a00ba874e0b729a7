package mounts

import (
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/internal/engine"
)

// Of two starts the later waits if one's container could change what the other's runtime looks up.
func TestStartsThatDisturbEachOther(t *testing.T) {
	const home = "/users/a/home"
	bind := engine.BindMount
	mask := bind("/masks/closed", "/home/.ssh", true)
	shared := bind("/srv/shared", "/mnt/shared", false)
	for name, tt := range map[string]struct {
		one, other []specs.Mount
		want       bool
	}{
		"a writer and a mask":            {[]specs.Mount{bind(home, "/home", false)}, []specs.Mount{bind(home, "/home", true), mask}, true},
		"a writer below":                 {[]specs.Mount{bind(home+"/p", "/home/p", false)}, []specs.Mount{bind(home, "/home", true), mask}, false},
		"a writer where the mask is":     {[]specs.Mount{bind(home+"/p", "/home/p", false)}, []specs.Mount{bind(home, "/home", true), bind("/masks/closed", "/home/p/q", true)}, true},
		"readers":                        {[]specs.Mount{bind(home, "/home", true), mask}, []specs.Mount{bind(home, "/home", true), mask}, false},
		"two users":                      {[]specs.Mount{bind("/users/b/home", "/home", false), mask}, []specs.Mount{bind(home, "/home", false), mask}, false},
		"two users with a shared mount":  {[]specs.Mount{bind("/users/b/home", "/home", true), shared}, []specs.Mount{shared, bind("/masks/closed", "/mnt/shared/x", true)}, true},
		"a name that begins in like way": {[]specs.Mount{bind(home+"2", "/home", false)}, []specs.Mount{bind(home, "/home", true), mask}, false},
	} {
		one, err := newStart(tt.one, nil)
		if err != nil {
			t.Fatal(err)
		}
		other, err := newStart(tt.other, nil)
		if err != nil {
			t.Fatal(err)
		}
		if one.disturbs(other) != tt.want || other.disturbs(one) != tt.want {
			t.Errorf("%s: %v", name, !tt.want)
		}
	}
	if _, err := mountPoints([]specs.Mount{{Type: engine.VolumeType, Destination: "/tmp"}, bind("/masks/closed", "/tmp/x", true)}); err == nil {
		t.Error("a mount in a volume is not refused")
	}
}
