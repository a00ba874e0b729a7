package e2e

import (
	"context"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
)

// tryPlaces prints those of the places in which a file could be made.
func (l *lab) tryPlaces(t *testing.T, id string, e types.Exec, places ...string) string {
	t.Helper()
	e.Command = `for p in ` + strings.Join(places, " ") + `; do if touch "$p/probe" 2>/dev/null; then rm "$p/probe"; echo "$p"; fi; done`
	return strings.Join(strings.Fields(l.run(t, id, e).Stdout), " ")
}

// What a call may write to is what it was granted, and nothing beside it.
func TestGrantsOpenOnlyTheirPaths(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.put(t, "opens", "notes.txt", "notes")
		l.put(t, "opens", "list.txt", "list\n")
		l.put(t, "opens", "project/src/file", "source")
		mkdir(t, l.at("opens", "other"))
		l.registerAs(t, "opens", types.Registration{UserID: "opens", Permissions: types.Permissions{
			WorkingDir: "/home/project", WriteDirs: []string{"/home/out", "/home/other", "/home/list.txt", "/home/deep/er/est"},
		}})
		places := []string{"/home", "/home/project", "/home/project/src", "/home/out", "/home/outer", "/home/other", "/home/deep", "/home/deep/er/est", "/tmp", "/var/tmp", "/dev/shm", "/etc", "/usr/bin", "/shared"}
		always := "/tmp /var/tmp /dev/shm"
		for _, c := range []struct {
			grants []string
			want   string
		}{
			{none, always},
			{workspace, "/home/project /home/project/src " + always},
			{[]string{"@write:/home/out"}, "/home/out " + always}, // which was not there
			{[]string{"@write:/home/other"}, "/home/other " + always},
			{[]string{"@write:/home/project/src"}, "/home/project/src " + always},
			{[]string{"@write:/home/deep/er/est"}, "/home/deep/er/est " + always},
			{[]string{"@workspace", "@write:/home/out"}, "/home/project /home/project/src /home/out " + always},
			{[]string{"@write:" + l.at("opens", "other")}, "/home/other " + always}, // by its path on the host
			{[]string{"@read:/home", "@read:/home/project"}, always},
		} {
			if got := l.tryPlaces(t, "opens", types.Exec{Permissions: c.grants}, places...); got != c.want {
				t.Errorf("%v: %q, want %q", c.grants, got, c.want)
			}
		}
		if !l.owns("opens", l.at("opens", "out")) || !l.owns("opens", l.at("opens", "deep/er/est")) {
			t.Error("what was made for a grant is not the owner's")
		}
		// A file alone may be granted, too.
		got := l.bash(t, "opens", []string{"@write:/home/list.txt"}, "cat ../list.txt ../notes.txt; echo more >> ../list.txt; cat ../list.txt; touch ../probe 2>/dev/null || echo refused")
		if got != "list\nnoteslist\nmore\nrefused" || holds(l.at("opens", "list.txt")) != "list\nmore\n" {
			t.Errorf("a file: %q; it holds %q", got, holds(l.at("opens", "list.txt")))
		}
		// All of it can be read, and nothing was left.
		if got := l.bash(t, "opens", none, "cat /home/notes.txt /home/project/src/file; pwd"); got != "notessource/home/project" {
			t.Errorf("reading: %q", got)
		}
		if exists(l.at("opens", "probe")) || exists(l.at("opens", "outer")) {
			t.Errorf("the home has %v", below(t, l.home("opens")))
		}
	})
}

// Grants beyond what the sandbox holds are refused, and the refusal says what is held.
func TestGrantsBeyondThePermissions(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		l.put(t, "beyond", "project/file", "x")
		l.registerAs(t, "beyond", types.Registration{UserID: "beyond", Permissions: types.Permissions{WorkingDir: "/home/project", WriteDirs: []string{"/home/out"}}})
		for _, tag := range []string{
			"@network", "@events", "@write:/home", "@write:/home/outer", "@write:/home/other", "@write:/etc", "@write:/", "@read:/etc", "@read:/shared/skills",
			"@write:/proc", "@write:" + l.home("beyond"), // the lab is below /tmp, which all calls have inside
		} {
			_, err := l.client.Exec(t.Context(), "beyond", types.Exec{Permissions: []string{tag}, Command: "true"})
			if kindOf(err) != types.Denied || !strings.Contains(err.Error(), "it holds @workspace, @write:/home/out") {
				t.Errorf("%s: %v", tag, err)
			}
		}
		if n := len(l.containers(t)); n != 0 {
			t.Errorf("%d containers were made", n)
		}
	})
}

// HOME is the home in every call that names no other, and what tools write goes there where all of it can be
// written, else to /tmp.
func TestHomeVariables(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		for user, dir := range map[string]string{"vars": "", "vars-project": "/home/project"} {
			l.registerAs(t, user, types.Registration{UserID: user, Permissions: types.Permissions{WorkingDir: dir, WriteDirs: []string{"/home/out"}}})
		}
		for name, c := range map[string]struct {
			user             string
			grants           []string
			home             string
			want, state, tmp string
		}{
			"no grant":                    {"vars", none, "", "/home", "/tmp", "/tmp"},
			"the home":                    {"vars", workspace, "", "/home", "/home", "/home/.cache/tmp"},
			"a working directory":         {"vars-project", workspace, "", "/home", "/home/project/.cache", "/home/project/.cache/tmp"},
			"a directory":                 {"vars", []string{"@write:/home/out"}, "", "/home", "/home/out/.cache", "/home/out/.cache/tmp"},
			"asked for":                   {"vars", []string{"@write:/home/out"}, "/home/out/agent", "/home/out/agent", "/home/out/agent", "/home/out/agent/.cache/tmp"},
			"asked for by its host path":  {"vars", []string{"@write:/home/out"}, l.at("vars", "out"), "/home/out", "/home/out", "/home/out/.cache/tmp"},
			"asked for, in the workspace": {"vars-project", workspace, "/home/project/h", "/home/project/h", "/home/project/h", "/home/project/h/.cache/tmp"},
			"asked for in /tmp":           {"vars", none, "/tmp/h", "/tmp/h", "/tmp/h", "/tmp"},
		} {
			out := l.run(t, c.user, types.Exec{Permissions: c.grants, Home: c.home, Command: `printf '%s\n' $HOME $USERPROFILE $XDG_CONFIG_HOME $XDG_CACHE_HOME $XDG_DATA_HOME $npm_config_cache $CARGO_HOME $GOPATH $PIP_CACHE_DIR $TMPDIR $TMP $TEMP
				for v in TMPDIR XDG_CACHE_HOME CARGO_HOME npm_config_cache PIP_CACHE_DIR GOPATH; do mkdir -p "${!v}" && touch "${!v}/$v" || echo cannot $v; done; mktemp >/dev/null`})
			h := c.state
			caches := h + "/.cache"
			if path.Base(h) == ".cache" {
				caches = h
			}
			if l.runtime() == "runsc" && c.home == "" {
				c.tmp = "/var/tmp"
			}
			want := []string{c.want, c.want, h + "/.config", caches, h + "/.local/share", h + "/.npm", h + "/.cargo", h + "/go", caches + "/pip", c.tmp, c.tmp, c.tmp}
			if got := strings.Fields(out.Stdout); !slices.Equal(got, want) || out.Failed {
				t.Errorf("%s: got %v, want %v (%s)", name, got, want, out.Stderr)
			}
		}
		for _, home := range []string{"/home/elsewhere", "/etc", "/home/.ssh", "relative", "/home/out/../x", "/home/apps"} {
			_, err := l.client.Exec(context.Background(), "vars", types.Exec{Permissions: []string{"@write:/home/out"}, Home: home, Command: "true"})
			if kind := kindOf(err); kind != types.Denied && kind != types.Invalid {
				t.Errorf("home %q: %v", home, err)
			}
		}
	})
}

// What write puts at ~ is at ~ for a command, whatever either may write to.
func TestTheHomeIsOnePlace(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.register(t, "one-home")
		l.write(t, "one-home", "~/notes.txt", "milk")
		for _, grants := range [][]string{none, workspace} {
			out := l.run(t, "one-home", types.Exec{Permissions: grants, Command: "cat ~/notes.txt; cd; pwd"})
			if out.Stdout != "milk/home\n" {
				t.Errorf("%v: %q %q", grants, out.Stdout, out.Stderr)
			}
		}
	})
}

// Tools work where the home is read-only, read their configuration there, and complain of nothing.
func TestToolsInAReadOnlyHome(t *testing.T) {
	goroot := runtimeGOROOT(t)
	eachOwn(t, func(t *testing.T, l *lab) {
		l.registerAs(t, "tools", types.Registration{
			UserID: "tools", Permissions: types.Permissions{ReadDirs: []string{"/mnt/go"}},
			Mounts: []types.Mount{{Source: goroot, Target: "/mnt/go", ReadOnly: true}},
		})
		l.put(t, "tools", ".gitconfig", "[user]\nname = a\nemail = a@b.c\n[init]\ndefaultBranch = main\n")
		l.put(t, "tools", ".npmrc", "install-links=true\n")
		l.put(t, "tools", ".local/lib/python3.11/site-packages/ours.py", "x = 1\n")
		tools := map[string]string{
			"git":         "git init -q /tmp/x && cd /tmp/x && git commit -q --allow-empty -m x && git log --oneline | wc -l",
			"npm":         `mkdir -p /tmp/p/q && cd /tmp/p && echo '{"name":"q","version":"1.0.0"}' > q/package.json && npm install --no-audit ./q | grep -c '^added 1 package'`,
			"node":        "echo 1 | node -i 2>&1 | grep -o '^> 1$' | cut -c 3-",
			"python":      "python3 -c 'import tempfile, ours; tempfile.mkdtemp(); print(ours.x)'",
			"venv":        "python3 -m venv --without-pip /tmp/venv && /tmp/venv/bin/python -c 'print(1)'",
			"pip":         "pip cache dir | grep -c ^/tmp/",
			"pip install": "mkdir -p /tmp/pkg && cd /tmp/pkg && printf 'from setuptools import setup\nsetup(name=\"pkg\", version=\"1\", py_modules=[\"pkg\"])' > setup.py && echo 'x = 1' > pkg.py && pip install -q --no-index --no-build-isolation --target /tmp/target . 2>&1 && PYTHONPATH=/tmp/target python3 -c 'import pkg; print(pkg.x)'",
			"go":          "export PATH=$PATH:/mnt/go/bin; go env -w GOFLAGS=-mod=mod && go telemetry >/dev/null && mkdir -p /tmp/m && cd /tmp/m && echo 'package m' > m.go && go mod init -C . example.org/m 2>/dev/null && go build . && ls $GOCACHE | grep -c README",
			"cargo":       "mkdir -p $CARGO_HOME/registry $RUSTUP_HOME && echo 1",
			"the shell":   "cat <<< 1",
			"a compiler":  "echo 'int main(){return 0;}' > /tmp/a.c && gcc -o /tmp/a /tmp/a.c && /tmp/a && echo 1",
			"login shell": "bash -lc 'echo 1'",
			"interactive": "bash -ic 'echo 1' 2>&1 | grep -v 'job control\\|terminal process group'",
		}
		for _, name := range slices.Sorted(maps.Keys(tools)) {
			grants := none
			if name == "go" {
				grants = []string{"@read:/mnt/go"}
			}
			out := l.run(t, "tools", types.Exec{Permissions: grants, Command: tools[name]})
			if out.Failed || strings.TrimSpace(out.Stdout) != "1" || out.Stderr != "" {
				t.Errorf("%s: %q %q", name, out.Stdout, out.Stderr)
			}
		}
		if got := below(t, l.home("tools")); slices.Contains(got, ".npm") || slices.Contains(got, ".cache") {
			t.Errorf("the home has %v", got)
		}
	}, "SANDBOXD_ALLOWED_MOUNT_ROOTS="+goroot)
}
