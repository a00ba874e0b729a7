package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/api/types"
)

// day is a service whose agents work on ordinary things.
type day struct {
	*browser
	l        *lab
	pictures string // the folder for them; empty for none
}

// The names that the agents ask for. Nobody allows the last one.
const (
	packages  = "packages.example.com"
	tickets   = "tickets.example.com"
	telemetry = "telemetry.example.net"
)

// TestConsoleShowsAnOrdinaryDay has three agents work, and looks at what the console tells of it. The pictures of
// docs/console.md are of this day.
func TestConsoleShowsAnOrdinaryDay(t *testing.T) {
	t.Run("runsc", func(t *testing.T) {
		d := openDay(t)
		d.open("#/overview")
		d.signIn(engineToken)
		rounds := 1
		if d.pictures != "" {
			rounds = 4 // so that the hour has a shape
		}
		for round := range rounds {
			if round > 0 {
				time.Sleep(time.Minute)
			}
			d.passes(t)
		}
		d.open("#/overview")
		d.shows("ada", "ben", "carla", "1 running")
		d.keepPicture("overview")
		d.open("#/user/ada")
		d.shows("git commit", "npm test", "exit 1", "dev-server", packages)
		d.press("Log")
		d.shows("Serving HTTP")
		d.keepPicture("user")
		d.open("#/egress")
		d.shows(telemetry, "denied", packages, "allowed")
		d.keepPicture("egress")
		d.open("#/explain/ada/%40workspace")
		d.do(`document.getElementById("names1").value = "` + packages + `"; document.getElementById("tags1").value = "@network"; document.querySelector("form").requestSubmit()`)
		d.shows("filtered: HTTP and HTTPS", "(differs)")
		d.keepPicture("explain")
		d.isClean()
	})
}

func openDay(t *testing.T) *day {
	w := openWorldBeside(t, machine)
	for _, name := range []string{packages, tickets, telemetry} {
		w.DNS.SetA(name, time.Minute, w.shared)
	}
	address, tokens := freePort(t), filepath.Join(t.TempDir(), "tokens.json")
	writeTokens(t, tokens, everyonesToken)
	d := &day{pictures: os.Getenv("SANDBOX_E2E_PICTURES")}
	d.l = newLabIn(t, machine, "runsc", append(worldSettings(w), "SANDBOXD_POOL_SIZE=2", "SANDBOXD_TCP_LISTEN="+address,
		"SANDBOXD_TCP_CONSOLE=true", "SANDBOXD_TCP_TOKENS_FILE="+tokens)...)
	for user, dir := range map[string]string{"ada": "/home/shop", "ben": "/home/reports", "carla": "/home/notes"} {
		d.l.registerAs(t, user, types.Registration{UserID: user, Permissions: types.Permissions{WorkingDir: dir, Network: true}})
	}
	d.l.put(t, "ada", "shop/package.json", `{"name":"shop","version":"1.0.0","scripts":{"test":"node --test --test-reporter=dot"}}`)
	d.l.put(t, "ada", "shop/price.test.js", `const test = require("node:test"), assert = require("node:assert");
test("a price has two decimals", () => assert.equal((3).toFixed(2), "3.00"));
test("nothing costs nothing", () => assert.equal((0).toFixed(1), "0.00"));
`)
	d.l.put(t, "ben", "reports/report.py", "print(sum(range(1000)))\n")
	d.starts(t, "ada", types.StartProcess{Name: "dev-server", Command: "python3 -u -m http.server --bind 127.0.0.1 8000",
		Ready: &types.Ready{Port: 8000}})
	d.starts(t, "ben", types.StartProcess{Name: "nightly-report", Command: "while :; do python3 report.py; sleep 60; done"})
	d.browser = openBrowser(t, "http://"+address)
	d.looks(1280, "light")
	return d
}

func (d *day) starts(t *testing.T, user string, p types.StartProcess) {
	t.Helper()
	if _, err := d.l.client.StartProcess(t.Context(), user, p); err != nil {
		t.Fatal(err)
	}
}

// passes is some minutes of the agents' work.
func (d *day) passes(t *testing.T) {
	t.Helper()
	for _, call := range []struct{ user, command string }{
		{"ada", "git init -q . && git add -A && git commit -qm 'round prices' --allow-empty"},
		{"ada", "rg -n toFixed --glob '*.js'"},
		{"ada", "npm test"},
		{"ada", "git log --oneline | head -3"},
		{"ben", "python3 report.py"},
		{"ben", "du -sh . && ls -la"},
		{"carla", "node -e 'console.log(process.version)'"},
	} {
		d.l.run(t, call.user, types.Exec{Command: call.command, Permissions: []string{"@workspace"},
			Env: map[string]string{"GIT_AUTHOR_NAME": "Ada", "GIT_AUTHOR_EMAIL": "ada@example.com",
				"GIT_COMMITTER_NAME": "Ada", "GIT_COMMITTER_EMAIL": "ada@example.com"}})
	}
	d.l.reach(t, "ada", hello("http://"+packages), packages)
	d.l.reach(t, "carla", strings.Join([]string{hello("http://" + tickets), "curl -sS -m 5 https://" + telemetry}, "; "), packages, tickets)
}

func (d *day) keepPicture(name string) {
	if d.pictures == "" {
		return
	}
	if err := os.WriteFile(filepath.Join(d.pictures, "console-"+name+".png"), d.picture(), 0o644); err != nil {
		d.t.Error(err)
	}
}
