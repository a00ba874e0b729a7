package policy_test

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/pathmap"
)

// TestViewProperties holds what is true of every view against many sandboxes and calls.
func TestViewProperties(t *testing.T) {
	u := newUniverse(t)
	random := rand.New(rand.NewPCG(3, 1))
	checked, opened := 0, 0
	for range 400 {
		bytes := make([]byte, 40)
		for i := range bytes {
			bytes[i] = byte(random.Uint32())
		}
		c, ok := u.scenario(t, bytes)
		if !ok {
			continue
		}
		u.check(t, c)
		if checked++; len(c.within().Write) > 0 {
			opened++
		}
		if t.Failed() {
			t.Fatalf("in %+v", c)
		}
	}
	if checked < 100 || opened < 50 {
		t.Errorf("only %d scenarios, of which %d open something", checked, opened)
	}
}

func FuzzView(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0, 1, 1, 1, 1, 1, 1, 0, 0, 3, 0, 1, 2, 1, 1, 1, 3, 0, 1, 2})
	f.Add([]byte("a working directory, some mounts and grants"))
	u := newUniverse(f)
	f.Fuzz(func(t *testing.T, bytes []byte) {
		if c, ok := u.scenario(t, bytes); ok {
			u.check(t, c)
		}
	})
}

func (u universe) check(t *testing.T, c scenario) {
	t.Helper()
	u.checkRefusals(t, c)
	c.g = c.within()
	d, err := c.s.Decide(c.g)
	if err != nil {
		t.Fatalf("each is held, but not all: %v", err)
	}
	for _, v := range []policy.View{d.View, c.s.Held()} {
		u.checkShape(t, v)
		u.checkRules(t, c, v)
	}
	u.checkWithin(t, d.View, c.s.Held(), "a call has more than the sandbox")
	u.checkGranted(t, c, d.View)
	u.checkOrder(t, c, d.View)
	u.checkLess(t, c, d.View)
}

// checkRefusals: a grant is refused exactly when the sandbox's own view does not allow it.
func (u universe) checkRefusals(t *testing.T, c scenario) {
	t.Helper()
	held := c.s.Held()
	for _, p := range u.all {
		at, ok := held.At(p)
		_, err := c.s.Decide(policy.Grants{Write: []pathmap.ContainerPath{p}})
		if (err == nil) != (ok && at.Mode == policy.Writable) || (err != nil && !strings.Contains(err.Error(), "@write:"+p.String()+" ")) {
			t.Errorf("@write:%s where it is %s: %v", p, modeOf(held, p), err)
		}
		_, err = c.s.Decide(policy.Grants{Read: []pathmap.ContainerPath{p}})
		if (err == nil) != (ok && at.Mode >= policy.ReadOnly) || (err != nil && !errdefs.IsPermissionDenied(err)) {
			t.Errorf("@read:%s where it is %s: %v", p, modeOf(held, p), err)
		}
	}
}

// checkShape: the regions are sorted and unique, and At and Pinned are what their comments say.
func (u universe) checkShape(t *testing.T, v policy.View) {
	t.Helper()
	regions := v.Regions()
	if !slices.IsSortedFunc(regions, func(a, b policy.Region) int {
		return max(strings.Compare(a.Path.String(), b.Path.String()), 0)*2 - 1
	}) {
		t.Errorf("the regions are not sorted, or not unique: %v", regions)
	}
	for _, p := range u.all {
		at, ok := v.At(p)
		if want, found := longest(regions, p); ok != found || at != want {
			t.Errorf("At(%s) = %+v, %v, want %+v, %v", p, at, ok, want, found)
		}
	}
	if got, want := v.Pinned(), pinned(t, regions); !slices.Equal(got, want) {
		t.Errorf("Pinned() = %v, want %v", got, want)
	}
}

// longest is At by looking at every region.
func longest(regions []policy.Region, p pathmap.ContainerPath) (best policy.Region, found bool) {
	for _, r := range regions {
		if p.Within(r.Path) && (!found || len(r.Path.String()) > len(best.Path.String())) {
			best, found = r, true
		}
	}
	return best, found
}

// pinned is Pinned by its definition: the directories strictly between a region and the writable one
// that encloses it.
func pinned(t *testing.T, regions []policy.Region) []pathmap.ContainerPath {
	var names []string
	for _, r := range regions {
		others := slices.DeleteFunc(slices.Clone(regions), func(o policy.Region) bool { return o.Path == r.Path })
		around, ok := longest(others, r.Path)
		if !ok || around.Mode != policy.Writable {
			continue
		}
		parts := strings.Split(r.Path.String(), "/")
		for i := range parts {
			dir := strings.Join(parts[:i], "/")
			if strings.HasPrefix(dir, around.Path.String()+"/") {
				names = append(names, dir)
			}
		}
	}
	slices.Sort(names)
	return paths(t, slices.Compact(names)...)
}

// checkRules: what is denied is hidden, an app sees no other one, and nothing is open without a reason.
func (u universe) checkRules(t *testing.T, c scenario, v policy.View) {
	t.Helper()
	expect(t, v, "/tmp writable", "/usr/bin outside", "/etc/passwd outside")
	denied := paths(t, denyList...)
	roots := append(slices.Clone(c.s.AppRoots), path(t, "/home/apps"), c.s.AppRoot())
	own, data := ownApp(t, c.s)
	for _, p := range u.all {
		at, ok := v.At(p)
		isIn := func(dir pathmap.ContainerPath) bool { return p.Within(dir) }
		most := policy.Writable
		switch {
		case slices.ContainsFunc(denied, isIn):
			most = policy.Hidden
			ok = true // the image has it, too
		case slices.ContainsFunc(roots, isIn) && !isIn(own):
			most = policy.Empty
		case slices.ContainsFunc(roots, isIn) && !isIn(data):
			most = policy.ReadOnly
		case p.Within(policy.Skills) || isIn(path(t, "/mnt/ro")):
			most = policy.ReadOnly
		}
		if ok && at.Mode > most {
			t.Errorf("%s is %s, at most %s is right", p, at.Mode, most)
		}
	}
}

// ownApp is an app's directory and its data; neither for those who are no app.
func ownApp(t *testing.T, s policy.Subject) (own, data pathmap.ContainerPath) {
	if !s.AppID.IsZero() {
		own = path(t, s.AppRoot().String()+"/"+s.AppID.String())
		data = path(t, own.String()+"/data")
	}
	return own, data
}

// checkWithin: less allows no more than more at any path.
func (u universe) checkWithin(t *testing.T, less, more policy.View, says string) {
	t.Helper()
	for _, p := range u.all {
		a, inLess := less.At(p)
		b, inMore := more.At(p)
		// Outside of all regions is the image, which is seen: less than Hidden and Empty it is not.
		if (inLess && !inMore) || (inMore && !inLess && b.Mode < policy.ReadOnly) || (inLess && inMore && a.Mode > b.Mode) {
			t.Errorf("%s: %s is %s and %s", says, p, modeOf(less, p), modeOf(more, p))
		}
	}
}

// checkGranted: each grant opens what it names, and nothing else is open.
func (u universe) checkGranted(t *testing.T, c scenario, v policy.View) {
	t.Helper()
	write := slices.Clone(c.g.Write)
	if c.g.Workspace {
		write = append(write, c.s.WorkingDir)
	}
	for _, p := range write {
		expect(t, v, p.String()+" writable")
	}
	for _, p := range c.g.Read {
		if at, ok := v.At(p); !ok || at.Mode < policy.ReadOnly {
			t.Errorf("%s is %s after @read of it", p, modeOf(v, p))
		}
	}
	_, data := ownApp(t, c.s)
	write = append(write, policy.Tmp, data)
	seen := slices.Concat(write, c.g.Read, []pathmap.ContainerPath{policy.Home, policy.Skills})
	for _, p := range u.all {
		at, ok := v.At(p)
		if ok && at.Mode == policy.Writable && !slices.ContainsFunc(write, p.Within) {
			t.Errorf("%s is writable, and no grant says so", p)
		}
		if ok && at.Mode >= policy.ReadOnly && !slices.ContainsFunc(seen, p.Within) {
			t.Errorf("%s is seen, and no grant says so", p)
		}
	}
}

// checkOrder: neither the order of the tags nor a tag written twice matters.
func (u universe) checkOrder(t *testing.T, c scenario, v policy.View) {
	t.Helper()
	g := c.g
	g.Write, g.Read = slices.Concat(g.Write, g.Write), slices.Concat(g.Read, g.Read)
	slices.Reverse(g.Write)
	slices.Reverse(g.Read)
	d, err := c.s.Decide(g)
	if err != nil || !reflect.DeepEqual(d.View.Regions(), v.Regions()) {
		t.Errorf("backwards: %v, %v, want %v", d.View.Regions(), err, v.Regions())
	}
}

// checkLess: a call that leaves one grant out is not refused, and has no more for it.
func (u universe) checkLess(t *testing.T, c scenario, v policy.View) {
	t.Helper()
	fewer := []policy.Grants{{}}
	without := c.g
	without.Workspace = false
	fewer = append(fewer, without)
	for i := range c.g.Write {
		without := c.g
		without.Write = slices.Delete(slices.Clone(c.g.Write), i, i+1)
		fewer = append(fewer, without)
	}
	for i := range c.g.Read {
		without := c.g
		without.Read = slices.Delete(slices.Clone(c.g.Read), i, i+1)
		fewer = append(fewer, without)
	}
	for _, g := range fewer {
		d, err := c.s.Decide(g)
		if err != nil || (d.Network && !c.g.Network) || (d.Events && !c.g.Events) {
			t.Errorf("%+v: %+v, %v", g, d, err)
		}
		u.checkWithin(t, d.View, v, "granting less yields more")
	}
}
