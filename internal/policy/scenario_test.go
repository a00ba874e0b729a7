package policy_test

import (
	"slices"
	"testing"

	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/pathmap"
)

// scenario is a sandbox and a call, out of few enough names that they meet.
type scenario struct {
	s policy.Subject
	g policy.Grants
}

// universe are the paths that scenarios are made of and that their views are asked about.
type universe struct {
	all      []pathmap.ContainerPath
	inHome   []pathmap.ContainerPath
	appRoots []pathmap.ContainerPath
}

// newUniverse has names of which one begins with the other, names that sort between a directory and
// what is in it ("a-b" before "a/b"), apps in one another, and denied paths with something below.
func newUniverse(t testing.TB) universe {
	t.Helper()
	var u universe
	home := []string{"/home", "/home/.ssh/id", "/home/.config", "/home/.config/gcloud/x", "/home/Library"}
	for _, dir := range []string{"/home", "/home/a", "/home/a/b", "/home/.ssh", "/home/apps/mail/data"} {
		home = append(home, dir+"/a", dir+"/a-b", dir+"/ab", dir+"/b")
		u.appRoots = append(u.appRoots, path(t, dir+"/apps"))
		for _, name := range []string{"", "/mail", "/mail/data", "/mail/data/x", "/mail/data-x", "/mail/src", "/mail2", "/chat/data"} {
			home = append(home, dir+"/apps"+name)
		}
	}
	u.inHome = paths(t, append(home, denyList[:6]...)...)
	u.all = slices.Concat(u.inHome, paths(t, denyList...), paths(t,
		"/", "/tmp", "/tmp/a", "/tmpx", "/usr/bin", "/etc", "/etc/passwd", "/etc/ssh/key", "/etc/ssl", "/shared",
		"/shared/skills", "/shared/skills/a", "/mnt", "/mnt/rw", "/mnt/rw/a", "/mnt/rw/a/b", "/mnt/rw-2", "/mnt/ro", "/mnt/ro/a", "/mnt2/a"))
	slices.SortFunc(u.all, func(a, b pathmap.ContainerPath) int { return slices.Compare([]byte(a.String()), []byte(b.String())) })
	u.all = slices.Compact(u.all)
	return u
}

// dice reads choices from bytes; when they run out, it chooses the first.
type dice []byte

func (d *dice) roll(n int) int {
	if len(*d) == 0 {
		return 0
	}
	b := (*d)[0]
	*d = (*d)[1:]
	return int(b) % n
}

func (d *dice) yes() bool { return d.roll(2) == 1 }

func (d *dice) some(from []pathmap.ContainerPath, most int) []pathmap.ContainerPath {
	var some []pathmap.ContainerPath
	for range d.roll(most + 1) {
		some = append(some, from[d.roll(len(from))])
	}
	return some
}

// scenario makes a sandbox that passes Check, but for AppRoots, which come from others; ok is false
// when the bytes describe none.
func (u universe) scenario(t testing.TB, bytes []byte) (_ scenario, ok bool) {
	d := dice(bytes)
	s := policy.Subject{Permissions: policy.Permissions{
		WorkingDir: u.inHome[d.roll(len(u.inHome))],
		Network:    d.yes(), Events: d.yes(),
		AppID: app(t, []string{"", "mail", "chat", "mail"}[d.roll(4)]),
	}}
	s.HasSkills = d.yes()
	if d.yes() {
		s.Mounts = []policy.Mount{{Target: path(t, "/mnt/rw")}, {Target: path(t, "/mnt/ro"), ReadOnly: true}, {Target: path(t, "/mnt2")}}
	}
	s.WriteDirs, s.ReadDirs = u.holdable(s, d.some(u.all, 6), policy.Writable), u.holdable(s, d.some(u.all, 4), policy.ReadOnly)
	if s.Check() != nil {
		return scenario{}, false
	}
	s.AppRoots = d.some(u.appRoots, 3)
	g := policy.Grants{Network: d.yes(), Events: d.yes(), Workspace: d.yes()}
	g.Write, g.Read = d.some(u.all, 4), d.some(u.all, 3)
	// What is held is asked for more often than chance would.
	g.Write, g.Read = append(g.Write, d.some(append(s.WriteDirs, u.all[0]), 2)...), append(g.Read, d.some(append(s.ReadDirs, u.all[0]), 2)...)
	return scenario{s, g}, true
}

// holdable leaves out what Check would refuse, so that few scenarios are lost.
func (u universe) holdable(s policy.Subject, dirs []pathmap.ContainerPath, mode policy.Mode) []pathmap.ContainerPath {
	return slices.DeleteFunc(dirs, func(dir pathmap.ContainerPath) bool {
		s.WriteDirs, s.ReadDirs = nil, nil
		before := len(faults(s.Check()))
		if mode == policy.Writable {
			s.WriteDirs = []pathmap.ContainerPath{dir}
		} else {
			s.ReadDirs = []pathmap.ContainerPath{dir}
		}
		return len(faults(s.Check())) > before
	})
}

// within keeps the grants that this sandbox holds.
func (c scenario) within() policy.Grants {
	g := c.g
	held := func(one policy.Grants) bool { _, err := c.s.Decide(one); return err == nil }
	g.Network = g.Network && c.s.Network
	g.Events = g.Events && c.s.Events
	g.Workspace = g.Workspace && held(policy.Grants{Workspace: true})
	g.Write = slices.DeleteFunc(slices.Clone(g.Write), func(p pathmap.ContainerPath) bool {
		return !held(policy.Grants{Write: []pathmap.ContainerPath{p}})
	})
	g.Read = slices.DeleteFunc(slices.Clone(g.Read), func(p pathmap.ContainerPath) bool {
		return !held(policy.Grants{Read: []pathmap.ContainerPath{p}})
	})
	return g
}
