package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// browser is a page of a real browser, and what went wrong in it.
type browser struct {
	t    *testing.T
	ctx  context.Context
	base string
	torn atomic.Bool // a script of the page did not come, so none of it runs
	// failed says that a request has failed as the network has changed.
	failed atomic.Bool

	mu     sync.Mutex
	faults []string
}

// networkChanged is how Chromium fails what waits for a connection while an address of the machine comes or goes, as those of other
// scenarios' containers do.
const networkChanged = "net::ERR_NETWORK_CHANGED"

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

// heard notes what must not happen: errors of scripts, and requests to other origins.
func (b *browser) heard(event any) {
	fault := ""
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		fault = e.ExceptionDetails.Text
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError {
			fault = "console.error was called"
		}
	case *log.EventEntryAdded: // network errors only say that the service was away, or refused
		if e.Entry.Level == log.EntryLevelError && e.Entry.Source != log.EntrySourceNetwork {
			fault = e.Entry.Text
		}
	case *network.EventLoadingFailed:
		if e.ErrorText != networkChanged {
			return
		}
		b.torn.Store(b.torn.Load() || e.Type == network.ResourceTypeScript)
		b.failed.Store(true)
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

// evaluate returns the value of a script, and waits for a promise. A page that is torn is loaded again before.
func evaluate[T any](b *browser, script string) (T, error) {
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	if b.torn.Swap(false) {
		if err := chromedp.Do(ctx, chromedp.Reload()); err != nil {
			b.torn.Store(true)
			return *new(T), err
		}
	}
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
	eventually(b.t, "the page comes", func() bool {
		err := chromedp.Do(b.ctx, chromedp.Navigate(b.base+"/console/"+hash))
		var failed *chromedp.LoadError
		if err != nil && !(errors.As(err, &failed) && failed.ErrorText == networkChanged) {
			b.t.Fatal(err)
		}
		return err == nil
	})
}

// is waits until a script returns true.
func (b *browser) is(what, script string) {
	b.t.Helper()
	var err error
	defer func() {
		if b.t.Failed() {
			b.t.Logf("%v; the page shows\n%.3000s", err, b.text())
		}
	}()
	eventuallyWithin(b.t, time.Minute, what, func() bool {
		var yes bool
		yes, err = evaluate[bool](b, script)
		return err == nil && yes
	})
}

func (b *browser) press(text string) {
	b.t.Helper()
	b.is("a button "+text, fmt.Sprintf(`(() => { const b = [...document.querySelectorAll("button")].find((b) => b.checkVisibility() && b.textContent.startsWith(%q)); b?.click(); return Boolean(b); })()`, text))
}

// keys types the text.
func (b *browser) keys(text string) {
	b.t.Helper()
	if _, err := chromedp.Run(b.ctx, chromedp.KeyEvent(text)); err != nil {
		b.t.Fatal(err)
	}
}

// show enters a token into the page.
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

// accessible checks what is shown with axe-core.
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

// looks sets the width of the page and its colour scheme.
func (b *browser) looks(width int64, scheme string) {
	b.t.Helper()
	err := chromedp.Do(b.ctx, chromedp.EmulateViewport(width, 900), chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
		return err
	}))
	if err != nil {
		b.t.Fatal(err)
	}
}

// picture returns a screenshot.
func (b *browser) picture() []byte {
	b.t.Helper()
	png, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		b.t.Fatal(err)
	}
	return png
}

// loseCookies makes the browser forget its session.
func (b *browser) loseCookies() {
	b.t.Helper()
	err := chromedp.Do(b.ctx, chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, network.ClearBrowserCookies, cdp.Empty{})
		return err
	}))
	if err != nil {
		b.t.Fatal(err)
	}
}

// isClean fails the test if a script failed, another origin was asked, or a text that a tenant chose became markup.
func (b *browser) isClean() {
	b.t.Helper()
	title, err := evaluate[string](b, "document.title")
	if err != nil {
		b.t.Fatal(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if title == "taken" || len(b.faults) > 0 {
		b.t.Errorf("title %q, faults %q", title, b.faults)
	}
}
