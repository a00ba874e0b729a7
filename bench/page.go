package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/chromedp/chromedp"
	"golang.org/x/sync/errgroup"
)

// looking is what the console's page costs, in a browser and in the service.
type looking struct {
	// content is the time from the first answer until a row of a list is drawn.
	content []time.Duration
	// plain is how a tall page without any work scrolls; views are how the pages of the console
	// scroll, by name.
	plain frames
	views []viewFrames
	// one is how much more of a core the service takes with a page open than without; ten is the
	// additional memory with ten.
	one float64
	ten int64
}

type viewFrames struct {
	name string
	frames
}

// frames are the frames of a scrolling list.
type frames struct {
	// Work is the time from each frame's beginning until the page's own thread was done: events,
	// scripts, style, layout and paint.
	Work []float64
	// Late is how many frames came more than half a frame late, for whatever reason: here the
	// browser has no GPU.
	Late int
}

const (
	pageFrames = 200
	frameTime  = 1000.0 / 60
)

// over returns how many frames had more work on the page's thread than fits into a frame.
func (f frames) over() (n int) {
	for _, ms := range f.Work {
		if ms > frameTime {
			n++
		}
	}
	return n
}

func (f frames) sample() sample {
	var s sample
	for _, ms := range f.Work {
		s = append(s, time.Duration(ms*float64(time.Millisecond)))
	}
	return s
}

// scrolling scrolls a list by two rows in each frame. A message sent in a frame arrives when the
// frame's work is over.
const scrolling = `(async () => {
  const list = [...document.querySelectorAll(".list")].sort((a, b) => b.scrollHeight - a.scrollHeight)[0];
  const channel = new MessageChannel(), work = [];
  let late = 0, last = 0, over;
  channel.port1.onmessage = () => over(performance.now());
  for (let i = 0; i < %d; i++) {
    const begun = await new Promise(requestAnimationFrame);
    if (last && begun - last > 25) late++;
    last = begun;
    list.scrollTop += 68;
    const ended = await new Promise((resolve) => { over = resolve; channel.port2.postMessage(0); });
    work.push(ended - begun);
  }
  return { Work: work, Late: late };
})()`

// firstRow resolves to the time from the answer with the page itself until a row is drawn.
const firstRow = `new Promise((resolve) => {
  const look = () => document.querySelector(".list > [role=row]") ? requestAnimationFrame(() => resolve(performance.now() - performance.getEntriesByType("navigation")[0].responseEnd)) : setTimeout(look, 2);
  look();
})`

// measurePage starts a service and a browser, and measures the page.
func (l *lab) measurePage(ctx context.Context) (found looking, err error) {
	dir := filepath.Join(l.dir, fmt.Sprint("page-", l.pass))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return found, err
	}
	served, err := startHelper(ctx, helpPage, dir, 0)
	if err != nil {
		return found, err
	}
	defer func() { err = errors.Join(err, served.stop()) }()
	var address string
	if err := served.next(&address); err != nil {
		return found, err
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath("chromium"), chromedp.NoSandbox,
		chromedp.UserDataDir(filepath.Join(dir, "browser")), chromedp.WindowSize(1280, 1000), chromedp.Flag("disable-dev-shm-usage", true))
	allocator, endAllocator := chromedp.NewExecAllocator(ctx, options...)
	defer endAllocator()
	tab, end := chromedp.NewContext(allocator)
	defer end()
	if err := chromedp.Do(tab, chromedp.Navigate("about:blank")); err != nil { // the browser lives as long as the first context
		return found, fmt.Errorf("chromium does not start (scripts/setup.sh tests installs it): %w", err)
	}
	p := page{tab: tab, base: "http://" + address, pid: served.process.Process.Pid}
	return found, p.measure(&found)
}

// page is a browser tab and the service's process.
type page struct {
	tab  context.Context
	base string
	pid  int
}

func (p page) measure(found *looking) error {
	resting, err := p.busy()
	if err != nil {
		return err
	}
	before, err := p.memory()
	if err != nil {
		return err
	}
	if err := p.signIn(); err != nil {
		return err
	}
	for range 3 {
		ms, err := visit[float64](p, "/console/?"+fmt.Sprint(time.Now().UnixNano())+"#/overview", firstRow)
		if err != nil {
			return err
		}
		found.content = append(found.content, time.Duration(ms*float64(time.Millisecond)))
	}
	time.Sleep(settle)
	if found.one, err = p.busy(); err != nil {
		return err
	}
	found.one -= resting
	for _, view := range []string{"overview", "egress", "user/" + pageUser(0)} {
		f, err := visit[frames](p, "/console/?"+view+"#/"+view, fmt.Sprintf("(async () => { await %s; await new Promise((r) => setTimeout(r, 1500)); return %s; })()", firstRow, fmt.Sprintf(scrolling, pageFrames)))
		if err != nil {
			return err
		}
		found.views = append(found.views, viewFrames{view, f})
	}
	if found.plain, err = visit[frames](p, "/plain", fmt.Sprintf(scrolling, pageFrames)); err != nil {
		return err
	}
	after, err := p.openTen()
	found.ten = after - before
	return err
}

// visit opens a page and returns the result of a script there.
func visit[T any](p page, path, script string) (T, error) {
	ctx, cancel := context.WithTimeout(p.tab, time.Minute)
	defer cancel()
	err := chromedp.Do(ctx, chromedp.Navigate(p.base+path))
	var found T
	if err == nil {
		found, err = chromedp.Run(ctx, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
	}
	if err != nil {
		return found, fmt.Errorf("%s: %w", path, err)
	}
	return found, nil
}

func (p page) signIn() error {
	_, err := visit[bool](p, "/console/", `(async () => {
  const token = document.getElementById("token");
  token.value = "any";
  token.form.requestSubmit();
  while (document.getElementById("out").hidden) await new Promise((r) => setTimeout(r, 10));
  return true;
})()`)
	return err
}

// busy returns how much of a core the service takes.
func (p page) busy() (float64, error) {
	begun := time.Now()
	before, err := processorTime(p.pid)
	if err != nil {
		return 0, err
	}
	time.Sleep(10 * time.Second)
	after, err := processorTime(p.pid)
	return float64(after-before) / float64(time.Since(begun)), err
}

func (p page) memory() (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid))
	if err != nil {
		return 0, err
	}
	return statusBytes(text, "VmRSS")
}

// openTen sends the requests of ten pages, and returns the most memory that the service has
// meanwhile.
func (p page) openTen() (int64, error) {
	for range 10 {
		follower, err := http.Get(p.base + "/v1/events?replay=true")
		if err != nil {
			return 0, err
		}
		defer follower.Body.Close()
		go func() { _, _ = io.Copy(io.Discard, follower.Body) }()
	}
	var most int64
	for range 5 {
		var asking errgroup.Group
		for range 10 {
			asking.Go(func() error {
				for _, path := range []string{"containers?usage=true", "sandboxes", "health", "egress/decisions?limit=10000"} {
					answer, err := http.Get(p.base + "/v1/" + path)
					if err != nil {
						return err
					}
					_, err = io.Copy(io.Discard, answer.Body)
					if err = errors.Join(err, answer.Body.Close()); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err := asking.Wait(); err != nil {
			return 0, err
		}
		memory, err := p.memory()
		if err != nil {
			return 0, err
		}
		most = max(most, memory)
	}
	return most, nil
}
