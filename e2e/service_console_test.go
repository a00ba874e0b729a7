package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/daycare-run/sandbox/api/types"
)

// browser is a page of a real browser, and what went wrong in it.
type browser struct {
	t    *testing.T
	ctx  context.Context
	base string

	mu     sync.Mutex
	faults []string
}

func openBrowser(t *testing.T, base string) *browser {
	t.Helper()
	program := "chromium"
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.UserDataDir(t.TempDir()), chromedp.WindowSize(1280, 1000),
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("force-prefers-reduced-motion", true), chromedp.WSURLReadTimeout(time.Minute))
	allocator, endAllocator := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, end := chromedp.NewContext(allocator)
	t.Cleanup(func() { end(); endAllocator() })
	b := &browser{t: t, ctx: ctx, base: base}
	err := chromedp.Do(ctx, chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, network.Enable, network.EnableParams{})
		if err == nil {
			_, err = cdp.Call(ctx, t, log.Enable, cdp.Empty{})
		}
		return err
	}))
	if err = errors.Join(err, chromedp.Listen(ctx, b.heard)); err != nil {
		t.Fatalf("chromium does not start (`scripts/setup.sh tests` installs it): %v", err)
	}
	return b
}

// heard notes what must not be: errors of scripts, and requests to other origins.
func (b *browser) heard(event any) {
	fault := ""
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		fault = e.ExceptionDetails.Text
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError {
			fault = "console.error was called"
		}
	case *log.EventEntryAdded: // what the network says, is that the service was away, or refuses
		if e.Entry.Level == log.EntryLevelError && e.Entry.Source != log.EntrySourceNetwork {
			fault = e.Entry.Text
		}
	case *network.EventRequestWillBeSent:
		if !strings.HasPrefix(e.Request.URL, b.base) {
			fault = "a request to " + e.Request.URL
		}
	}
	if fault != "" {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.faults = append(b.faults, fault)
	}
}

// evaluate returns what a script comes to; a promise is waited for.
func evaluate[T any](b *browser, script string) (T, error) {
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	return chromedp.Run(ctx, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
}

// do runs a script.
func (b *browser) do(script string) {
	b.t.Helper()
	if _, err := evaluate[bool](b, script+"; true"); err != nil {
		b.t.Fatalf("%.200s: %v; it shows\n%.3000s", script, err, b.text())
	}
}

func (b *browser) text() string {
	text, _ := evaluate[string](b, "document.body.innerText")
	return text
}

// shows waits until the page has all of these texts.
func (b *browser) shows(texts ...string) {
	b.t.Helper()
	for _, text := range texts {
		eventuallyWithin(b.t, time.Minute, fmt.Sprintf("the page to show %q", text), func() bool { return strings.Contains(b.text(), text) })
	}
}

func (b *browser) open(hash string) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, chromedp.Navigate(b.base+"/console/"+hash)); err != nil {
		b.t.Fatal(err)
	}
}

// is waits for a script to say true.
func (b *browser) is(what, script string) {
	b.t.Helper()
	eventuallyWithin(b.t, time.Minute, what, func() bool {
		yes, err := evaluate[bool](b, script)
		return err == nil && yes
	})
}

func (b *browser) press(text string) {
	b.t.Helper()
	b.is("a button "+text, fmt.Sprintf(`(() => { const b = [...document.querySelectorAll("button")].find((b) => b.checkVisibility() && b.textContent.startsWith(%q)); b?.click(); return Boolean(b); })()`, text))
}

// show gives a token to the page.
func (b *browser) show(token string) {
	b.t.Helper()
	b.is("to be asked for a token", `Boolean(document.getElementById("token"))`)
	b.do(fmt.Sprintf(`document.getElementById("token").value = %q; document.querySelector("form").requestSubmit()`, token))
}

func (b *browser) signIn(token string) {
	b.t.Helper()
	b.show(token)
	b.is("to be signed in", `!document.getElementById("out").hidden`)
}

// accessible has axe-core look at what is shown.
func (b *browser) accessible(axe, view string) {
	b.t.Helper()
	b.do(axe)
	found, err := evaluate[[]string](b, `axe.run({runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}).then((r) => r.violations.map((v) => v.id + ": " + v.nodes.map((n) => n.html.slice(0, 200) + " " + n.failureSummary).join("; ")))`)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, violation := range found {
		b.t.Errorf("%s: axe: %s", view, violation)
	}
}

// hostileTexts are what tenants may choose.
var hostileTexts = []string{`<img src=x onerror="document.title='taken'">`, "\u202egnp.exe", strings.Repeat("long ", 2000), "a\x1b[31mred\x07"}

// TestConsole opens every view of the console in a real browser, against a service in which things happen.
func TestConsole(t *testing.T) {
	t.Run("runsc", func(t *testing.T) {
		w := openWorldBeside(t, machine)
		tokens := filepath.Join(t.TempDir(), "tokens.json")
		write := func(text string) {
			if err := os.WriteFile(tokens, []byte(`{"tokens":[`+text+`]}`), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		all := `{"name":"engine","token":"` + engineToken + `"}`
		write(all + `,{"name":"of-tess","token":"` + scopedToken + `","users":["tess"]}`)
		address := freePort(t)
		l := newLabIn(t, machine, "runsc", append(worldSettings(w), "SANDBOXD_TCP_LISTEN="+address, "SANDBOXD_TCP_CONSOLE=true", "SANDBOXD_TCP_TOKENS_FILE="+tokens)...)
		dir := filepath.Join(runDir, "console")
		if err := os.CopyFS(dir, os.DirFS("console")); err != nil {
			t.Fatal(err)
		}
		npm(t, dir, "ci", "--ignore-scripts")
		axe, err := os.ReadFile(filepath.Join(dir, "node_modules", "axe-core", "axe.min.js"))
		if err != nil {
			t.Fatal(err)
		}
		l.traveller(t, w, "tess")
		l.traveller(t, w, "ulla")
		allowed, denied := w.name(t, "allowed", w.shared), w.name(t, "denied", w.shared)
		for i, text := range hostileTexts {
			l.run(t, "tess", types.Exec{Argv: []string{"echo", fmt.Sprint("hostile-", i), text}})
		}
		l.reach(t, "tess", hello("http://"+allowed)+"; curl -s -m 5 https://"+denied, allowed)
		process, err := l.client.StartProcess(t.Context(), "tess", types.StartProcess{Name: hostileTexts[0], Command: "i=0; while :; do echo beat-$i; i=$((i+1)); sleep 0.5; done"})
		if err != nil {
			t.Fatal(err)
		}
		base := "http://" + address
		b := openBrowser(t, base)
		pictures := os.Getenv("SANDBOX_E2E_PICTURES")
		seen := func(view string) {
			t.Helper()
			b.accessible(string(axe), view)
			if pictures != "" {
				png, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(pictures, "console-"+view+".png"), png, 0o644); err != nil {
					t.Error(err)
				}
			}
		}

		b.open("#/user/tess")
		b.show("x" + engineToken)
		b.shows("this token is not known")
		seen("signin")
		b.signIn(engineToken)
		// The link led to a user.
		b.shows("User tess", "hostile-0", "hostile-3", "read-only", "filtered: HTTP and HTTPS", allowed, "\u241b[31m")
		b.press("Log")
		b.shows("beat-")
		seen("user")

		b.open("#/overview")
		b.shows("tess", "Calls a minute")
		l.run(t, "ulla", types.Exec{Command: "echo live; exit 3"})
		b.shows("ulla")
		seen("overview")

		b.do(`location.hash = "#/egress"`)
		b.shows(denied, "--allow-domain "+denied, "denied")
		b.press("Pause")
		l.reach(t, "ulla", "curl -s -m 5 https://later."+denied, allowed)
		b.shows("paused", "Go on (")
		if strings.Contains(b.text(), "later."+denied) {
			t.Error("what came after the pause is shown")
		}
		b.press("Go on")
		b.shows("later." + denied)
		seen("egress")

		b.do(`location.hash = "#/explain/tess/%40workspace"`)
		b.shows("writable", "hidden", "Network: none")
		b.do(fmt.Sprintf(`document.getElementById("names1").value = %q; document.getElementById("tags1").value = "@network"; document.querySelector("form").requestSubmit()`, allowed))
		b.shows("filtered: HTTP and HTTPS", "(differs)")
		seen("explain")
		b.do(`location.hash = "#/doctor"`)
		b.shows("Commands can run", "Check again")
		seen("doctor")
		b.do(`history.back()`)
		b.shows("Second choice")
		b.do(`history.forward()`)
		b.shows("Commands can run")

		// A process is stopped, when that was said twice.
		b.open("#/user/tess")
		b.press("Stop")
		b.shows("Stop the process")
		b.press("Cancel")
		if now, err := l.client.Process(t.Context(), "tess", process.ID); err != nil || now.Status != types.ProcessRunning {
			t.Errorf("%+v, %v", now.Status, err)
		}
		b.press("Stop")
		b.is("the question", `(() => { const b = document.querySelector("dialog[open] button"); b?.click(); return Boolean(b); })()`)
		eventually(t, "the process to stop", func() bool {
			now, err := l.client.Process(t.Context(), "tess", process.ID)
			return err == nil && now.Status == types.ProcessStopped
		})
		b.is("the process to be shown so", `[...document.querySelectorAll("td")].some((c) => c.textContent === "stopped")`)

		// The service is started anew while the page is open.
		l.stop(syscall.SIGTERM)
		b.shows("lost: the service does not answer")
		if err := l.start(); err != nil {
			t.Fatal(err)
		}
		b.shows("back: the service was away")
		l.run(t, "ulla", types.Exec{Command: "echo after"})
		b.open("#/user/ulla")
		b.shows("echo after")

		// A token for one user sees that user; a token that goes ends its sessions.
		b.press("Sign out")
		b.signIn(scopedToken)
		b.open("#/overview")
		b.shows("tess")
		b.open("#/egress")
		b.shows("Grouped by")
		if text := b.text(); strings.Contains(text, "ulla") {
			t.Errorf("of another user: %s", text)
		}
		write(all)
		if err := l.daemon.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		b.is("to be signed out", `document.getElementById("out").hidden && Boolean(document.getElementById("token"))`)

		title, err := evaluate[string](b, "document.title")
		if err != nil {
			t.Fatal(err)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if title == "taken" || len(b.faults) > 0 {
			t.Errorf("title %q, faults %q", title, b.faults)
		}
	})
}
