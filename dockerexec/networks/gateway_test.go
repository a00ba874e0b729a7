package networks

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/engine/enginetest"
)

// gated is a lab whose networks have gateways.
func gated(t *testing.T) *lab {
	l := newLab(t)
	dir := t.TempDir()
	program := filepath.Join(dir, "sandboxd")
	if err := os.WriteFile(program, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	l.gated, l.gate = true, Gateway{
		Program: program, Arguments: []string{"gateway", "{}"},
		Dir: filepath.Join(dir, "gateway", "isolated"), Target: "/shared",
		Sysctls: map[string]string{"a": "1"},
	}
	return l
}

// A gateway is made with its network, as it says.
func TestAGatewayIsMade(t *testing.T) {
	l := gated(t)
	n, err := l.Ready(t.Context(), "daycare", "isolated")
	made, there := l.engine.Find(n.GatewayID)
	if err != nil || !there || made.Name != "daycare-isolated-gateway" || !made.Runs() ||
		made.Labels["owner"] != "me" || made.Labels["gateway"] != l.gate.likeness() ||
		n.GatewayDir != l.gate.Dir || len(made.Mounts) != 2 || !engine.IsReadOnly(made.Mounts[0]) {
		t.Errorf("%+v, %+v, %v", n, made, err)
	}
	if again, err := l.Ready(t.Context(), "daycare", "isolated"); err != nil || again != n {
		t.Errorf("%+v, %v", again, err)
	}
	if calls := l.engine.Calls("Create", "Remove"); len(calls) != 1 {
		t.Errorf("%+v", calls)
	}
	l.expect("nobody is on it")
}

// A gateway that is as it would be made is kept; another service's is left alone; if none is
// wanted, none is looked for.
func TestAFoundGateway(t *testing.T) {
	for name, c := range map[string]struct {
		owner  string
		wanted bool
		class  func(error) bool
	}{
		"as it was made":     {"me", true, nil},
		"of another service": {"other", true, cerrdefs.IsConflict},
		"not wanted":         {"other", false, nil},
	} {
		l := gated(t)
		l.gated = c.wanted
		l.engine.Add(engine.Container{
			ID: "g1", Name: "daycare-isolated-gateway",
			Labels: map[string]string{"owner": c.owner, "gateway": l.gate.likeness()},
		})
		n, err := l.gateway(t.Context(), Network{Profile: "isolated", Name: "daycare-isolated"})
		switch {
		case c.class != nil:
			if !c.class(err) {
				t.Errorf("%s: %v", name, err)
			}
		case err != nil || (n.GatewayID == "g1") != c.wanted || (n.GatewayDir != "") != c.wanted:
			t.Errorf("%s: %+v, %v", name, n, err)
		}
		if calls := l.engine.Calls(); len(calls) != 0 {
			t.Errorf("%s: %+v", name, calls)
		}
	}
}

// A gateway that has ended, and one that was made for other settings, is replaced, and the
// containers on its network are given up with it if this service has used it.
func TestAGatewayThatIsReplaced(t *testing.T) {
	for what, change := range map[string]func(l *lab, id string){
		"ended":    func(l *lab, id string) { l.engine.End(id, 1, false) },
		"gone":     func(l *lab, id string) { l.engine.Lose(id, true) },
		"settings": func(l *lab, _ string) { l.gate.Sysctls = map[string]string{"a": "0"} },
	} {
		l := gated(t)
		before, err := l.Ready(t.Context(), "daycare", "isolated")
		if err != nil {
			t.Fatal(err)
		}
		change(l, before.GatewayID)
		after, err := l.Ready(t.Context(), "daycare", "isolated")
		if now, _ := l.engine.Find(after.GatewayID); err != nil || !now.Runs() ||
			after.GatewayID == before.GatewayID || len(l.engine.Containers()) != 1 {
			t.Errorf("%s: %+v, %v", what, after, err)
		}
		l.expect(what, "clear isolated")
	}
}

// Who is on a network when its gateway is replaced is ended: by whoever is told of it, or because
// it cannot be bound any more. Who joins afterwards is bound.
func TestWhoIsMadeWhileAGatewayIsReplaced(t *testing.T) {
	l := gated(t)
	made, madeID := l.join(candidate("made"))
	early, earlyID := l.join(candidate("early"))
	binding, bindingID := l.join(candidate("binding"))
	if _, err := made.Bind(t.Context(), madeID); err != nil {
		t.Fatal(err)
	}
	_, listed := l.left(candidate("found"))
	replace := func() {
		for _, c := range l.engine.Containers() {
			if c.Labels["gateway"] != "" {
				l.engine.Lose(c.ID, true)
			}
		}
		if _, err := l.Ready(t.Context(), "daycare", "isolated"); err != nil {
			t.Error(err)
		}
	}
	l.engine.Script(func(call enginetest.Call, do func() error) error {
		err := do()
		if call.Verb == "Inspect" && call.Name == bindingID {
			l.engine.Script(nil)
			replace()
		}
		return err
	})
	if _, err := binding.Bind(t.Context(), bindingID); !errors.Is(err, ErrRecreated) {
		t.Errorf("who is just being bound: %v", err)
	}
	slices.Sort(l.clears)
	if want := []string{madeID, bindingID, listed.ID}; !slices.Equal(l.clears, want) {
		t.Errorf("%q are ended, not %q", l.clears, want)
	}
	if _, err := early.Bind(t.Context(), earlyID); !errors.Is(err, ErrRecreated) {
		t.Errorf("who was bound later: %v", err)
	}
	late, lateID := l.join(candidate("late"))
	if _, err := late.Bind(t.Context(), lateID); err != nil {
		t.Error(err)
	}
}

// Of those that lose their gateway, the filtered ones that go on without the service are counted.
func TestCutOffCountsDetachedFilteredContainers(t *testing.T) {
	l := newLab(t)
	for name, domains := range map[string][]string{
		"open": {"*"}, "filtered": {"a.example"}, "closed": {},
	} {
		for _, detached := range []bool{true, false} {
			c := candidate(name, domains...)
			c.Detached = detached
			l.left(c)
		}
	}
	if got := l.cutOff("isolated"); got != 2 {
		t.Error(got)
	}
	if got := l.cutOff("local"); got != 0 {
		t.Error(got)
	}
}

// A gateway goes when no network of ours has its name.
func TestRetire(t *testing.T) {
	l := newLab(t)
	for _, name := range []string{"daycare-isolated-gateway", "old-isolated-gateway", "old"} {
		found := engine.Container{ID: name, Name: name}
		l.engine.Add(found)
		if err := l.Retire(t.Context(), found, "daycare"); err != nil {
			t.Error(err)
		}
	}
	var left []string
	for _, c := range l.engine.Containers() {
		left = append(left, c.Name)
	}
	if !slices.Equal(left, []string{"daycare-isolated-gateway"}) {
		t.Errorf("%q", left)
	}
}

// Of the gateways' programs, the one in use is kept.
func TestOtherProgramsGo(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"gateway-1", "gateway-2", "isolated"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeOthers(filepath.Join(dir, "gateway-2")); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 2 || left[0].Name() != "gateway-2" ||
		left[1].Name() != "isolated" {
		t.Errorf("%v, %v", left, err)
	}
}
