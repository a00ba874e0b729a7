package e2e

import (
	"os"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// Further mounts are seen by grant alone, as a whole or in part; skills are always there, read-only.
func TestFurtherMountsAndSkills(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		mkdir(t, l.home("mounts")) // for the owner of what is shared with it
		data, fixed, skills := l.path("users/mounts-shared/data"), l.path("users/mounts-shared/fixed"), l.path("users/mounts-shared/skills")
		mkdir(t, l.home("mounts")) // of the same owner as what is mounted
		putFile(t, data+"/file", "data")
		putFile(t, data+"/part/file", "part")
		putFile(t, fixed+"/file", "fixed")
		putFile(t, skills+"/SKILL.md", "skill")
		l.registerAs(t, "mounts", types.Registration{
			UserID: "mounts", SkillsDir: skills,
			Mounts: []types.Mount{{Source: data, Target: "/mnt/data"}, {Source: fixed, Target: "/mnt/fixed", ReadOnly: true}},
			Permissions: types.Permissions{
				WriteDirs: []string{"/mnt/data"}, ReadDirs: []string{"/mnt/fixed", "/mnt/data"},
			},
		})
		const show = `cat /mnt/data/file /mnt/data/part/file /mnt/fixed/file /shared/skills/SKILL.md 2>/dev/null; echo
			for d in /mnt/data /mnt/data/part /mnt/fixed /shared/skills; do touch $d/probe 2>/dev/null && echo $d && rm $d/probe; done; true`
		for _, c := range []struct {
			grants []string
			want   string
		}{
			{none, "skill"},
			{workspace, "skill"},
			{[]string{"@read:/mnt/data"}, "datapartskill"},
			{[]string{"@read:" + data + "/part"}, "partskill"},
			{[]string{"@write:/mnt/data"}, "datapartskill /mnt/data /mnt/data/part"},
			{[]string{"@write:/mnt/data/part"}, "partskill /mnt/data/part"},
			{[]string{"@read:/mnt/data", "@write:/mnt/data/part"}, "datapartskill /mnt/data/part"},
			{[]string{"@read:/mnt/fixed"}, "fixedskill"},
		} {
			if got := strings.Join(strings.Fields(l.bash(t, "mounts", c.grants, show)), " "); got != c.want {
				t.Errorf("%v: %q, want %q", c.grants, got, c.want)
			}
		}
		for _, tag := range []string{"@write:/mnt/fixed", "@write:/shared/skills", "@write:/mnt", "@read:/mnt", "@write:/mnt/database"} {
			if _, err := l.client.Exec(t.Context(), "mounts", types.Exec{Permissions: []string{tag}, Command: "true"}); kindOf(err) != types.Denied {
				t.Errorf("%s: %v", tag, err)
			}
		}
		// The file calls go by what the sandbox holds.
		if got := l.read(t, "mounts", "/mnt/fixed/file") + l.read(t, "mounts", "/shared/skills/SKILL.md"); got != "fixedskill" {
			t.Errorf("reads: %q", got)
		}
		if got := l.write(t, "mounts", "/mnt/data/part/api", "api"); got.SandboxPath != "/mnt/data/part/api" || holds(data+"/part/api") != "api" {
			t.Errorf("write: %+v", got)
		}
		for _, path := range []string{"/mnt/fixed/file", "/shared/skills/SKILL.md"} {
			if _, err := l.client.Write(t.Context(), "mounts", types.Write{Target: client.Target(path), Content: "x"}); kindOf(err) != types.Denied {
				t.Errorf("write %s: %v", path, err)
			}
		}
		if holds(fixed+"/file") != "fixed" || holds(skills+"/SKILL.md") != "skill" || exists(fixed+"/probe") {
			t.Error("what is read-only was changed")
		}
	})
}

// A mount by which something hidden would be seen, or that the operator has not allowed, is refused.
func TestMountsThatAreRefused(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		l.put(t, "victim", ".ssh/id", secret)
		l.put(t, "victim", "plain/file", "plain")
		mkdir(t, l.path("users/shared"))
		if err := os.Symlink(l.at("victim", ".ssh"), l.path("users/shared/link")); err != nil {
			t.Fatal(err)
		}
		for _, source := range []string{
			"/", "/etc", "/var/run/docker.sock", l.dir, l.path("data"), l.path("sandboxd.sock"), l.path("users"), l.path("users/victim"), l.home("victim"),
			l.at("victim", ".ssh"), l.at("victim", ".ssh/id"), l.at("victim", ".config"), l.at("victim", "Library"), l.at("victim", "apps"), l.at("victim", "apps/one"),
			l.path("users/victim/processes"), l.path("users/victim/processes/p-aaaaaaaaaaaa"), l.path("users/victim/.spool-1"),
			l.at("victim", "plain") + "/../.ssh", l.at("victim", "plain") + "/", l.path("usersx"), "relative", "",
		} {
			_, err := l.client.Put(t.Context(), "mounted", types.Registration{UserID: "mounted", Mounts: []types.Mount{{Source: source, Target: "/mnt/data"}}, Permissions: types.Permissions{ReadDirs: []string{"/mnt/data"}}})
			if kind := kindOf(err); kind != types.Denied && kind != types.Invalid {
				t.Errorf("mount of %s: %v", source, err)
			}
			if source == "" {
				continue
			}
			if _, err := l.client.Put(t.Context(), "mounted", types.Registration{UserID: "mounted", SkillsDir: source}); err == nil {
				t.Errorf("skills in %s: %v", source, err)
			}
		}
		for _, target := range []string{"/", "/home", "/home/x", "/tmp", "/tmp/x", "/etc/x", "/proc", "/shared/skills", "/usr", "relative", "/mnt/../etc"} {
			_, err := l.client.Put(t.Context(), "mounted", types.Registration{UserID: "mounted", Mounts: []types.Mount{{Source: l.at("victim", "plain"), Target: target}}})
			if kindOf(err) != types.Invalid {
				t.Errorf("mount at %s: %v", target, err)
			}
		}
		// A link that leads there is found when it is to be mounted.
		l.registerAs(t, "linked", types.Registration{UserID: "linked", Mounts: []types.Mount{{Source: l.path("users/shared/link"), Target: "/mnt/data"}}, Permissions: types.Permissions{ReadDirs: []string{"/mnt/data"}}})
		if out, err := l.client.Exec(t.Context(), "linked", types.Exec{Permissions: []string{"@read:/mnt/data"}, Command: "cat /mnt/data/id"}); err == nil {
			t.Errorf("through a link: %+v", out)
		}
		if _, err := l.client.Read(t.Context(), "linked", types.Read{Target: client.Target("/mnt/data/id")}); err == nil {
			t.Error("the API reads through a link")
		}
		// And one that may be mounted is.
		l.registerAs(t, "mounted", types.Registration{UserID: "mounted", Mounts: []types.Mount{{Source: l.at("victim", "plain"), Target: "/mnt/data"}}, Permissions: types.Permissions{ReadDirs: []string{"/mnt/data"}}})
		if got := l.bash(t, "mounted", []string{"@read:/mnt/data"}, "cat /mnt/data/file"); got != "plain" {
			t.Errorf("what may be mounted: %q", got)
		}
	})
}
