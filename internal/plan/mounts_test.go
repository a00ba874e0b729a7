package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec"
)

// TestFurtherNamesAreCounted: the mounts for further names of hidden files come of what the home holds, and not of what a
// call names.
func TestFurtherNamesAreCounted(t *testing.T) {
	spec := dockerexec.Spec{Mounts: []dockerexec.Mount{{Target: "/home"}}, Pins: []dockerexec.Pin{{Target: "/home/a"}}}
	for i := range 4 {
		spec.Links = append(spec.Links, dockerexec.Link{Target: fmt.Sprintf("/home/a/b%d/c/link", i/2)})
	}
	if err := checkMountCount(spec, Restrictions{}); err != nil {
		t.Error(err)
	}
	spec.Links = slices.Repeat(spec.Links, 50)
	if err := checkMountCount(spec, Restrictions{}); !cerrdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "permissions: this call needs 206 mounts, 204 of them for further names") {
		t.Error(err)
	}
}
