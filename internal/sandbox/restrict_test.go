package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	cerrdefs "github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/files"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/plantest"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/internal/warm"
	"github.com/daycare-run/sandbox/pathmap"
)

// given is what a call's container is made of: its masks and read-only mounts in places to write to, by their
// paths inside.
func given(t *testing.T, s *Service, asked Confinement) (masks, vacant, readOnly []string) {
	t.Helper()
	var spec dockerexec.Spec
	s.runner = &fakeExecutor{t: t, run: func(made dockerexec.Spec, _ warm.Command, _ session.Output) (warm.Result, error) {
		spec = made
		return warm.Result{}, nil
	}}
	if _, err := s.Exec(t.Context(), "agent", Request{Command: "true", Confinement: asked}, nil); err != nil {
		t.Fatal(err)
	}
	for _, m := range spec.Masks {
		switch {
		case m.Vacant:
			vacant = append(vacant, m.Target)
		case !m.Listable && !slices.Contains(policy.DeniedInHome(), strings.TrimPrefix(m.Target, "/home/")) && !strings.HasPrefix(m.Target, "/etc/"):
			masks = append(masks, m.Target)
		}
	}
	for _, m := range spec.Mounts {
		if nearest := nearestMount(spec, filepath.Dir(m.Target)); m.ReadOnly && nearest.Target != "" && !nearest.ReadOnly {
			readOnly = append(readOnly, m.Target)
		}
	}
	return masks, vacant, readOnly
}

// nearestMount is the mount that holds a path inside.
func nearestMount(spec dockerexec.Spec, target string) (nearest dockerexec.Mount) {
	for _, m := range spec.Mounts {
		if pathmap.Within(target, m.Target) && len(m.Target) > len(nearest.Target) {
			nearest = m
		}
	}
	return nearest
}

// TestRestrictionsNarrowTheView: what is there is hidden or mounted read-only, what is not there cannot come to be, and
// a path that a mount shows at another place is given up there, too.
func TestRestrictionsNarrowTheView(t *testing.T) {
	s := newService(t, nil, "")
	home := filepath.Join(s.usersDir(), "alice/home")
	s.allowMounts(nil, s.usersDir())
	for _, dir := range []string{"project/vault", "project/kept", "other"} {
		if err := os.MkdirAll(filepath.Join(home, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(home, testUID, testGID); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Put("agent", Registration{
		UserID: "alice", Mounts: []MountRequest{{Source: home + "/project", Target: "/mnt/p"}}, WriteDirs: []string{"/mnt/p"},
	}); err != nil {
		t.Fatal(err)
	}
	all := []string{"@workspace", "@write:/mnt/p"}
	for _, tt := range []struct {
		name                    string
		tags                    []string
		less                    plan.Restrictions
		masks, vacant, readOnly string
	}{
		{"nothing", all, plan.Restrictions{}, "", "", ""},
		{"reading", []string{"@workspace"}, plan.Restrictions{DenyRead: []string{"/home/other"}}, "/home/other", "", ""},
		{"reading at two places", all, plan.Restrictions{DenyRead: []string{"/home/project/vault"}}, "/home/project/vault /mnt/p/vault", "", ""},
		{"... by the other", all, plan.Restrictions{DenyRead: []string{"/mnt/p/vault"}}, "/home/project/vault /mnt/p/vault", "", ""},
		{"... by the host's", all, plan.Restrictions{DenyRead: []string{home + "/project/vault"}}, "/home/project/vault /mnt/p/vault", "", ""},
		{"... of which one was not asked for", []string{"@workspace"}, plan.Restrictions{DenyRead: []string{"/mnt/p/vault"}}, "/home/project/vault", "", ""},
		{"all of a mount", all, plan.Restrictions{DenyRead: []string{"/home/project"}}, "/home/project", "", ""},
		{"writing", all, plan.Restrictions{DenyWrite: []string{"/home/project/kept"}}, "", "", "/home/project/kept /mnt/p/kept"},
		{"writing to what is not there", []string{"@workspace"}, plan.Restrictions{DenyWrite: []string{"/home/never/in"}}, "", "/home/never/in", ""},
		{"writing to what is not written", nil, plan.Restrictions{DenyWrite: []string{"/home/never/in", "/home/other"}}, "", "", ""},
	} {
		masks, vacant, readOnly := given(t, s, Confinement{Permissions: tt.tags, Restrictions: tt.less})
		if got := strings.Join(masks, " "); got != tt.masks {
			t.Errorf("%s: hidden %q, want %q", tt.name, got, tt.masks)
		}
		if got := strings.Join(vacant, " "); got != tt.vacant {
			t.Errorf("%s: vacant %q, want %q", tt.name, got, tt.vacant)
		}
		if got := strings.Join(readOnly, " "); got != tt.readOnly {
			t.Errorf("%s: read-only %q, want %q", tt.name, got, tt.readOnly)
		}
	}
}

// guards lists what guards the paths of a home in a Spec, without what guards them in every call.
func guards(spec dockerexec.Spec) string {
	var all []string
	for _, m := range spec.Masks {
		kind := "hidden"
		switch {
		case m.Listable || slices.Contains(policy.DeniedInHome(), strings.TrimPrefix(m.Target, "/home/")) || strings.HasPrefix(m.Target, "/etc/"):
			continue
		case m.Absent:
			kind = "absent"
		case m.Vacant:
			kind = "vacant"
		}
		all = append(all, kind+" "+m.Target)
	}
	for _, m := range spec.Mounts {
		if m.ReadOnly && strings.HasPrefix(m.Target, "/home/") {
			all = append(all, "read-only "+m.Target)
		}
	}
	for _, pin := range spec.Pins {
		if pin.Target != "/home/.config" && !strings.HasPrefix(pin.Target, "/home/.config/") && !strings.HasPrefix(pin.Target, "/home/.local") && !strings.HasPrefix(pin.Target, "/home/Library") {
			all = append(all, "pinned "+pin.Target)
		}
	}
	for _, link := range spec.Symlinks {
		all = append(all, "link "+link.Target)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// TestGivingUpWhatIsNotThere: nothing stands in where no command of the container can make it, a file is kept where a
// directory would have to be, and a link is followed.
func TestGivingUpWhatIsNotThere(t *testing.T) {
	s := newService(t, nil, "")
	planFor(t, s, Confinement{})
	home := filepath.Join(s.usersDir(), "alice", "home")
	for _, dir := range []string{"tree", "vault/sub", "kept", "a"} {
		if err := os.MkdirAll(filepath.Join(home, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(home, "tree/.git"), []byte("gitdir: /home/main/.git/worktrees/tree"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"link": "vault", "a/up": "../vault", "a/abs": "/home/vault/sub", "a/twice": "up/sub", "dangling": "a/none", "image": "/usr/share",
		"tmp": "/tmp/x", "loop": "loop", "proc": "/proc/self/root/home/vault", "out": "none/../vault", "above": "..",
		"far": strings.Repeat("a/../", 800), "farther": "far/far",
	} {
		if err := os.Symlink(text, filepath.Join(home, name)); err != nil {
			t.Fatal(err)
		}
	}
	all := []string{"@workspace"}
	read := func(paths ...string) plan.Restrictions { return plan.Restrictions{DenyRead: paths} }
	write := func(paths ...string) plan.Restrictions { return plan.Restrictions{DenyWrite: paths} }
	for _, tt := range []struct {
		name string
		tags []string
		less plan.Restrictions
		want string // or the beginning of an error's words
	}{
		{"absent, read only", nil, read("/home/a/none"), "absent /home/a/none"},
		{"absent, written", all, read("/home/a/none"), "pinned /home/a, vacant /home/a/none"},
		{"absent, not to be written", all, write("/home/a/none"), "pinned /home/a, vacant /home/a/none"},
		{"absent, inside what is not written", all, plan.Restrictions{DenyRead: []string{"/home/a/none"}, DenyWrite: []string{"/home/a"}}, "absent /home/a/none, read-only /home/a"},
		{"below a file, read only", nil, read("/home/tree/.git/hooks"), "absent /home/tree/.git/hooks"},
		{"below a file", all, read("/home/tree/.git/hooks/x"), "absent /home/tree/.git/hooks/x, pinned /home/tree, read-only /home/tree/.git"},
		{"below a file, not to be written", all, write("/home/tree/.git/hooks", "/home/tree/.git/config"),
			"absent /home/tree/.git/config, absent /home/tree/.git/hooks, pinned /home/tree, read-only /home/tree/.git"},
		{"below a file that is granted", []string{"@write:/home/tree/.git"}, read("/home/tree/.git/a/b"), "absent /home/tree/.git/a/b"},
		{"a link", nil, read("/home/link"), "hidden /home/vault, link /home/link"},
		{"a link, written", all, read("/home/link/sub"), "hidden /home/vault/sub, link /home/link, pinned /home/vault"},
		{"links on the way", nil, read("/home/a/twice"), "hidden /home/vault/sub, link /home/a/twice, link /home/a/up"},
		{"an absolute link", nil, read("/home/a/abs/x"), "absent /home/vault/sub/x, link /home/a/abs"},
		{"a link to nothing", nil, read("/home/dangling"), "absent /home/a/none, link /home/dangling"},
		{"a link to the image", nil, read("/home/image"), "link /home/image"},
		{"a link, not to be written", []string{"@write:/home/vault"}, write("/home/link/sub"), "link /home/link, read-only /home/vault/sub"},
		{"a link that could be replaced", all, write("/home/a/up"), `denyWrite[0]: the symbolic link "/home/a/up" could be replaced`},
		{"a link among others", all, plan.Restrictions{DenyWrite: []string{"/home/link", "/home/a"}}, `denyWrite[0]: the symbolic link "/home/link" could be replaced`},
		{"a link that is itself protected", all, plan.Restrictions{DenyWrite: []string{"/home/a/up", "/home/a"}}, "link /home/a/up, read-only /home/a, read-only /home/vault"},
		{"a link to /tmp", nil, read("/home/tmp"), `denyRead[0]: "/tmp/x" is, or holds, a part of /tmp`},
		{"a link to itself", nil, read("/home/loop"), `denyRead[0]: "/home/loop" cannot be given up: it leads through too many symbolic links`},
		{"links that go far", nil, read("/home/farther"), `denyRead[0]: "/home/farther" cannot be given up: its symbolic links take more than 1000 steps`},
		{"a link of the kernel", nil, read("/home/proc"), `denyRead[0]: "/home/proc" cannot be given up: the symbolic link /home/proc leads to /proc`},
		{"a link out of nothing", nil, read("/home/out"), `denyRead[0]: "/home/out" cannot be given up: a symbolic link leads through something that is not there`},
		{"a link to what holds the home", nil, read("/home/above"), `denyRead[0]: "/" `},
	} {
		c, err := s.call("agent", Confinement{Permissions: tt.tags, Restrictions: tt.less})
		if err != nil {
			t.Fatal(err)
		}
		p, err := s.plan(t.Context(), c, false)
		got := guards(p.Spec)
		if err != nil {
			got = err.Error()
		}
		if got != tt.want && (err == nil || !strings.HasPrefix(got, tt.want)) {
			t.Errorf("%s: %s\nwant %s", tt.name, got, tt.want)
		}
	}
}

// TestWhereTheDenyListHides: what is there is hidden in every call, as a directory or as a file. What is not there has a
// mask only where the call could make it; for what macOS has, directories are not made either.
func TestWhereTheDenyListHides(t *testing.T) {
	s := newService(t, nil, "")
	planFor(t, s, Confinement{})
	home := filepath.Join(s.usersDir(), "alice", "home")
	rows := []string{".ssh", ".netrc", ".aws", ".pgpass", ".config/gh", "Library/Keychains", "Library/Application Support/com.apple.TCC", ".vault-token"}
	list := func(spec dockerexec.Spec) string {
		var all []string
		for _, m := range spec.Masks {
			row := strings.TrimPrefix(m.Target, "/home/")
			if !slices.Contains(rows, row) {
				continue
			}
			kind := "directory"
			switch {
			case m.Absent:
				kind = "nothing"
			case m.File && m.Listable:
				kind = "file"
			case m.File:
				kind = "closed file"
			}
			if !m.Absent && m.ID == (dockerexec.FileID{}) {
				kind = "made " + kind
			}
			all = append(all, row+": "+kind)
		}
		for _, pin := range spec.Pins {
			all = append(all, "pinned "+strings.TrimPrefix(pin.Target, "/home/"))
		}
		slices.Sort(all)
		return strings.Join(all, ", ")
	}
	hidden := func(tags ...string) string { return list(planFor(t, s, Confinement{Permissions: tags}).Spec) }
	if err := errors.Join(os.Mkdir(filepath.Join(home, ".ssh"), 0o700), os.WriteFile(filepath.Join(home, ".aws"), []byte("odd"), 0o600),
		os.WriteFile(filepath.Join(home, ".netrc"), []byte("password"), 0o600)); err != nil {
		t.Fatal(err)
	}
	const reads = ".aws: closed file, .config/gh: nothing, .netrc: file, .pgpass: nothing, .ssh: directory, .vault-token: nothing"
	const writes = ".aws: closed file, .config/gh: made directory, .netrc: file, .pgpass: made file, .ssh: directory, .vault-token: made file"
	if got := hidden(); got != reads {
		t.Errorf("in a call that reads: %s\nwant %s", got, reads)
	}
	if got := hidden("@workspace"); got != writes+", pinned .config" {
		t.Errorf("in one that writes: %s", got)
	}
	if err := os.Mkdir(filepath.Join(home, "Library"), 0o700); err != nil {
		t.Fatal(err)
	}
	if got := hidden("@workspace"); got != writes+", Library/Keychains: made directory, pinned .config, pinned Library" {
		t.Errorf("where there is a Library: %s", got)
	}
	if got := hidden(); got != reads+", Library/Keychains: nothing" {
		t.Errorf("in a call that reads it: %s", got)
	}
	// What goes on without a service is guarded by masks.
	c, err := s.call("agent", Confinement{})
	if err != nil {
		t.Fatal(err)
	}
	c.Detached = true
	detached, err := s.plan(t.Context(), c, false)
	if got := list(detached.Spec); err != nil || got != writes+", Library/Keychains: made directory" {
		t.Errorf("in a process: %s, %v", got, err)
	}
	// Whoever puts something else in the directory's place keeps no call from running.
	for what, put := range map[string]func(string) error{
		"a link": func(at string) error { return os.Symlink("elsewhere", at) },
		"a file": func(at string) error { return os.WriteFile(at, nil, 0o600) },
		"a pipe in it": func(at string) error {
			return errors.Join(os.MkdirAll(at, 0o700), syscall.Mkfifo(filepath.Join(at, "Keychains"), 0o600))
		},
		"a link in it": func(at string) error {
			return errors.Join(os.Mkdir(at, 0o700), os.Symlink("elsewhere", filepath.Join(at, "Keychains")), os.WriteFile(filepath.Join(at, "Application Support"), nil, 0o600))
		},
	} {
		if err := errors.Join(os.RemoveAll(filepath.Join(home, "Library")), put(filepath.Join(home, "Library"))); err != nil {
			t.Fatal(err)
		}
		if got := hidden("@workspace"); got != writes+", pinned .config" {
			t.Errorf("%s: %s", what, got)
		}
	}
}

// TestBadRestrictionsStartNothing: what cannot be given up is refused by its field and index.
func TestBadRestrictionsStartNothing(t *testing.T) {
	s := newService(t, nil, "/home/project")
	if _, _, err := s.Put("agent", Registration{UserID: "alice", WorkingDir: "/home/project", Network: true}); err != nil {
		t.Fatal(err)
	}
	for says, less := range map[string]plan.Restrictions{
		`denyRead[1]: cannot use path "b": it is not absolute`:           {DenyRead: []string{"/home/a", "b"}},
		"denyWrite has 65 entries; at most 64 are allowed":               {DenyWrite: slices.Repeat([]string{"/home/a"}, 65)},
		`denyRead[0]: "/home/project" holds the working directory`:       {DenyRead: []string{"/home/project"}},
		`denyWrite[0]: "/tmp/x" is, or holds, a part of /tmp`:            {DenyWrite: []string{"/tmp/x"}},
		`denyRead[0]: "/usr/bin/python3" is in no mount of this sandbox`: {DenyRead: []string{"/usr/bin/python3"}},
		`deniedDomains: "https://a.org" is a URL; name its host alone`:   {DeniedDomains: []string{"https://a.org"}},
		`deniedDomains: nothing is left of what allowedDomains allows`:   {DeniedDomains: []string{"*.org"}},
	} {
		r := Request{Command: "true", Confinement: Confinement{Permissions: []string{"@network"}, AllowedDomains: []string{"a.org"}, Restrictions: less}}
		if _, err := s.Exec(t.Context(), "agent", r, nil); !cerrdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %s", err, says)
		}
	}
}

// deep are paths of the home with so many components, no two of which have a directory in common below it.
func deep(paths, components int) []string {
	var all []string
	for i := range paths {
		all = append(all, fmt.Sprintf("/home/p%d", i)+strings.Repeat("/d", components-2))
	}
	return all
}

// TestMoreMountsThanGVisorTakes: a directory that could be renamed is a mount, and there is an end to those.
func TestMoreMountsThanGVisorTakes(t *testing.T) {
	workspace := []string{"@workspace"}
	for _, tt := range []struct {
		name, runtime string
		tags          []string
		less          plan.Restrictions
		says          string // what it is refused with; empty for nothing
	}{
		{"few", "runsc", workspace, plan.Restrictions{DenyRead: deep(7, 24)}, ""},
		{"more", "runsc", workspace, plan.Restrictions{DenyRead: deep(10, 24)}, "denyRead: this call needs 2"},
		{"most", "runsc", workspace, plan.Restrictions{DenyRead: deep(64, 23)}, "mounts, and gVisor starts with at most 200"},
		{"not to be written", "runsc", workspace, plan.Restrictions{DenyWrite: deep(64, 23)}, "denyWrite: this call needs 1"},
		{"both", "runsc", workspace, plan.Restrictions{DenyRead: deep(5, 24), DenyWrite: deep(12, 24)}, "denyRead and denyWrite: this call needs 3"},
		{"in what is only read", "runsc", nil, plan.Restrictions{DenyRead: deep(64, 24), DenyWrite: deep(64, 24)}, ""},
		{"of another runtime", "runc", workspace, plan.Restrictions{DenyRead: deep(64, 24), DenyWrite: deep(64, 24)}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newService(t, &fakeExecutor{run: func(dockerexec.Spec, warm.Command, session.Output) (warm.Result, error) {
				return warm.Result{}, nil
			}}, "")
			platform := plantest.Platform(t)
			platform.Settings.Runtime, platform.AcceptDefaultRuntime = tt.runtime, true
			s.planner.Platforms().Use(platform)
			_, err := s.Exec(t.Context(), "agent", Request{Command: "true", Confinement: Confinement{Permissions: tt.tags, Restrictions: tt.less}}, nil)
			if tt.says == "" && err != nil || tt.says != "" && (!cerrdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), tt.says)) {
				t.Errorf("%v, want %s", err, tt.says)
			}
		})
	}
}

// TestFurtherNamesThatAreNotUTF8: Docker could be told of them only by other names, under which the mask would hide
// nothing. So a call that is not to see the file is refused, and no other.
func TestFurtherNamesThatAreNotUTF8(t *testing.T) {
	for _, tt := range []struct{ hidden, further, asked string }{
		{"vault/key", "\xff", "/home/vault"},
		{"vault/key", "project/\xff/link", "/home/vault/key"},
		{".ssh/id", "project/\xff/link", ""},
	} {
		s := newService(t, nil, "")
		planFor(t, s, Confinement{}) // which makes the home
		home := filepath.Join(s.usersDir(), "alice", "home")
		hidden, further := filepath.Join(home, tt.hidden), filepath.Join(home, tt.further)
		decoy := filepath.Join(home, strings.ToValidUTF8(tt.further, "\ufffd"))
		err := errors.Join(os.MkdirAll(filepath.Dir(hidden), 0o755), os.MkdirAll(filepath.Dir(further), 0o755), os.MkdirAll(filepath.Dir(decoy), 0o755),
			os.WriteFile(hidden, []byte("s3cret"), 0o600), os.WriteFile(decoy, nil, 0o600), os.Link(hidden, further))
		if err != nil {
			t.Fatal(err)
		}
		var asked Confinement
		if tt.asked != "" {
			asked.DenyRead = []string{tt.asked}
		}
		_, err = s.Exec(t.Context(), "agent", Request{Command: "true", Confinement: asked}, nil)
		if !cerrdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), fmt.Sprintf("%q: it is not UTF-8", "/home/"+tt.further)) {
			t.Errorf("%q: %v", tt.further, err)
		}
		if err := errors.Join(os.Remove(decoy), os.Rename(further, decoy)); err != nil {
			t.Fatal(err)
		}
		links := planFor(t, s, asked).Spec.Links
		if want := "/home/" + strings.ToValidUTF8(tt.further, "\ufffd"); len(links) != 1 || links[0].Target != want {
			t.Errorf("under a name that is UTF-8: %+v", links)
		}
	}
}

// TestGrantsOfWhatIsNotThere: a file is made as a file, a directory as a directory, and where nobody knows, neither.
func TestGrantsOfWhatIsNotThere(t *testing.T) {
	s := newService(t, nil, "")
	planFor(t, s, Confinement{})
	home := filepath.Join(s.usersDir(), "alice", "home")
	if _, _, err := s.Put("agent", Registration{UserID: "alice", WriteDirs: []string{"/home"}}); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"notes.md": "file", "deep/SOUL.md": "file", "a.tar.gz": "file", ".env.local": "file", "out": "directory", "conf.d": "directory",
		"project.git": "directory", "v1.2": "directory", ".gitconfig": "refused", ".cache": "refused", "a.b/.env": "refused", "odd.é": "directory",
	} {
		c, err := s.call("agent", Confinement{Permissions: []string{"@write:/home/" + path}})
		if err != nil {
			t.Fatal(err)
		}
		got := "refused"
		if _, err = s.plan(t.Context(), c, false); err == nil {
			info, err := os.Stat(filepath.Join(home, path))
			if err != nil {
				t.Fatal(err)
			}
			if got = "file"; info.IsDir() {
				got = "directory"
			}
		} else if !cerrdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "write the file, or make the directory") {
			t.Errorf("%s: %v", path, err)
		}
		if got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}

// TestWritingAFileThatAContainerHolds: it stays the file that it is.
func TestWritingAFileThatAContainerHolds(t *testing.T) {
	executor := &fakeExecutor{}
	s := newService(t, executor, "")
	write := func(content string) (inode uint64) {
		if _, err := s.Write(t.Context(), "agent", files.WriteRequest{Path: "~/notes.md", Body: strings.NewReader(content)}); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(filepath.Join(s.usersDir(), "alice/home/notes.md"))
		if err != nil {
			t.Fatal(err)
		}
		st := info.Sys().(*syscall.Stat_t)
		executor.held = dockerexec.FileID{Dev: st.Dev, Ino: st.Ino}
		return st.Ino
	}
	if write("old") != write("new") {
		t.Error("it was replaced")
	}
}

// TestGrantsThatComeAtOnce: what several calls are granted and is not there is made by one of them, and all have it.
func TestGrantsThatComeAtOnce(t *testing.T) {
	s := newService(t, nil, "")
	planFor(t, s, Confinement{})
	if _, _, err := s.Put("agent", Registration{UserID: "alice", WriteDirs: []string{"/home"}}); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		name, state := fmt.Sprintf("/home/notes%d.md", i), "/tmp"
		if i%2 == 1 {
			name = fmt.Sprintf("/home/dir%d", i)
			state = name + "/.cache"
		}
		var calls errgroup.Group
		for range 8 {
			calls.Go(func() error {
				c, err := s.call("agent", Confinement{Permissions: []string{"@write:" + name}})
				if err != nil {
					return err
				}
				p, err := s.plan(t.Context(), c, false)
				if err != nil {
					return err
				}
				if at, _, _ := places(p); at != state {
					return fmt.Errorf("%s: tools keep their state in %s", name, at)
				}
				return nil
			})
		}
		if err := calls.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	for _, below := range []string{".daycare-*", "*/.cache/.daycare-*"} {
		if left, err := filepath.Glob(filepath.Join(s.usersDir(), "alice/home", below)); err != nil || len(left) > 0 {
			t.Error(left, err)
		}
	}
}

// TestLinksThatACallDoesNotSee: what they lead to is given up, and nothing watches what the container does not have.
func TestLinksThatACallDoesNotSee(t *testing.T) {
	s := newService(t, nil, "")
	planFor(t, s, Confinement{})
	root := filepath.Dir(s.usersDir())
	s.allowMounts(nil, root)
	err := errors.Join(os.MkdirAll(filepath.Join(s.usersDir(), "alice/home/vault/sub"), 0o755), os.Mkdir(filepath.Join(root, "ours"), 0o755),
		os.Symlink("/home/vault", filepath.Join(root, "ours/link")))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Put("agent", Registration{
		UserID: "alice", ReadDirs: []string{"/mnt/a", "/mnt/b"}, Mounts: []MountRequest{{Source: root + "/ours", Target: "/mnt/a"}, {Source: root + "/ours", Target: "/mnt/b"}},
	}); err != nil {
		t.Fatal(err)
	}
	for tags, want := range map[string]string{
		"": "hidden /home/vault", "@read:/mnt/a": "hidden /home/vault, link /mnt/a/link", "@read:/mnt/b": "hidden /home/vault, link /mnt/b/link",
	} {
		spec := planFor(t, s, Confinement{Permissions: strings.Fields(tags), Restrictions: plan.Restrictions{DenyRead: []string{"/mnt/a/link"}}}).Spec
		if got := guards(spec); got != want {
			t.Errorf("%s: %s, want %s", tags, got, want)
		}
	}
}
