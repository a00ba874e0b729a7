package e2e

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
)

// touchApps prints which files of apps a command can read (r), change (w) and make (c).
const touchApps = `cd /home
for app in one two; do for f in code.txt data/d.txt; do
	grep -q "$app" "apps/$app/$f" 2>/dev/null && echo "r:$app/$f"
	(echo more >> "apps/$app/$f") 2>/dev/null && echo "w:$app/$f"
done; for d in . data; do (echo made > "apps/$app/$d/made") 2>/dev/null && echo "c:$app/$d" && rm "apps/$app/$d/made"; done; done
(mkdir apps/three) 2>/dev/null && echo c:three
mv apps apps2 2>/dev/null && echo moved && cat apps2/*/code.txt
mv apps/one apps/four 2>/dev/null && echo moved one
mv apps/one/data apps/one/data2 2>/dev/null && echo moved data
ln -s /home/apps/two /tmp/two; cat /tmp/two/code.txt 2>/dev/null; ln -s /proc/self/root/home/apps/two/data /tmp/twod; cat /tmp/twod/d.txt 2>/dev/null; rm -f /tmp/two /tmp/twod
ln apps/two/code.txt /tmp/hard 2>/dev/null && cat /tmp/hard
find apps -name '*.txt' 2>/dev/null | sort | tr '\n' ' '; true`

// An app sees its own directory and writes to its data; nobody else sees into any app, not even from
// another working directory; an app does not see the others.
func TestAppsAreApart(t *testing.T) {
	own := "r:one/code.txt r:one/data/d.txt w:one/data/d.txt c:one/data apps/one/code.txt apps/one/data/d.txt"
	cases := []struct {
		id     string
		box    types.Permissions
		grants []string
		want   string
	}{
		{"app-none", types.Permissions{}, none, ""},
		{"app-none", types.Permissions{}, workspace, ""},
		{"app-elsewhere", types.Permissions{WorkingDir: "/home/project", WriteDirs: []string{"/home"}}, none, ""},
		{"app-elsewhere", types.Permissions{WorkingDir: "/home/project", WriteDirs: []string{"/home"}}, []string{"@write:/home"}, ""},
		{"app-one", types.Permissions{AppID: "one"}, none, own},
		{"app-one-data", types.Permissions{AppID: "one", WorkingDir: "/home/apps/one/data"}, none, own},
		{"app-one-data", types.Permissions{AppID: "one", WorkingDir: "/home/apps/one/data"}, workspace, own},
		{"app-two", types.Permissions{AppID: "two", WriteDirs: []string{"/home"}}, []string{"@write:/home"}, // by links, too
			"r:two/code.txt r:two/data/d.txt w:two/data/d.txt c:two/data code of two data of two more apps/two/code.txt apps/two/data/d.txt"},
	}
	eachRuntime(t, func(t *testing.T, l *lab) {
		for _, app := range []string{"one", "two"} {
			l.put(t, "apps", "apps/"+app+"/code.txt", "code of "+app+"\n")
			l.put(t, "apps", "apps/"+app+"/data/d.txt", "data of "+app+"\n")
		}
		for _, c := range cases {
			l.registerAs(t, c.id, types.Registration{UserID: "apps", Permissions: c.box})
		}
		before := below(t, l.at("apps", "apps"))
		for _, c := range cases {
			got := strings.Join(strings.Fields(l.bash(t, c.id, c.grants, touchApps)), " ")
			if got != c.want {
				t.Errorf("%s with %v:\n%s\nwant\n%s", c.id, c.grants, got, c.want)
			}
			l.checkAppCalls(t, c.id, c.box.AppID)
		}
		if after := below(t, l.at("apps", "apps")); !slices.Equal(after, before) {
			t.Errorf("there is %v", after)
		}
		for _, app := range []string{"one", "two"} {
			if got := holds(l.at("apps", "apps/"+app+"/code.txt")); got != "code of "+app+"\n" {
				t.Errorf("the code of %s: %q", app, got)
			}
		}
		// No tag opens what is another's.
		for id, tag := range map[string]string{"app-none": "@read:/home/apps/one", "app-elsewhere": "@write:/home/apps", "app-one": "@read:/home/apps/two/data", "app-two": "@write:/home/apps/two"} {
			if _, err := l.client.Exec(context.Background(), id, types.Exec{Permissions: []string{tag}, Command: "true"}); kindOf(err) != types.Denied {
				t.Errorf("%s %s: %v", id, tag, err)
			}
		}
		if _, err := l.client.Exec(context.Background(), "app-one", types.Exec{Permissions: workspace, Command: "true"}); kindOf(err) != types.Denied || !strings.Contains(err.Error(), "/home/apps/one/data alone") {
			t.Errorf("@workspace for an app: %v", err)
		}
	})
}

// checkAppCalls holds every call of the API against what an app's sandbox may do.
func (l *lab) checkAppCalls(t *testing.T, id, app string) {
	t.Helper()
	for _, of := range []string{"one", "two"} {
		for _, file := range []string{"code.txt", "data/d.txt"} {
			for name, call := range l.fileCalls(id, "/home/apps/"+of+"/"+file) {
				reads := name == "read" || name == "read binary" || name == "download"
				if app == of && (reads || file == "data/d.txt") {
					continue // it may
				}
				content, err := call(t.Context())
				if kindOf(err) != types.Denied {
					t.Errorf("%s %s of %s/%s: %q, %v", id, name, of, file, content, err)
				}
			}
		}
		if app != of {
			if _, err := l.client.Stat(t.Context(), id, "/home/apps/"+of); kindOf(err) != types.Denied {
				t.Errorf("%s stat %s: %v", id, of, err)
			}
			if _, err := l.client.ListDir(t.Context(), id, "/home/apps/"+of+"/data"); kindOf(err) != types.Denied {
				t.Errorf("%s list %s: %v", id, of, err)
			}
			continue
		}
		if got := l.read(t, id, "/home/apps/"+of+"/code.txt"); got != "code of "+of+"\n" {
			t.Errorf("%s reads %q", id, got)
		}
		written := l.write(t, id, "/home/apps/"+of+"/data/api.txt", "by the API")
		if holds(written.ResolvedPath) != "by the API" || l.bash(t, id, none, "cat /home/apps/"+of+"/data/api.txt") != "by the API" {
			t.Errorf("%s: what was written is not there", id)
		}
		if err := l.client.Remove(t.Context(), id, "/home/apps/"+of+"/data/api.txt", false); err != nil {
			t.Error(err)
		}
	}
	listing, err := l.client.ListDir(t.Context(), id, "/home/apps")
	names := []string{}
	for _, e := range listing.Entries {
		names = append(names, e.Name)
	}
	if want := strings.Fields(app); err != nil || !slices.Equal(names, want) {
		t.Errorf("%s lists apps: %v, %v, want %v", id, names, err, want)
	}
}
