package e2e

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/policy"
)

// secret is in every file that nobody may see. The files themselves are readable for all, so that
// nothing but the mask keeps it.
const secret = "the-secret-itself"

// deniedFiles are the rows of the deny list that are files where they exist.
var deniedFiles = []string{".netrc", ".boto", ".s3cfg", ".git-credentials", ".pgpass", ".my.cnf", ".pypirc", ".vault-token"}

// tryEverything reads and changes what rows name in every way that it can think of, and prints
// what it has got and done. What is allowed it does, too, and says so.
//
//go:embed testdata/try_everything.py
var tryEverything string

// try runs it with grants; outcome is what it has printed.
func (l *lab) try(t *testing.T, id string, grants, rows []string) string {
	t.Helper()
	text, err := json.Marshal(rows)
	if err != nil {
		t.Fatal(err)
	}
	out := l.run(t, id, types.Exec{Permissions: grants, Argv: []string{"python3", "-c", tryEverything}, Env: map[string]string{"ROWS": string(text)}})
	if out.Failed {
		t.Errorf("with %v the attempts ended with %+v: %s", grants, out.Result, out.Stderr)
	}
	return out.Stdout + out.Stderr
}

// expect holds an outcome against the only thing that may be in it: what is allowed.
func expect(t *testing.T, state string, grants []string, outcome, allowed string) {
	t.Helper()
	if strings.TrimSpace(outcome) != allowed {
		t.Errorf("%s, with %v: got\n%.3000s\nwant %s", state, grants, outcome, allowed)
	}
}

// standsIn reports whether something is on the host only for a mask to be mounted on it: an empty directory or file of root's.
func standsIn(t *testing.T, name string, info os.FileInfo) bool {
	t.Helper()
	switch {
	case info.Sys().(*syscall.Stat_t).Uid != 0:
		return false
	case info.IsDir():
		return info.Mode().Perm() == 0o555 && len(below(t, name)) == 0
	default:
		return info.Mode() == 0o444 && info.Size() == 0
	}
}

// plantSecrets makes all denied paths of a home, as what they usually are. What stands in for them goes, or is opened and
// filled.
func (l *lab) plantSecrets(t *testing.T, user string) {
	t.Helper()
	for i, row := range policy.DeniedInHome() {
		if info, err := os.Lstat(l.at(user, row)); err == nil && standsIn(t, l.at(user, row), info) {
			if i%2 == 0 || slices.Contains(deniedFiles, row) {
				_ = os.Remove(l.at(user, row))
			} else {
				_ = os.Chmod(l.at(user, row), 0o755)
			}
		}
		if slices.Contains(deniedFiles, row) {
			l.put(t, user, row, secret)
			continue
		}
		l.put(t, user, row+"/key", secret)
		l.put(t, user, row+"/sub/key", secret)
	}
}

func homeRows() []string {
	var rows []string
	for _, row := range policy.DeniedInHome() {
		rows = append(rows, "/home/"+row)
	}
	return rows
}

// grantsOfAHome are those of the calls that try; each has a container of its own.
var grantsOfAHome = []struct {
	grants  []string
	allowed string
}{
	{none, "read\ndone"},
	{workspace, "read\nwritten\ndone"},
	{[]string{"@write:/home/plain"}, "read\nwritten\ndone"},
}

// Each path of a home on the deny list, by every alias, in calls with and without grants: when it was
// there before the container, when it appears on the host while the container is warm, and when it
// never exists. What a command does must not get the secret, and must not put anything there.
func TestDenyList(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		for _, state := range []string{"before", "after", "never"} {
			t.Run(state, func(t *testing.T) {
				user := "deny-" + state
				l.put(t, user, "plain/file", "read")
				l.put(t, user, "Library/Application Support/mine", "mine")
				if state == "before" {
					l.plantSecrets(t, user)
				}
				l.registerAs(t, user, types.Registration{UserID: user, Permissions: types.Permissions{WriteDirs: []string{"/home/plain"}}})
				for _, c := range grantsOfAHome {
					expect(t, "first", c.grants, l.try(t, user, c.grants, homeRows()), c.allowed)
				}
				if state == "after" {
					l.plantSecrets(t, user)
				}
				for _, c := range grantsOfAHome {
					expect(t, "later", c.grants, l.try(t, user, c.grants, homeRows()), c.allowed)
				}
				l.checkRows(t, user, state != "never")
				l.checkFileCalls(t, user)
				l.checkRows(t, user, state != "never")
			})
		}
	})
}

// checkRows looks at the host: what is there is what the test has put, or stands in for it.
func (l *lab) checkRows(t *testing.T, user string, planted bool) {
	t.Helper()
	for _, row := range policy.DeniedInHome() {
		name := l.at(user, row)
		info, err := os.Lstat(name)
		switch {
		case !planted && err == nil:
			if !standsIn(t, name, info) || info.IsDir() == slices.Contains(deniedFiles, row) {
				t.Errorf("%s was made: %v with %v", row, info.Mode(), below(t, name))
			}
		case !planted:
		case slices.Contains(deniedFiles, row):
			if holds(name) != secret {
				t.Errorf("%s was changed: %q", row, holds(name))
			}
		default:
			if got := below(t, name); !slices.Equal(got, []string{"key", "sub", "sub/key"}) || holds(name+"/key") != secret || holds(name+"/sub/key") != secret {
				t.Errorf("%s was changed: %v", row, got)
			}
		}
	}
}

// checkFileCalls tries the API on each path and below it.
func (l *lab) checkFileCalls(t *testing.T, user string) {
	t.Helper()
	l.put(t, user, "plain/spare", "spare")
	for _, row := range policy.DeniedInHome() {
		for _, path := range []string{"~/" + row, "/home/plain/../" + row, row + "/key", "~/" + row + "/sub/key", l.at(user, row), "/home/" + row + "/"} {
			for name, call := range l.fileCalls(user, path) {
				content, err := call(t.Context())
				if kind := kindOf(err); kind != types.Denied && kind != types.Invalid || strings.Contains(content, secret) || strings.Contains(err.Error(), secret) {
					t.Errorf("%s %s: %q, %v", name, path, content, err)
				}
			}
			if _, err := l.client.Stat(t.Context(), user, path); kindOf(err) != types.Denied {
				t.Errorf("stat %s: %v", path, err)
			}
			if _, err := l.client.ListDir(t.Context(), user, path); kindOf(err) != types.Denied {
				t.Errorf("list %s: %v", path, err)
			}
		}
		listing, err := l.client.ListDir(t.Context(), user, "~/"+filepath.Dir(row))
		for _, e := range listing.Entries {
			if e.Name == filepath.Base(row) {
				t.Errorf("%s is listed", row)
			}
		}
		if err != nil && kindOf(err) != types.NotFound {
			t.Errorf("list around %s: %v", row, err)
		}
	}
	if got := l.read(t, user, "~/plain/spare"); got != "spare" {
		t.Errorf("what may be read: %q", got)
	}
}

// everywhere goes through the home with programs that complain of what they cannot read; inTheHome has them write there.
const (
	everywhere = `set -e
find ~ > /dev/null
tar -cf /tmp/all.tar -C ~ .
cp -a ~/. /tmp/copied
du -s ~ > /dev/null
rsync -a ~/ /tmp/synced/
grep -r "no such words" ~ || [ $? = 1 ]
python3 -c 'import os, shutil; shutil.copytree(os.environ["HOME"], "/tmp/tree"); shutil.rmtree("/tmp/tree")'
rm -rf /tmp/all.tar /tmp/copied /tmp/synced
`
	inTheHome = `
git init -q . && git add -A && git status --porcelain > /dev/null
echo '{"name": "all", "version": "1.0.0"}' > package.json && npm_config_cache=/tmp/npm npm pack --silent --dry-run > /dev/null
mkdir project && python3 -c 'import shutil; shutil.rmtree("project")'
rm -rf .git package.json /tmp/npm
`
)

// What is hidden looks empty: programs that go through a home find nothing that they cannot read, and say nothing. A
// command that cannot write to the home sees no name where nothing stands in for another's sake.
func TestWhatIsHiddenLooksEmpty(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		for _, state := range []string{"never", "there"} {
			user := "looks-" + state
			l.put(t, user, "plain/file", "plain")
			if state == "there" {
				l.plantSecrets(t, user)
			}
			l.register(t, user)
			for i, c := range []struct {
				grants  []string
				command string
			}{{none, everywhere}, {workspace, everywhere + inTheHome}, {none, everywhere}} {
				if out := l.run(t, user, types.Exec{Permissions: c.grants, Command: c.command}); out.Failed || out.Stdout+out.Stderr != "" {
					t.Errorf("%s, with %v: %+v\n%s%s", state, c.grants, out.Result, out.Stdout, out.Stderr)
				}
				if got, want := l.seen(t, user, c.grants), emptyRows(state == "there" || i > 0, state == "there"); got != want { // the second call's container is there yet
					t.Errorf("%s, with %v, the command sees\n%s\nwant\n%s", state, c.grants, got, want)
				}
			}
		}
	})
}

// seen returns what a command finds at the rows of a home.
func (l *lab) seen(t *testing.T, user string, grants []string) string {
	t.Helper()
	const see = `import json, os
for row in json.loads(os.environ["ROWS"]):
    try:
        print(row, os.listdir(row) if os.path.isdir(row) else repr(open(row).read()))
    except FileNotFoundError:
        print(row, "is not there")
`
	text, err := json.Marshal(policy.DeniedInHome())
	if err != nil {
		t.Fatal(err)
	}
	out := l.run(t, user, types.Exec{Permissions: grants, Argv: []string{"python3", "-c", see}, Env: map[string]string{"ROWS": string(text)}})
	return out.Stdout + out.Stderr
}

// emptyRows is what is seen where there is something at each row, and at those of macOS.
func emptyRows(there, library bool) string {
	var all strings.Builder
	for _, row := range policy.DeniedInHome() {
		is := "[]"
		switch {
		case !there || !library && strings.HasPrefix(row, "Library/"):
			is = "is not there"
		case slices.Contains(deniedFiles, row):
			is = "''"
		}
		all.WriteString(row + " " + is + "\n")
	}
	return all.String()
}

// What only macOS has is hidden where the directory is there that it is in, from the next call on.
func TestAKeychainIsHiddenInALibrary(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.put(t, "keychain", "plain", "plain")
		l.register(t, "keychain")
		if got := l.bash(t, "keychain", workspace, "ls -A ~; mkdir -p Library/Keychains && echo mine > Library/Keychains/key && cat Library/Keychains/key"); strings.Contains(got, "Library") || !strings.HasSuffix(got, "mine") {
			t.Errorf("got %q", got)
		}
		for _, grants := range [][]string{none, workspace} {
			if got := l.bash(t, "keychain", grants, "ls -A Library/Keychains; touch Library/Keychains/planted 2>/dev/null; cat plain"); got != "plain" || exists(l.at("keychain", "Library/Keychains/planted")) {
				t.Errorf("the next call: %q", got)
			}
		}
		// A link in its place hides nothing, and keeps no call from running.
		if err := errors.Join(os.RemoveAll(l.at("keychain", "Library")), os.Symlink("plain", l.at("keychain", "Library"))); err != nil {
			t.Fatal(err)
		}
		if got := l.bash(t, "keychain", workspace, "cat Library"); got != "plain" {
			t.Errorf("where it is a link: %q", got)
		}
	})
}

// The attempts are worth something: on what is not denied they work.
func TestTheAttemptsAreReal(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.put(t, "deny-not", "plain/file", "read")
		l.put(t, "deny-not", "open/key", secret)
		l.put(t, "deny-not", "open/sub/key", secret)
		l.register(t, "deny-not")
		outcome := l.try(t, "deny-not", workspace, []string{"/home/open"})
		for _, want := range []string{
			"READ directly /home/open/key b'" + secret, "LISTED directly", "READ alias /proc/self/root/home", "READ link ../open", "READ descriptor of /home",
			"READ entered", "WRITE key", "MADE with parents", "HARD LINKED /home/open/key", "CHMOD", "RENAMED /home/open to /home/plain/moved",
		} {
			if !strings.Contains(outcome, want) {
				t.Errorf("%s is missing in\n%.2000s", want, outcome)
			}
		}
	})
}

// Tags for what is denied are refused whoever asks, and what holds it may be granted without it.
func TestNoGrantOpensTheDenyList(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.plantSecrets(t, "deny-tags")
		l.put(t, "deny-tags", "plain/file", "read")
		l.register(t, "deny-tags")
		for _, row := range homeRows() {
			for _, tag := range []string{"@write:" + row, "@read:" + row, "@write:" + row + "/key"} {
				_, err := l.client.Exec(context.Background(), "deny-tags", types.Exec{Permissions: []string{tag}, Command: "true"})
				if kindOf(err) != types.Denied || !strings.Contains(err.Error(), tag) {
					t.Errorf("%s: %v", tag, err)
				}
			}
		}
		grants := []string{"@write:/home/.config", "@write:/home/Library", "@read:/home"}
		out := l.run(t, "deny-tags", types.Exec{Permissions: grants, Command: "touch ~+/.config/x ~+/Library/x && cat .config/*/* Library/*/* Library/*/*/* .ssh/* .netrc 2>/dev/null; cat plain/file"})
		if out.Stdout != "read" {
			t.Errorf("got %q", out.Stdout)
		}
		if !exists(l.at("deny-tags", ".config/x")) || !exists(l.at("deny-tags", "Library/x")) {
			t.Error("what was granted could not be written")
		}
	})
}

// systemRows are the paths of the image on the deny list.
var systemRows = []string{"/etc/ssh", "/etc/sudoers", "/etc/shadow", "/etc/ssl/private", "/etc/gshadow", "/etc/sudoers.d"}

// The same for the paths of the system, in an image where they are readable for all, and in one that has
// none of them.
func TestDenyListOfTheSystem(t *testing.T) {
	beside(t)
	images := map[string]string{
		"there": "RUN rm -rf /etc/ssh /etc/sudoers /etc/shadow /etc/ssl/private /etc/gshadow /etc/sudoers.d" +
			" && mkdir -p /etc/ssh/sub /etc/ssl/private/sub /etc/sudoers.d/sub && chmod 755 /etc/ssl/private" +
			" && for f in /etc/sudoers /etc/shadow /etc/gshadow /etc/ssh/key /etc/ssh/sub/key /etc/ssl/private/key /etc/ssl/private/sub/key /etc/sudoers.d/key; do echo " + secret + " > $f; chmod 644 $f; done\n",
		"not there": "RUN rm -rf /etc/ssh /etc/sudoers /etc/shadow /etc/ssl/private /etc/gshadow /etc/sudoers.d\n",
	}
	for name, steps := range images {
		t.Run(name, func(t *testing.T) {
			eachOwn(t, func(t *testing.T, l *lab) {
				build(t, l, l.image("system"), "FROM "+sandboxImage+"\nUSER root\n"+steps)
				l.stop(syscall.SIGTERM)
				l.environ = append(l.environ, "SANDBOXD_DOCKER_IMAGE="+l.image("system"))
				if err := l.start(); err != nil {
					t.Fatal(err)
				}
				l.put(t, "system", "plain/file", "read")
				l.register(t, "system")
				for _, c := range grantsOfAHome[:2] {
					expect(t, name, c.grants, l.try(t, "system", c.grants, systemRows), c.allowed)
				}
			})
		})
	}
}
