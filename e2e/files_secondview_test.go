package e2e

import (
	_ "embed"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
)

// secondView looks at the home in every way in which a program can get another view of what is mounted.
//
//go:embed testdata/second_view.py
var secondView string

// viewers are the calls that look, each with directories that are hidden from it.
var viewers = []struct {
	id     string
	app    string
	grants []string
	less   types.Restrictions
	hidden []string
}{
	{"view", "", none, types.Restrictions{DenyRead: []string{"/home/vault", "/home/never"}}, []string{".ssh", ".aws", ".config/gh", "vault", "never", "apps/one", "apps/two"}},
	{"view", "", workspace, types.Restrictions{DenyRead: []string{"/home/vault", "/home/never"}}, []string{".ssh", ".aws", ".config/gh", "vault", "never", "apps/one", "apps/two"}},
	{"view-app", "one", none, types.Restrictions{}, []string{".ssh", "apps/two"}},
}

// lookAround has each viewer look, and returns which of its ways show what is not hidden. No way may show or
// change what is.
func (l *lab) lookAround(t *testing.T) (shows map[string]bool) {
	t.Helper()
	l.put(t, "view", "plain/file", "plain")
	for _, dir := range []string{".ssh", ".config/gh", "vault", "vault/sub", "apps/one", "apps/two"} {
		l.put(t, "view", dir+"/key", secret)
	}
	l.register(t, "view")
	l.registerAs(t, "view-app", types.Registration{UserID: "view", Permissions: types.Permissions{AppID: "one"}})
	before := below(t, l.at("view", "vault"))
	shows = map[string]bool{}
	for _, v := range viewers {
		rows, err := json.Marshal(under("/home/", v.hidden))
		if err != nil {
			t.Fatal(err)
		}
		out := l.run(t, v.id, types.Exec{Permissions: v.grants, Restrictions: v.less, Argv: []string{"python3", "-c", secondView}, Env: map[string]string{"ROWS": string(rows)}})
		lines := strings.Split(strings.TrimSpace(out.Stdout), "\n")
		if out.Failed || lines[len(lines)-1] != "ended" || lines[0] != "itself: shows plain" {
			t.Fatalf("%s with %v: %+v\n%s\n%s", v.id, v.grants, out.Result, out.Stdout, out.Stderr)
		}
		t.Logf("%s with %v:\n%s", v.id, v.grants, out.Stdout)
		for i, line := range lines {
			name, said, ok := strings.Cut(line, ": ")
			if !ok && line != "ended" || strings.Contains(line, "BROKEN") {
				t.Errorf("%s with %v: %s (before %q)", v.id, v.grants, line, strings.Join(lines[i+1:min(i+3, len(lines))], ", "))
			}
			shows[name] = shows[name] || said == "shows plain"
		}
		for _, hidden := range v.hidden {
			if exists(l.at("view", hidden+"/planted")) {
				t.Errorf("%s with %v: something was put into %s", v.id, v.grants, hidden)
				_ = os.Remove(l.at("view", hidden+"/planted"))
			}
		}
	}
	if after := below(t, l.at("view", "vault")); !slices.Equal(after, before) {
		t.Errorf("in the vault there is %v", after)
	}
	return shows
}

// No command gets another view of its mounts, for none can make namespaces or mounts. What it sees of other
// processes is no other view.
func TestNoSecondView(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		for way, shown := range l.lookAround(t) {
			if shown && way != "itself" && way != "other processes" {
				t.Errorf("there is a second view: %s", way)
			}
		}
	})
}

// Where commands may make namespaces and mounts, they do get other views, and no way shows what is hidden: under
// gVisor the gofer's mounts are behind all of them, under runc the kernel takes no mount apart that came from outside.
func TestMasksHoldWithUserNamespaces(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		ways := []string{"bind with all below", "unmount", "move", "chroot", "nested runtime"}
		if strings.HasSuffix(t.Name(), "/runsc") {
			ways = append(ways, "overlay", "overlay with a layer to write to", "overlay of the root", "fsmount", "detached tree with all below", "pivot_root")
		}
		shows := l.lookAround(t)
		for _, way := range ways {
			if !shows[way] {
				t.Errorf("it shows nothing: %s", way) // the setting is for nothing
			}
		}
	}, "SANDBOXD_DOCKER_ALLOW_USER_NAMESPACES=true")
}

// refusedCalls makes the system calls that commands have no use for.
//
//go:embed testdata/refused_calls.py
var refusedCalls string

// Each is refused, also where Docker's own profile is off.
func TestRefusedSystemCalls(t *testing.T) {
	beside(t)
	for name, setting := range map[string]string{"": "false", " without the engine's profile": "true"} {
		t.Run("seccomp"+name, func(t *testing.T) {
			eachOwn(t, func(t *testing.T, l *lab) {
				l.register(t, "calls")
				out := l.run(t, "calls", types.Exec{Argv: []string{"python3", "-c", refusedCalls}})
				if want := "clone3 ENOSYS\nno call ENOSYS\nx32 ENOSYS\n32 bits refused\n"; out.Stdout != want || out.Failed {
					t.Errorf("got %q %q, want %q", out.Stdout, out.Stderr, want)
				}
				if got := l.sh(t, "calls", "python3 -c 'import threading; t = threading.Thread(target=lambda: print(1)); t.start(); t.join()'; setsid --wait sh -c 'sleep 0 & wait; echo 2'"); got != "1\n2" {
					t.Errorf("threads and processes: %q", got)
				}
			}, "SANDBOXD_DOCKER_UNCONFINED_SECURITY="+setting)
		})
	}
}
