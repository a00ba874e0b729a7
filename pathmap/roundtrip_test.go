package pathmap_test

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/pathmap"
)

// TestRoundTrip holds every map of up to three mounts among small paths against what the container
// sees: a host path maps exactly when some container path shows it, to a path that shows it, and to the
// only one when there is one only. What does not map is taken for a path inside.
func TestRoundTrip(t *testing.T) {
	var mounts []pathmap.Mount
	for _, h := range tree(2) {
		for _, c := range tree(2) {
			mounts = append(mounts, pathmap.Mount{Host: host(t, h), Container: container(t, c)})
		}
	}
	// No mount point is deeper than 2, so a name of a host path of depth 2 is at most 4 deep.
	var seen []pathmap.ContainerPath
	for _, c := range tree(4) {
		seen = append(seen, container(t, c))
	}
	for i, a := range mounts {
		checkRoundTrip(t, seen, a)
		for j, b := range mounts[:i] {
			checkRoundTrip(t, seen, a, b)
			for _, c := range mounts[:j] {
				checkRoundTrip(t, seen, a, b, c)
			}
		}
	}
}

func checkRoundTrip(t *testing.T, seen []pathmap.ContainerPath, mounts ...pathmap.Mount) {
	t.Helper()
	m, err := pathmap.New(mounts...)
	if err != nil {
		return // two at one place
	}
	names := make(map[pathmap.HostPath][]pathmap.ContainerPath)
	for _, c := range seen {
		if h, err := onHost(m, c); err == nil {
			names[h] = append(names[h], c)
		}
	}
	for _, name := range tree(2) {
		h := host(t, name)
		c, err := m.Parse(name)
		if err != nil {
			t.Fatalf("%v: Parse(%q): %v", mounts, name, err)
		}
		if len(names[h]) == 0 {
			if c.String() != name {
				t.Fatalf("%v: Parse(%q) = %q, but it is seen nowhere", mounts, name, c)
			}
			continue
		}
		if back, err := onHost(m, c); err != nil || back != h {
			t.Fatalf("%v: %q became %q, and that %q, %v", mounts, h, c, back, err)
		}
		if len(names[h]) == 1 && names[h][0] != c {
			t.Fatalf("%v: %q became %q and is seen at %q", mounts, h, c, names[h])
		}
	}
}

// tree returns every path of components "a" and "ab" down to depth. One name begins with the other, so
// that a comparison of bytes would show.
func tree(depth int) []string {
	all, level := []string{"/"}, []string{""}
	for range depth {
		var next []string
		for _, dir := range level {
			next = append(next, dir+"/a", dir+"/ab")
		}
		all, level = append(all, next...), next
	}
	return all
}

func FuzzRoundTrip(f *testing.F) {
	f.Add("/data/users/u/home\n/home", "/data/users/u/home/notes.txt")
	f.Add("/data/users/user1/home\n/home", "/data/users/user10/home")
	f.Add("/a\n/home\n/b\n/home/x", "/a/x/f")
	f.Add("/a\n/x\n/a\n/y\n/a/b\n/z", "/a/b/c")
	f.Add("/\n/", "/")
	f.Add("/\n/host\n/host\n/", "/host/host")
	f.Fuzz(func(t *testing.T, table, name string) {
		m, ok := parseTable(table)
		if !ok {
			return
		}
		c, err := m.Parse(name)
		if err != nil {
			if !errdefs.IsInvalidArgument(err) {
				t.Fatalf("class of %v", err)
			}
			return
		}
		if back, err := onHost(m, c); c.String() != name && (err != nil || back.String() != name) {
			t.Fatalf("%q: %q became %q, and that %q, %v", table, name, c, back, err)
		}
		if c, err := pathmap.ParseContainer(name); err == nil {
			if h, err := onHost(m, c); err == nil {
				// c may be an alias of the answer, but both are names of one host path.
				answer, err := m.Parse(h.String())
				if err != nil {
					t.Fatalf("%q: %q is %q, which has no name: %v", table, c, h, err)
				}
				if back, err := onHost(m, answer); err != nil || back != h {
					t.Fatalf("%q: %q is %q, named %q, which is %q, %v", table, c, h, answer, back, err)
				}
			}
		}
	})
}

// parseTable reads a host path and a container path from each two lines.
func parseTable(table string) (pathmap.Map, bool) {
	lines := strings.Split(table, "\n")
	var mounts []pathmap.Mount
	for i := 0; i+1 < len(lines); i += 2 {
		h, err := pathmap.ParseHost(lines[i])
		if err != nil {
			return pathmap.Map{}, false
		}
		c, err := pathmap.ParseContainer(lines[i+1])
		if err != nil {
			return pathmap.Map{}, false
		}
		mounts = append(mounts, pathmap.Mount{Host: h, Container: c})
	}
	m, err := pathmap.New(mounts...)
	return m, err == nil
}
