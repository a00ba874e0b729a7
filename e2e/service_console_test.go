package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/api/types"
)

// hostileTexts are what tenants may choose.
var hostileTexts = []string{`<img src=x onerror="document.title='taken'">`, "\u202egnp.exe", strings.Repeat("long ", 2000), "a\x1b[31mred\x07",
	"tag\u00ad\u061c\U000e0041s", "z" + strings.Repeat("\u0301", 40)}

// console is a page, and the service behind it in which things happen.
type console struct {
	*browser
	l   *lab
	axe string
	// tokens is the file of tokens, and process one of tess's that prints.
	tokens          string
	settings        func(text string) // writes those of the service
	process         types.StartedProcess
	allowed, denied string
}

// TestConsole opens every view of the console in a real browser, against a service in which things happen.
func TestConsole(t *testing.T) {
	t.Run("runsc", func(t *testing.T) {
		c := openConsole(t)
		c.showsAUser()
		c.showsHostileTexts()
		c.showsAll()
		c.showsProcesses()
		c.goesByKeys()
		c.showsEgress()
		c.explains()
		c.looksAtTheHost()
		c.stopsAProcess()
		c.outlivesTheService()
		c.endsWithItsSession()
		c.isClean()
	})
}

const everyonesToken = `{"name":"engine","token":"` + engineToken + `"}`

func openConsole(t *testing.T) *console {
	w := openWorldBeside(t, machine)
	address := freePort(t)
	c := &console{tokens: filepath.Join(t.TempDir(), "tokens.json")}
	writeTokens(t, c.tokens, everyonesToken+`,{"name":"of-tess","token":"`+scopedToken+`","users":["tess"]}`)
	c.l = newLabIn(t, machine, "runsc", append(worldSettings(w), "SANDBOXD_POOL_SIZE=2", exposePorts, "SANDBOXD_TCP_LISTEN="+address, "SANDBOXD_TCP_CONSOLE=true", "SANDBOXD_TCP_TOKENS_FILE="+c.tokens)...)
	c.settings = c.l.onFile(t)
	dir := filepath.Join(runDir, "console")
	if err := os.CopyFS(dir, os.DirFS("console")); err != nil {
		t.Fatal(err)
	}
	npm(t, dir, "ci", "--ignore-scripts")
	axe, err := os.ReadFile(filepath.Join(dir, "node_modules", "axe-core", "axe.min.js"))
	if err != nil {
		t.Fatal(err)
	}
	c.axe = string(axe)
	c.l.traveller(t, w, "tess")
	c.l.traveller(t, w, "ulla")
	c.allowed, c.denied = w.name(t, "one", w.shared), w.name(t, "another", w.shared) // which do not say the verdict themselves
	for i, text := range hostileTexts {
		c.l.run(t, "tess", types.Exec{Argv: []string{"echo", fmt.Sprint("hostile-", i), text}})
	}
	c.l.reach(t, "tess", hello("http://"+c.allowed)+"; curl -s -m 5 https://"+c.denied, c.allowed)
	c.process, err = c.l.client.StartProcess(t.Context(), "tess", types.StartProcess{Name: hostileTexts[0], Command: "i=0; while :; do echo beat-$i; i=$((i+1)); sleep 0.5; done"})
	if err != nil {
		t.Fatal(err)
	}
	c.isHostile(t)
	c.browser = openBrowser(t, "http://"+address)
	c.looks(1280, "light")
	return c
}

// isHostile writes such texts wherever else a tenant may choose one. What the service refuses is shown, too.
func (c *console) isHostile(t *testing.T) {
	c.l.registerAs(t, "mallory", types.Registration{UserID: "mallory", Permissions: types.Permissions{Network: true}})
	for i, text := range hostileTexts {
		id := fmt.Sprint("mallory-", i)
		_, err := c.l.client.Put(t.Context(), id, types.Registration{UserID: "mallory", Permissions: types.Permissions{WorkingDir: "/home/" + text, Network: true}})
		refusals := []error{err}
		_, err = c.l.client.Exec(t.Context(), "mallory", types.Exec{Permissions: []string{"@network", "@read:/home/" + text}, AllowedDomains: []string{text}, Command: text})
		refusals = append(refusals, err)
		_, err = c.l.client.StartProcess(t.Context(), "mallory", types.StartProcess{Name: text, Argv: []string{"printf", "%s\\n", text}, Env: map[string]string{"TEXT": text}})
		for _, err := range append(refusals, err) {
			if err != nil && !isKind(err, types.Invalid) && !isKind(err, types.Denied) {
				t.Error(err)
			}
		}
	}
}

func writeTokens(t *testing.T, file, tokens string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(`{"tokens":[`+tokens+`]}`), 0o600); err != nil {
		t.Fatal(err)
	}
}

// seen looks at a view as it is, and dark and on a phone, where nothing may be wider than that.
func (c *console) seen(view string) {
	c.t.Helper()
	c.accessible(c.axe, view)
	c.looks(375, "dark")
	c.accessible(c.axe, view+", dark and narrow")
	if wide, err := evaluate[int](c.browser, "document.documentElement.scrollWidth"); err != nil || wide > 375 {
		c.t.Errorf("%s is %d wide on a phone, %v", view, wide, err)
	}
	c.looks(1280, "light")
	c.is("no cell that runs into the next one", `[...document.querySelectorAll("td, tbody th")].every((d) => d.scrollWidth <= d.clientWidth + 1)`)
}

// showsAUser begins with a link to a user, which is kept through the sign-in.
func (c *console) showsAUser() {
	c.open("#/user/tess")
	c.show("x" + engineToken)
	c.shows("this token is not known")
	c.seen("signin")
	c.do(`{ const real = fetch; fetch = () => { fetch = real; window.unanswered = true; return Promise.reject(new TypeError("the network has changed")); }; }`)
	c.signIn(engineToken)
	c.is("the first request to have no answer", "window.unanswered")
	c.shows("User tess", "hostile-0", "hostile-3", "read-only", "filtered: HTTP and HTTPS", c.allowed, "\u241b[31m", "tag\u2423\u2423\u2423s", "z\u0301\u0301\u0301\u0301\u2423", "MiB")
	c.press("Log")
	c.shows("beat-")
	c.seen("user")
	c.boundsALog()
	running := inBackground(func() {
		c.l.run(c.t, "tess", types.Exec{Command: "echo so far; until [ -e /home/enough ]; do sleep 0.1; done"})
	})
	c.press("Output")
	c.shows("so far")
	c.l.run(c.t, "tess", types.Exec{Permissions: []string{"@workspace"}, Command: "touch /home/enough"})
	running()
	c.shows("It has ended.")
}

// showsHostileTexts has who chose them everywhere on a page that is still whole.
func (c *console) showsHostileTexts() {
	c.open("#/user/mallory")
	c.shows("mallory-0", "refused", hostileTexts[0])
	c.is("the processes", `document.querySelectorAll("[aria-label='Durable processes'] tbody tr").length > 2`)
	c.press("Log")
	c.is("a log", `document.querySelector("[role=log]").textContent.length > 2`)
	c.seen("hostile")
	c.do(`location.hash = "#/explain/mallory-0"`)
	c.shows("Works in", hostileTexts[0])
	c.seen("hostile-explain")
}

// boundsALog has a process print more than the page keeps.
func (c *console) boundsALog() {
	p, err := c.l.client.StartProcess(c.t.Context(), "tess", types.StartProcess{Name: "flood", Command: "head -c 300000 /dev/zero | tr '\\0' x; echo that was all; sleep 4077"})
	if err != nil {
		c.t.Fatal(err)
	}
	c.is("its log", `(() => { const r = [...document.querySelectorAll("tr")].find((r) => r.cells[0].textContent === "flood"); r?.querySelector("button").click(); return Boolean(r); })()`)
	c.is("the end of its log, and no more than is kept", `(() => { const text = document.querySelector("[role=log]").textContent; return text.endsWith("that was all\n") && text.length <= 100000; })()`)
	if err := c.l.client.RemoveProcess(c.t.Context(), "tess", p.ID); err != nil {
		c.t.Error(err)
	}
}

// inBackground runs something, and returns what waits for its end.
func inBackground(do func()) (wait func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	return func() { <-done }
}

func (c *console) showsAll() {
	c.open("#/overview")
	c.shows("tess", "Calls a minute", "MiB")
	c.l.run(c.t, "ulla", types.Exec{Command: "echo live; exit 3"})
	c.showsSoon("ulla")
	c.is("the calls of the hour", `[...document.querySelectorAll("table.numbers tbody tr")].some((r) => Number(r.cells[1].textContent) > 0 && r.cells[6].textContent.includes("ms"))`)
	c.l.firstCall(c.t, "viv", types.Exec{Command: "true"})
	c.is("two containers that wait for such users", `[...document.querySelectorAll(".tiles div")].some((d) => d.textContent === "Pooled2")`)
	c.l.firstCall(c.t, "wim", types.Exec{Command: "true"})
	c.is("the call that had one", `[...document.querySelectorAll("table.numbers tbody tr")].some((r) => r.cells[0].textContent === "pooled" && Number(r.cells[1].textContent) === 1)`)
	c.seen("overview")
}

// showsProcesses has one that crashes again and again, and one that serves at a port and is paused.
func (c *console) showsProcesses() {
	c.l.register(c.t, "looper")
	start := func(p types.StartProcess) types.StartedProcess {
		started, err := c.l.client.StartProcess(c.t.Context(), "looper", p)
		if err != nil {
			c.t.Fatal(err)
		}
		return started
	}
	start(types.StartProcess{Name: "loops", Command: "exit 7", KeepAlive: true})
	serves := start(types.StartProcess{Name: "serves", Command: "python3 -m http.server --bind 127.0.0.1 8000", Ready: &types.Ready{Port: 8000}, Expose: []types.Expose{{Port: 8000}}})
	c.open("#/overview")
	c.is("the loop in red", `[...document.querySelectorAll(".tiles div")].some((d) => d.textContent === "Crash-looping1" && d.querySelector("dd.bad"))`)
	c.is("whose it is", `[...document.querySelectorAll("[aria-label=Users] .bad")].some((s) => s.textContent.includes("1 crash-looping"))`)
	c.do(`(() => { const s = document.getElementById("search"); s.value = " LOOP"; s.dispatchEvent(new Event("input")); })()`)
	c.is("the only user of that name", `document.querySelectorAll("[aria-label=Users] .list [role=row]").length === 1`)
	c.shows("1 of ", "looper")
	c.seen("search")
	c.open("#/user/looper")
	c.shows("crash-looping", "starts again at", "code 7", serves.Expose[0].Address+" to port 8000", "ready")
	c.is("Stop while it waits", `[...document.querySelectorAll("tr")].some((r) => r.textContent.includes("starts again at") && [...r.querySelectorAll("button")].some((b) => b.textContent === "Stop"))`)
	c.looks(400, "light")
	c.is("all buttons in sight", `[...document.querySelectorAll(".acts > *")].every((b) => { const r = b.getBoundingClientRect(); return r.left >= 0 && r.right <= 400; })`)
	c.looks(1280, "light")
	c.press("Pause")
	c.is("the question", `(() => { const b = document.querySelector("dialog[open] button"); b?.click(); return Boolean(b); })()`)
	c.is("both to be paused", `[...document.querySelectorAll("td")].filter((d) => d.textContent.startsWith("paused")).length === 2`)
	c.seen("processes")
	c.press("Remove")
	c.is("the question", `Boolean(document.querySelector("dialog[open]"))`)
	c.do(`location.hash = "#/user/nobody-knows"`)
	c.shows("knows no such user")
	c.is("the question to go with its page", `!document.querySelector("dialog[open]")`)
	c.seen("unknown")
}

// goesByKeys uses no mouse: past the head of the page, and to another view by its link.
func (c *console) goesByKeys() {
	c.open("#/overview")
	c.do(`document.activeElement.blur()`)
	c.keys("\t")
	c.is("the way past the head to come first", `document.activeElement.id === "skip"`)
	c.keys("\r")
	c.is("the content to have the focus", `document.activeElement.id === "main"`)
	c.do(`document.querySelector('a[href="#/egress"]').focus()`)
	c.keys("\r")
	c.shows("Grouped by")
}

func (c *console) showsEgress() {
	c.do(`location.hash = "#/egress"`)
	c.shows(c.denied, "--allow-domain "+c.denied, "denied")
	c.l.reach(c.t, "ulla", "curl -s -m 5 https://soon."+c.denied, c.allowed)
	c.showsSoon("soon." + c.denied)
	c.press("Pause")
	c.l.reach(c.t, "ulla", "curl -s -m 5 https://later."+c.denied, c.allowed)
	c.is("what came meanwhile to be counted", `/Go on \([1-9]/.test(document.body.innerText)`)
	if strings.Contains(c.text(), "later."+c.denied) {
		c.t.Error("what came after the pause is shown")
	}
	c.press("Go on")
	c.shows("later." + c.denied)
	c.looks(400, "light")
	c.is("the verdicts in sight", `[...document.querySelectorAll("[aria-label=Decisions] [role=columnheader]")].find((d) => d.textContent === "Verdict").getBoundingClientRect().right <= 400`)
	c.looks(1280, "light")
	c.seen("egress")
}

// showsSoon makes sure that what has just happened is shown, and tells after how long.
func (c *console) showsSoon(text string) {
	c.t.Helper()
	begun := time.Now()
	c.shows(text)
	c.t.Logf("%s is shown after %s", text, time.Since(begun).Round(time.Millisecond))
}

func (c *console) explains() {
	c.do(`location.hash = "#/explain/tess/%40workspace"`)
	c.shows("writable", "hidden", "Network: none")
	c.do(fmt.Sprintf(`document.getElementById("names1").value = %q; document.getElementById("tags1").value = "@network"; document.querySelector("form").requestSubmit()`, c.allowed))
	c.shows("filtered: HTTP and HTTPS", "(differs)")
	c.seen("explain")
}

func (c *console) looksAtTheHost() {
	c.do(`location.hash = "#/doctor"`)
	c.shows("Commands can run", "Settings in force", "egress.decisionLog", "Check again", "120000 (2 min)", `"24h"`)
	c.seen("doctor")
	c.settings(`{"listen":"SOCKET.new"}`)
	c.l.reload(c.t)
	c.press("Check again")
	c.shows("need a restart: listen", "waits for a restart")
	c.settings(`{"listen":"SOCKET"}`)
	c.l.reload(c.t)
	c.press("Check again")
	c.is("nothing to wait for a restart", `!document.body.innerText.includes("waits for a restart")`)
	c.do(`history.back()`)
	c.shows("Second choice")
	c.do(`history.forward()`)
	c.shows("Commands can run")
}

// stopsAProcess does so when that was said twice.
func (c *console) stopsAProcess() {
	c.open("#/user/tess")
	c.press("Stop")
	c.shows("Stop the process")
	c.press("Cancel")
	c.do(`[...document.querySelectorAll("button")].find((b) => b.textContent === "Stop").focus()`)
	c.keys("\r") // opens the question, which
	c.is("the question", `Boolean(document.querySelector("dialog[open]"))`)
	c.keys("\u001b") // leaves
	c.is("no question", `!document.querySelector("dialog[open]")`)
	if now, err := c.l.client.Process(c.t.Context(), "tess", c.process.ID); err != nil || now.Status != types.ProcessRunning {
		c.t.Errorf("%+v, %v", now.Status, err)
	}
	c.failed.Store(true)
	eventually(c.t, "the process to stop", func() bool {
		if c.failed.Swap(false) { // whoever reads that it has failed presses again
			c.do(`[...document.querySelectorAll("button")].find((b) => b.checkVisibility() && b.textContent === "Stop")?.click(); document.querySelector("dialog[open] button")?.click()`)
		}
		now, err := c.l.client.Process(c.t.Context(), "tess", c.process.ID)
		return err == nil && now.Status == types.ProcessStopped
	})
	c.is("the process to be shown so", `[...document.querySelectorAll("td")].some((c) => c.textContent === "stopped")`)
}

// outlivesTheService has the service started anew while the page is open.
func (c *console) outlivesTheService() {
	c.l.stop(syscall.SIGTERM)
	c.shows("lost: the service does not answer")
	if err := c.l.start(); err != nil {
		c.t.Fatal(err)
	}
	c.shows("back: the service was away")
	c.l.run(c.t, "ulla", types.Exec{Command: "echo after"})
	c.open("#/user/ulla")
	c.shows("echo after")
}

// endsWithItsSession signs out in each way, and in with a token for one user, who sees that user alone.
func (c *console) endsWithItsSession() {
	out := `document.getElementById("out").hidden && Boolean(document.getElementById("token"))`
	c.loseCookies() // as after twelve hours
	c.do(`location.hash = "#/doctor"`)
	c.is("to be signed out without a cookie", out)
	c.signIn(engineToken)
	c.press("Sign out")
	c.signIn(scopedToken)
	c.open("#/overview")
	c.shows("tess")
	c.is("no pool", `[...document.querySelectorAll(".tiles div")].every((d) => d.hidden === d.textContent.startsWith("Pooled"))`)
	c.open("#/doctor")
	c.shows("Commands can run")
	if text := c.text(); strings.Contains(text, "Settings in force") {
		c.t.Errorf("who acts for one user is told of the host: %s", text)
	}
	c.open("#/egress")
	c.shows("Grouped by")
	if text := c.text(); strings.Contains(text, "ulla") {
		c.t.Errorf("of another user: %s", text)
	}
	stream := c.follows(scopedToken)
	writeTokens(c.t, c.tokens, everyonesToken)
	if err := c.l.daemon.Process.Signal(syscall.SIGHUP); err != nil {
		c.t.Fatal(err)
	}
	c.is("to be signed out", out)
	if _, err := io.Copy(io.Discard, stream); err != nil {
		c.t.Errorf("what a token follows that was taken back: %v", err)
	}
}

// follows opens a stream of events.
func (c *console) follows(token string) io.Reader {
	ctx, cancel := context.WithTimeout(c.t.Context(), 2*time.Minute)
	c.t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/v1/events", nil)
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	response, err := http.DefaultTransport.RoundTrip(req)
	if err != nil || response.StatusCode != http.StatusOK {
		c.t.Fatal(response, err)
	}
	c.t.Cleanup(func() { _ = response.Body.Close() })
	return response.Body
}
