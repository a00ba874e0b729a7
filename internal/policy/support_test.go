package policy_test

import (
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/pathmap"
)

func path(t testing.TB, name string) pathmap.ContainerPath {
	t.Helper()
	p, err := pathmap.ParseContainer(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func paths(t testing.TB, names ...string) []pathmap.ContainerPath {
	t.Helper()
	var all []pathmap.ContainerPath
	for _, name := range names {
		all = append(all, path(t, name))
	}
	return all
}

func app(t testing.TB, name string) policy.AppID {
	t.Helper()
	id, err := policy.ParseAppID(name)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// agent is a sandbox that holds nothing but its working directory, and app agents the same.
func agent(t testing.TB, workingDir, appID string) policy.Subject {
	t.Helper()
	return policy.Subject{Permissions: policy.Permissions{WorkingDir: path(t, workingDir), AppID: app(t, appID)}}
}

// decide is what a call with these tags gets.
func decide(t testing.TB, s policy.Subject, tags ...string) (policy.Decision, error) {
	t.Helper()
	grants, err := policy.ParseTags(tags, pathmap.Map{})
	if err != nil {
		t.Fatal(err)
	}
	return s.Decide(grants)
}

// view is decide where nothing is refused.
func view(t testing.TB, s policy.Subject, tags ...string) policy.View {
	t.Helper()
	if err := s.Check(); err != nil {
		t.Fatalf("Check: %v", err)
	}
	d, err := decide(t, s, tags...)
	if err != nil {
		t.Fatalf("Decide(%q): %v", tags, err)
	}
	return d.View
}

// outside is the mode of a path that no region holds.
const outside = "outside"

func modeOf(v policy.View, p pathmap.ContainerPath) string {
	at, ok := v.At(p)
	if !ok {
		return outside
	}
	return at.Mode.String()
}

// expect holds a view against lines of a path and its mode.
func expect(t *testing.T, v policy.View, lines ...string) {
	t.Helper()
	for _, line := range lines {
		name, want, _ := strings.Cut(line, " ")
		if got := modeOf(v, path(t, name)); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}
