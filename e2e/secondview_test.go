package e2e

import (
	_ "embed"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/api/apitypes"
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
	less   apitypes.Restrictions
	hidden []string
}{
	{"view", "", none, apitypes.Restrictions{DenyRead: []string{"/home/vault", "/home/never"}}, []string{".ssh", ".aws", ".config/gh", "vault", "never", "apps/one", "apps/two"}},
	{"view", "", workspace, apitypes.Restrictions{DenyRead: []string{"/home/vault", "/home/never"}}, []string{".ssh", ".aws", ".config/gh", "vault", "never", "apps/one", "apps/two"}},
	{"view-app", "one", none, apitypes.Restrictions{}, []string{".ssh", "apps/two"}},
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
	l.registerAs(t, "view-app", apitypes.Registration{UserID: "view", Permissions: apitypes.Permissions{AppID: "one"}})
	before := below(t, l.at("view", "vault"))
	shows = map[string]bool{}
	for _, v := range viewers {
		rows, err := json.Marshal(under("/home/", v.hidden))
		if err != nil {
			t.Fatal(err)
		}
		out := l.run(t, v.id, apitypes.Exec{Permissions: v.grants, Restrictions: v.less, Argv: []string{"python3", "-c", secondView}, Env: map[string]string{"ROWS": string(rows)}})
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

// No command gets another view of its mounts that shows what is hidden.
func TestNoSecondView(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) { l.lookAround(t) })
}
