package dockerexec

import (
	"fmt"
	"slices"
	"testing"
)

// A container is told of each path once, of many changes the directories, and never of what it has renamed itself.
func TestWhatAContainerIsToHear(t *testing.T) {
	var h hearing
	h.renamed = []string{"/home/a/own"}
	for _, place := range []string{"/home/a/x", "/home/a/own", "/home/a/x", "/home/a/own"} {
		h.add(place, false)
	}
	h.add("/home/log", true)
	h.add("/home/log", true)
	if paths, modified := h.take(); !slices.Equal(paths, []string{"/home/a/x", "/home/a/own", "/home/log"}) || !slices.Equal(modified, []string{"/home/log"}) {
		t.Errorf("%q, %q", paths, modified)
	}
	if !h.isEmpty() {
		t.Error("it is told twice")
	}
	for i := range 10_000 {
		h.add(fmt.Sprintf("/home/many/%d/%d", i%(2*maxChanged), i), true)
	}
	paths, modified := h.take()
	if len(paths) != 2*maxChanged || len(modified) != maxChanged || slices.Contains(paths, "/home/many") || !slices.Contains(paths, "/home/many/511") {
		t.Errorf("%d paths, %d modified: %q", len(paths), len(modified), paths[len(paths)-3:])
	}
}

// What a container may write to is told where it sees it; what it reads alone, or does not see, is not.
func TestPlacesThatMayBeWrittenTo(t *testing.T) {
	s := Spec{
		Mounts: []Mount{
			{Source: "/data/u/home", Target: "/home", ReadOnly: true}, {Source: "/data/u/home/out", Target: "/home/out"},
			{Source: "/data/u/home/out/kept", Target: "/home/out/kept", ReadOnly: true}, {Source: "/srv/shared", Target: "/mnt/shared"},
		},
		Masks: []Mask{{Target: "/home/out/private"}},
	}
	for host, want := range map[string]string{
		"/data/u/home/x": "", "/data/u/home/out/x": "/home/out/x", "/data/u/home/out": "/home/out", "/data/u/home/out/kept/x": "",
		"/data/u/home/out/private/x": "", "/data/u/home/outside": "", "/srv/shared/y": "/mnt/shared/y", "/data/other/home/out/x": "",
	} {
		got := slices.Compact(s.WritablePlaces(host, "/none"))
		if want == "" && len(got) > 0 || want != "" && !slices.Equal(got, []string{want}) {
			t.Errorf("%s: %q, want %q", host, got, want)
		}
	}
	if got := s.WritablePlaces("/var/tmp-of-u/x", "/tmp/x"); !slices.Equal(got, []string{"/tmp/x"}) {
		t.Errorf("%q", got)
	}
}
