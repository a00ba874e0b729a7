package e2e

import (
	"context"
	_ "embed"
	"encoding/json"
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

// plantSecrets makes all denied paths of a home, as what they usually are. The closed directory that a
// mask may stand on goes, or is opened and filled.
func (l *lab) plantSecrets(t *testing.T, user string) {
	t.Helper()
	for i, row := range policy.DeniedInHome() {
		if info, err := os.Lstat(l.at(user, row)); err == nil && info.Mode().Perm() == 0 {
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

// checkRows looks at the host: what is there is what the test has put, or the closed and empty
// directory that a mask stands on.
func (l *lab) checkRows(t *testing.T, user string, planted bool) {
	t.Helper()
	for _, row := range policy.DeniedInHome() {
		name := l.at(user, row)
		info, err := os.Lstat(name)
		switch {
		case !planted && err == nil:
			if stat := info.Sys().(*syscall.Stat_t); !info.IsDir() || stat.Uid != 0 || info.Mode().Perm() != 0 || len(below(t, name)) > 0 {
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
