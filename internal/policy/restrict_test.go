package policy_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/pathmap"
)

// mounted is a sandbox with further mounts, a workspace and a directory to write to.
func mounted(t testing.TB) policy.Subject {
	t.Helper()
	s := agent(t, "/home/ws", "")
	s.HasSkills = true
	s.Mounts = []policy.Mount{{Target: path(t, "/mnt/rw")}, {Target: path(t, "/mnt/ro"), ReadOnly: true}}
	s.WriteDirs, s.ReadDirs = paths(t, "/home/ws/out", "/mnt/rw"), paths(t, "/mnt/ro", "/mnt/rw")
	return s
}

func restrict(t testing.TB, s policy.Subject, v policy.View, denyRead, denyWrite string) (policy.View, error) {
	t.Helper()
	r, err := policy.ParseRestrictions(strings.Fields(denyRead), strings.Fields(denyWrite), pathmap.Map{})
	if err != nil {
		t.Fatal(err)
	}
	return s.Restrict(v, r)
}

// TestRestrict: what a call gives up wins over all that it asks for.
func TestRestrict(t *testing.T) {
	tests := []struct {
		name                string
		tags                string
		denyRead, denyWrite string
		want                []string
	}{
		{"nothing", "@workspace", "", "", []string{"/home readOnly", "/home/ws writable", "/home/.ssh hidden"}},
		{"a path in the home", "", "/home/a", "", []string{"/home/a hidden", "/home/a/b hidden", "/home/ab readOnly", "/home readOnly"}},
		{"a path in the workspace", "@workspace", "/home/ws/a", "", []string{"/home/ws/a hidden", "/home/ws/a/b hidden", "/home/ws writable", "/home/ws/ab writable"}},
		{"opened by a tag", "@workspace @write:/home/ws/out", "/home/ws/out", "", []string{"/home/ws/out hidden", "/home/ws writable"}},
		{"opened inside by a tag", "@write:/home/ws/out", "", "/home/ws", []string{"/home/ws/out readOnly", "/home/ws readOnly"}},
		{"writing alone", "@workspace", "", "/home/ws/.git", []string{"/home/ws/.git readOnly", "/home/ws/.git/hooks readOnly", "/home/ws writable"}},
		{"writing to what is not written anyway", "", "", "/home/ws/.git /home/x", []string{"/home/ws readOnly", "/home readOnly"}},
		{"writing to all of the home", "@workspace", "", "/home", []string{"/home readOnly", "/home/ws readOnly", "/tmp writable", "/home/.ssh hidden"}},
		{"both", "@workspace", "/home/ws/a/b", "/home/ws/a", []string{"/home/ws/a readOnly", "/home/ws/a/b hidden", "/home/ws writable"}},
		{"both of one path", "@workspace", "/home/ws/a", "/home/ws/a", []string{"/home/ws/a hidden"}},
		{"reading wins", "@workspace", "/home/ws/a", "/home/ws/a/b", []string{"/home/ws/a/b hidden"}},
		{"twice, and one in the other", "@workspace", "/home/ws/a /home/ws/a/b /home/ws/a", "", []string{"/home/ws/a hidden", "/home/ws/a/b hidden"}},
		{"a part of a mount", "@write:/mnt/rw", "/mnt/rw/a", "/mnt/rw/b", []string{"/mnt/rw writable", "/mnt/rw/a hidden", "/mnt/rw/b readOnly"}},
		{"a mount", "@write:/mnt/rw @read:/mnt/ro", "/mnt/rw", "", []string{"/mnt/rw outside", "/mnt/ro readOnly"}},
		{"all mounts", "@write:/mnt/rw @read:/mnt/ro", "/mnt", "", []string{"/mnt/rw outside", "/mnt/ro outside", "/home readOnly"}},
		{"a mount that was not asked for", "", "/mnt/rw/a", "/mnt/rw/b", []string{"/mnt/rw outside", "/mnt/rw/a outside"}},
		{"writing to a mount", "@write:/mnt/rw", "", "/mnt/rw", []string{"/mnt/rw readOnly"}},
		{"skills", "", "/shared/skills/a", "", []string{"/shared/skills readOnly", "/shared/skills/a hidden"}},
		{"all skills", "", "/shared", "", []string{"/shared/skills outside"}},
		{"denied to everybody", "@workspace", "/home/.ssh /home/.aws/x /etc/ssh /etc/shadow", "/home/.ssh", []string{"/home/.ssh hidden", "/home/.aws hidden", "/etc/ssh hidden", "/etc/shadow hidden"}},
		{"a parent of what is denied to everybody", "", "/home/.config", "", []string{"/home/.config hidden", "/home/.config/gh hidden", "/home/.config/x hidden"}},
		{"apps", "@workspace", "/home/ws/apps", "/home/apps", []string{"/home/ws/apps hidden", "/home/apps empty"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := mounted(t)
			v, err := restrict(t, s, view(t, s, strings.Fields(tt.tags)...), tt.denyRead, tt.denyWrite)
			if err != nil {
				t.Fatal(err)
			}
			expect(t, v, tt.want...)
		})
	}
}

// TestRestrictOfAnApp: its data is its own to write, and to give up.
func TestRestrictOfAnApp(t *testing.T) {
	s := agent(t, "/home/ws", "mail")
	for _, tt := range []struct{ denyRead, denyWrite, want string }{
		{"", "/home/ws/apps/mail/data", "/home/ws/apps/mail/data readOnly"},
		{"/home/ws/apps/mail/data", "", "/home/ws/apps/mail/data hidden"},
		{"/home/ws/apps/mail/src", "", "/home/ws/apps/mail/data writable"},
		{"/home/ws/apps/chat", "", "/home/ws/apps/chat empty"},
		{"/home/ws/apps", "", "/home/ws/apps/mail/data hidden"},
	} {
		v, err := restrict(t, s, view(t, s), tt.denyRead, tt.denyWrite)
		if err != nil {
			t.Fatal(err)
		}
		expect(t, v, tt.want)
	}
}

// TestRestrictIsNothingNew: a call that gives up what it would not get has the view of one that does not
// ask, and so its container.
func TestRestrictIsNothingNew(t *testing.T) {
	s := mounted(t)
	for _, tt := range []struct{ tags, denyRead, denyWrite, like string }{
		{"@workspace", "", "/home/ws", ""},
		{"@workspace @write:/mnt/rw", "/mnt", "", "@workspace"},
		{"", "/home/.ssh/id", "/home/ws/a", ""},
		{"@workspace", "", "/home/.aws", "@workspace"},
	} {
		got, err := restrict(t, s, view(t, s, strings.Fields(tt.tags)...), tt.denyRead, tt.denyWrite)
		if err != nil {
			t.Fatal(err)
		}
		if want := view(t, s, strings.Fields(tt.like)...); !slices.Equal(got.Regions(), want.Regions()) {
			t.Errorf("%+v: %v, want %v", tt, got.Regions(), want.Regions())
		}
	}
}

func TestRestrictRefuses(t *testing.T) {
	s := mounted(t)
	for _, tt := range []struct{ denyRead, denyWrite, says string }{
		{"/home/a /home/ws", "", `denyRead[1]: "/home/ws" holds the working directory /home/ws`},
		{"/home", "", `denyRead[0]: "/home" holds the working directory`},
		{"/tmp", "", `denyRead[0]: "/tmp" is, or holds, a part of /tmp`},
		{"", "/home/x /tmp/a", `denyWrite[1]: "/tmp/a" is, or holds, a part of /tmp`},
		{"/", "", `denyRead[0]: "/" is, or holds, a part of /tmp`},
		{"", "/", `denyWrite[0]: "/"`},
		{"/etc", "", `denyRead[0]: "/etc" is in no mount of this sandbox`},
		{"/etc/passwd", "", `denyRead[0]: "/etc/passwd" is in no mount`},
		{"", "/usr/bin", `denyWrite[0]: "/usr/bin" is in no mount`},
		{"/mnt/other", "", `denyRead[0]: "/mnt/other" is in no mount`},
		{"/mnt/rw-2", "", `denyRead[0]: "/mnt/rw-2" is in no mount`},
	} {
		v, err := restrict(t, s, view(t, s, "@workspace"), tt.denyRead, tt.denyWrite)
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), tt.says) || len(v.Regions()) > 0 {
			t.Errorf("%+v: %v, %v", tt, v.Regions(), err)
		}
	}
	if _, err := restrict(t, s, view(t, s), "/etc /tmp", "/usr"); len(faults(err)) != 3 {
		t.Errorf("not all faults at once: %v", err)
	}
}

func TestParseRestrictions(t *testing.T) {
	many := slices.Repeat([]string{"/home/a"}, 64)
	for _, tt := range []struct {
		denyRead, denyWrite []string
		says                string
	}{
		{[]string{"/home/a", "b"}, nil, "denyRead[1]: cannot use path \"b\": it is not absolute"},
		{nil, []string{""}, "denyWrite[0]: cannot use path \"\": it is empty"},
		{[]string{"/home/../etc"}, nil, "denyRead[0]: cannot use path"},
		{[]string{"/home/a\x00"}, nil, "denyRead[0]: cannot use path"},
		{nil, []string{strings.Repeat("/d", 25)}, "has 25 components; at most 24 are allowed"},
		{append(many, "/home/b"), nil, "denyRead has 65 entries; at most 64 are allowed"},
		{nil, append(many, "/home/b"), "denyWrite has 65 entries"},
	} {
		_, err := policy.ParseRestrictions(tt.denyRead, tt.denyWrite, pathmap.Map{})
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%.60q %.60q: %v", tt.denyRead, tt.denyWrite, err)
		}
	}
	if _, err := policy.ParseRestrictions([]string{strings.Repeat("/d", 24)}, nil, pathmap.Map{}); err != nil {
		t.Error(err)
	}
	if r, err := policy.ParseRestrictions(many, many, pathmap.Map{}); err != nil || len(r.DenyRead) != 64 || len(r.DenyWrite) != 64 {
		t.Errorf("%d %d, %v", len(r.DenyRead), len(r.DenyWrite), err)
	}
}

// TestRestrictProperties holds what Restrict says against many sandboxes, calls and restrictions, path by path.
func TestRestrictProperties(t *testing.T) {
	u := newUniverse(t)
	random := rand.New(rand.NewPCG(6, 4))
	checked, changed := 0, 0
	for range 600 {
		bytes := make([]byte, 60)
		for i := range bytes {
			bytes[i] = byte(random.Uint32())
		}
		c, ok := u.scenario(t, bytes[:40])
		if !ok {
			continue
		}
		d, err := c.s.Decide(c.within())
		if err != nil {
			t.Fatal(err)
		}
		rest := dice(bytes[40:])
		r := policy.Restrictions{DenyRead: rest.some(u.all, 4), DenyWrite: rest.some(u.all, 4)}
		got, err := c.s.Restrict(d.View, r)
		if err != nil {
			continue
		}
		u.checkShape(t, got)
		checked++
		for _, p := range u.all {
			was, is := modeOf(d.View, p), modeOf(got, p)
			want := []string{was}
			switch {
			case slices.ContainsFunc(r.DenyRead, p.Within) && was != outside:
				want = []string{"hidden", outside}
				if was == "empty" {
					want = append(want, was) // there is nothing in it
				}
			case slices.ContainsFunc(r.DenyWrite, p.Within) && was == "writable":
				want = []string{"readOnly"}
			}
			if was != is {
				changed++
			}
			if !slices.Contains(want, is) {
				t.Fatalf("%s was %s and is %s with %+v\nof %v", p, was, is, r, d.View.Regions())
			}
		}
	}
	if checked < 60 || changed < 200 {
		t.Errorf("only %d were checked, in which %d paths have changed", checked, changed)
	}
}

// TestEgressDenied: names are taken away from what is allowed, however that was named.
func TestEgressDenied(t *testing.T) {
	tests := []struct {
		domains, presets, denied string
		reach, not               []string
		left                     string // the patterns that count as denied
	}{
		{"*.example.com", "", "a.example.com", []string{"b.example.com", "x.a.example.com"}, []string{"a.example.com", "A.Example.com.", "example.com"}, "a.example.com"},
		{"*.example.com", "", "*.a.example.com", []string{"a.example.com"}, []string{"x.a.example.com", "x.y.a.example.com"}, "*.a.example.com"},
		{"*.example.com example.org", "", "example.org", []string{"a.example.com"}, []string{"example.org"}, ""},
		{"example.org", "node", "registry.npmjs.org *.yarnpkg.com", []string{"bun.sh", "example.org"}, []string{"registry.npmjs.org", "repo.yarnpkg.com"}, ""},
		{"*.a.example.com b.example.org", "", "*.example.com", []string{"b.example.org"}, []string{"x.a.example.com"}, ""},
		{"a.example.com", "", "*.com other.org com.example", []string{}, []string{}, "refused"},
		{"a.example.com b.example.org", "", "*.com", []string{"b.example.org"}, []string{"a.example.com"}, ""},
		{"*.example.com", "", "elsewhere.org *.elsewhere.org", []string{"a.example.com"}, nil, ""},
		{"*.example.com", "", "BÜCHER.example.com.", []string{"a.example.com"}, []string{"xn--bcher-kva.example.com"}, "xn--bcher-kva.example.com"},
	}
	for _, tt := range tests {
		q := policy.EgressRequest{Network: true, AllowedDomains: strings.Fields(tt.domains), PackageManagers: strings.Fields(tt.presets), DeniedDomains: strings.Fields(tt.denied)}
		got, err := rules(t, true).Decide(q)
		if tt.left == "refused" {
			if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "deniedDomains: nothing is left of what allowedDomains allows") {
				t.Errorf("%+v: %v", q, err)
			}
			continue
		}
		if err != nil || strings.Join(got.Denied.List(), " ") != tt.left || network(got) != "filtered" {
			t.Errorf("%+v: %s, denied %q, %v", q, network(got), got.Denied.List(), err)
		}
		for _, name := range tt.reach {
			if !got.Allows(name) {
				t.Errorf("%+v: %s is not reached", q, name)
			}
		}
		for _, name := range tt.not {
			if got.Allows(name) {
				t.Errorf("%+v: %s is reached", q, name)
			}
		}
	}
}

func TestEgressDeniedRefuses(t *testing.T) {
	many := slices.Repeat([]string{"a.example.com"}, 64)
	for _, tt := range []struct {
		domains, denied []string
		says            string
	}{
		{[]string{"*"}, []string{"a.com"}, `deniedDomains: nothing is filtered in a call with "*" in allowedDomains`},
		{[]string{"a.com"}, []string{"*"}, "deniedDomains: nothing is left"},
		{[]string{"a.com"}, []string{"10.0.0.1"}, `deniedDomains: "10.0.0.1" is an IP address`},
		{[]string{"*.a.com"}, []string{"b.a.com:443"}, `deniedDomains: "b.a.com:443" has a port`},
		{[]string{"*.a.com"}, append(many, "b.a.com"), "deniedDomains has 65 entries; at most 64 are allowed"},
	} {
		_, err := rules(t, true).Decide(policy.EgressRequest{Network: true, AllowedDomains: tt.domains, DeniedDomains: tt.denied})
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%.40q without %.40q: %v", tt.domains, tt.denied, err)
		}
	}
	// To deny without a network is nothing to refuse.
	if got, err := rules(t, true).Decide(policy.EgressRequest{DeniedDomains: []string{"a.com"}}); err != nil || network(got) != "blocked" {
		t.Errorf("%s, %v", network(got), err)
	}
	if got, err := rules(t, true).Decide(policy.EgressRequest{Network: true, AllowedDomains: []string{"*.a.com"}, DeniedDomains: many}); err != nil || network(got) != "filtered" {
		t.Errorf("%s, %v", network(got), err)
	}
}
