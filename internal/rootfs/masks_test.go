package rootfs

import (
	"fmt"
	"slices"
	"testing"

	"github.com/daycare-run/sandbox/dockerexec"
)

// TestMountsForFurtherNames: they come of what the home holds, and not of what a call names.
func TestMountsForFurtherNames(t *testing.T) {
	spec := dockerexec.Spec{Mounts: []dockerexec.Mount{{Target: "/home"}}, Pins: []dockerexec.Pin{{Target: "/home/a"}}}
	for i := range 4 {
		spec.Links = append(spec.Links, dockerexec.Link{Target: fmt.Sprintf("/home/a/b%d/c/link", i/2)})
	}
	want := []string{"/home/a/b0/c", "/home/a/b0", "/home/a/b1/c", "/home/a/b1"}
	if dirs := linkDirs(spec); !slices.Equal(dirs, want) {
		t.Errorf("%q, want %q", dirs, want)
	}
	spec.Links = slices.Repeat(spec.Links, 50)
	if all, forLinks := CountMounts(spec); all != 206 || forLinks != 204 {
		t.Errorf("%d mounts, %d of them for further names", all, forLinks)
	}
}
