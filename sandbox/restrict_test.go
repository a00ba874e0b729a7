package sandbox

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/policy"
)

// given is what a call's container is made of: its masks and read-only mounts in places to write to, by their
// paths inside.
func given(t *testing.T, s *Service, r Request) (masks, vacant, readOnly []string) {
	t.Helper()
	var spec dockerexec.Spec
	s.executor = &fakeExecutor{t: t, run: func(made dockerexec.Spec, _ dockerexec.Command, _ dockerexec.Output) (dockerexec.Result, error) {
		spec = made
		return dockerexec.Result{}, nil
	}}
	r.Command = "true"
	if _, err := s.Exec(t.Context(), "agent", r, nil); err != nil {
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
	for _, m := range guarded(spec) {
		readOnly = append(readOnly, m.Target)
	}
	return masks, vacant, readOnly
}

// TestWhatACallGivesUp: what is there is hidden or mounted read-only, what is not there cannot come to be, and
// a path that a mount shows at another place is given up there, too.
func TestWhatACallGivesUp(t *testing.T) {
	s := newService(t, nil, "")
	home := filepath.Join(s.cfg().UsersDir, "alice/home")
	cfg := s.cfg().Config
	cfg.AllowedMountRoots = []string{cfg.UsersDir}
	s.Use(cfg)
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
		less                    Restrictions
		masks, vacant, readOnly string
	}{
		{"nothing", all, Restrictions{}, "", "", ""},
		{"reading", []string{"@workspace"}, Restrictions{DenyRead: []string{"/home/other"}}, "/home/other", "", ""},
		{"reading at two places", all, Restrictions{DenyRead: []string{"/home/project/vault"}}, "/home/project/vault /mnt/p/vault", "", ""},
		{"... by the other", all, Restrictions{DenyRead: []string{"/mnt/p/vault"}}, "/home/project/vault /mnt/p/vault", "", ""},
		{"... by the host's", all, Restrictions{DenyRead: []string{home + "/project/vault"}}, "/home/project/vault /mnt/p/vault", "", ""},
		{"... of which one was not asked for", []string{"@workspace"}, Restrictions{DenyRead: []string{"/mnt/p/vault"}}, "/home/project/vault", "", ""},
		{"all of a mount", all, Restrictions{DenyRead: []string{"/home/project"}}, "/home/project", "", ""},
		{"writing", all, Restrictions{DenyWrite: []string{"/home/project/kept"}}, "", "", "/home/project/kept /mnt/p/kept"},
		{"writing to what is not there", []string{"@workspace"}, Restrictions{DenyWrite: []string{"/home/never/in"}}, "", "/home/never/in", ""},
		{"writing to what is not written", nil, Restrictions{DenyWrite: []string{"/home/never/in", "/home/other"}}, "", "", ""},
	} {
		masks, vacant, readOnly := given(t, s, Request{Permissions: tt.tags, Restrictions: tt.less})
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

// TestBadRestrictionsStartNothing: what cannot be given up is refused by its field and index.
func TestBadRestrictionsStartNothing(t *testing.T) {
	s := newService(t, nil, "/home/project")
	if _, _, err := s.Put("agent", Registration{UserID: "alice", WorkingDir: "/home/project", Network: true}); err != nil {
		t.Fatal(err)
	}
	for says, less := range map[string]Restrictions{
		`denyRead[1]: cannot use path "b": it is not absolute`:           {DenyRead: []string{"/home/a", "b"}},
		"denyWrite has 65 entries; at most 64 are allowed":               {DenyWrite: slices.Repeat([]string{"/home/a"}, 65)},
		`denyRead[0]: "/home/project" holds the working directory`:       {DenyRead: []string{"/home/project"}},
		`denyWrite[0]: "/tmp/x" is, or holds, a part of /tmp`:            {DenyWrite: []string{"/tmp/x"}},
		`denyRead[0]: "/usr/bin/python3" is in no mount of this sandbox`: {DenyRead: []string{"/usr/bin/python3"}},
		`deniedDomains: "https://a.org" is a URL; name its host alone`:   {DeniedDomains: []string{"https://a.org"}},
		`deniedDomains: nothing is left of what allowedDomains allows`:   {DeniedDomains: []string{"*.org"}},
	} {
		r := Request{Command: "true", Permissions: []string{"@network"}, AllowedDomains: []string{"a.org"}, Restrictions: less}
		if _, err := s.Exec(t.Context(), "agent", r, nil); !cerrdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %s", err, says)
		}
	}
}
