package mcp

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/internal/policy"
)

func bounds(t *testing.T, domains, managers string, grants ...string) Bounds {
	t.Helper()
	parsed, err := policy.ParseDomains(strings.Fields(domains))
	if err != nil {
		t.Fatal(err)
	}
	return Bounds{Grants: grants, Domains: parsed, PackageManagers: strings.Fields(managers), WorkingDir: "/home/project", Home: "/data/users/alice/home"}
}

func TestTags(t *testing.T) {
	b := bounds(t, "", "", "@workspace", "@network", "@write:/home/out", "@read:/mnt/data", "@secret:github")
	for _, tt := range []struct{ tags, want, fault string }{
		{"", "", ""},
		{"@workspace @network", "@workspace @network", ""},
		{"@secret:github", "@secret:github", ""},
		{"@secret:git", "", "@secret:git is not granted to this sandbox: a call may ask for @workspace, @network, @write:/home/out, @read:/mnt/data, @secret:github"},
		{"@secret:*", "", "@secret:* is not granted"},
		{"@write:/home/out @write:/home/out/a", "@write:/home/out @write:/home/out/a", ""},
		{"@write:/home/project/src", "@write:/home/project/src", ""},
		{"@write:/data/users/alice/home/out", "@write:/home/out", ""},
		{"@write:/tmp/x @read:/home/a @read:/mnt/data/x @read:/shared/skills", "@write:/tmp/x @read:/home/a @read:/mnt/data/x @read:/shared/skills", ""},
		{"@events", "", "permissions: @events is not granted to this sandbox: a call may ask for @workspace, @network, @write:/home/out, @read:/mnt/data"},
		{"@write:/home", "", "@write:/home is not granted"},
		{"@write:/home/out/../other", "", "@write:/home/out/../other is not granted"},
		{"@write:/home/outer", "", "@write:/home/outer is not granted"},
		{"@write:/mnt/data", "", "@write:/mnt/data is not granted"},
		{"@read:/mnt/other", "", "@read:/mnt/other is not granted"},
		{"@write:/data/users/alice/home/x", "", "is not granted"},
		{"@write:out", "", `tag "@write:out": its path is not absolute`},
		{"@root", "", "@root is not granted"},
		{"@workspace:x", "", "is not granted"},
	} {
		got, err := b.tags(strings.Fields(tt.tags))
		if tt.fault != "" {
			if err == nil || !strings.Contains(err.Error(), tt.fault) {
				t.Errorf("%s: %v, %v", tt.tags, got, err)
			}
			continue
		}
		if diff := cmp.Diff(strings.Fields(tt.want), append([]string{}, got...)); diff != "" || err != nil {
			t.Errorf("%s: %v, %s", tt.tags, err, diff)
		}
	}
	if _, err := bounds(t, "", "").tags([]string{"@workspace"}); err == nil || !strings.Contains(err.Error(), "may ask for none") {
		t.Error(err)
	}
}

func TestNames(t *testing.T) {
	for _, tt := range []struct{ domains, managers, asked, presets, fault string }{
		{"", "", "anything.example.org *", "node", ""},
		{"*.example.org example.com", "", "a.example.org *.b.example.org example.com", "", ""},
		{"*.example.org", "", "example.org", "", `allowedDomains: "example.org" is not allowed here: a call may name *.example.org`},
		{"a.example.org", "", "*.example.org", "", `"*.example.org" is not allowed`},
		{"*.example.org", "", "*", "", `"*" is not allowed`},
		{"*.example.org", "", "", "node", `packageManagers: "node" is not allowed here: a call may name none`},
		{"", "node python", "registry.npmjs.org", "python", ""},
		{"", "node", "pypi.org", "", `"pypi.org" is not allowed`},
		{"", "corp", "", "corp", ""},
		{"*.example.org", "", "10.0.0.1", "", "is an IP address"},
		{"*", "", "a.org *", "", ""},
	} {
		err := bounds(t, tt.domains, tt.managers, "@network").names(strings.Fields(tt.asked), strings.Fields(tt.presets))
		if (err == nil) != (tt.fault == "") || (err != nil && !strings.Contains(err.Error(), tt.fault)) {
			t.Errorf("%+v: %v", tt, err)
		}
	}
}

// TestFilePaths: what a file call may name. The service goes by the sandbox, which holds its working directory
// in any case; these bounds may not grant it.
func TestFilePaths(t *testing.T) {
	with := bounds(t, "", "", "@workspace", "@write:/home/out", "@read:/mnt/data")
	without := bounds(t, "", "")
	for _, tt := range []struct {
		name          string
		inside        string
		reads, writes bool // within the grants
		bare          bool // written without any
	}{
		{"a.txt", "/home/project/a.txt", true, true, false},
		{"./a/../b", "/home/project/b", true, true, false},
		{"../other", "/home/other", true, false, false},
		{"~/out/x", "/home/out/x", true, true, false},
		{"~", "/home", true, false, false},
		{"/tmp/x", "/tmp/x", true, true, true},
		{"/tmp/../home/x", "/home/x", true, false, false},
		{"/data/users/alice/home/out/x", "/home/out/x", true, true, false},
		{"/data/users/bob/home/x", "/data/users/bob/home/x", false, false, false},
		{"/mnt/data/x", "/mnt/data/x", true, false, false},
		{"/mnt/database", "/mnt/database", false, false, false},
		{"/etc/passwd", "/etc/passwd", false, false, false},
	} {
		inside := with.inside(tt.name)
		if inside != tt.inside || with.reads(inside) != tt.reads || with.writes(inside) != tt.writes || without.writes(inside) != tt.bare {
			t.Errorf("%s: %s, reads %v, writes %v, without grants %v", tt.name, inside, with.reads(inside), with.writes(inside), without.writes(inside))
		}
	}
	// The host's name of a home below /tmp is not /tmp.
	lab := without
	lab.Home = "/tmp/lab/users/alice/home"
	if inside := lab.inside("/tmp/lab/users/alice/home/x"); inside != "/home/x" || lab.writes(inside) {
		t.Errorf("%s is written", inside)
	}
}

func TestClipped(t *testing.T) {
	for _, n := range []int{0, 1, keptHead, keptHead + keptTail, keptHead + keptTail + 1, 1 << 20} {
		for _, piece := range []int{7, 4096, 1 << 20} {
			var c clipped
			all := strings.Repeat("0123456789", n/10+1)[:n]
			for rest := all; rest != ""; {
				size := min(piece, len(rest))
				_, _ = c.Write([]byte(rest[:size]))
				rest = rest[size:]
			}
			got := c.String()
			if n <= keptHead+keptTail && got != all {
				t.Errorf("%d bytes in pieces of %d: %d", n, piece, len(got))
			}
			if n > keptHead+keptTail && (!strings.HasPrefix(got, all[:keptHead]) || !strings.HasSuffix(got, all[n-keptTail:]) || !strings.Contains(got, fmt.Sprintf("\n[%d bytes are left out here", n-keptHead-keptTail))) {
				t.Errorf("%d bytes in pieces of %d: %d", n, piece, len(got))
			}
			if len(c.tail) > 2*keptTail+piece {
				t.Errorf("it holds %d bytes", len(c.tail))
			}
		}
	}
	var c clipped
	_, _ = c.Write([]byte("a\xffb"))
	if c.String() != "a\uFFFDb" {
		t.Errorf("%q", c.String())
	}
}

func TestPortsOfProcesses(t *testing.T) {
	for _, tt := range []struct {
		allowed bool
		ports   []int
		fails   bool
	}{{false, nil, false}, {false, []int{80}, true}, {true, []int{80}, false}} {
		if err := (Bounds{Expose: tt.allowed}).ports(tt.ports); (err != nil) != tt.fails {
			t.Errorf("%+v: %v", tt, err)
		}
	}
}
