package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
)

// pooledBox is what pool.mjs says.
type pooledBox struct {
	ID, Was, Ahead, Wrote string
	CreateMs, FirstMs     float64
}

// boxAPI is the wire of E2B without a client.
type boxAPI struct{ url, key string }

func newBoxAPI(environ []string) (a boxAPI) {
	for _, entry := range environ {
		switch name, value, _ := strings.Cut(entry, "="); name {
		case "E2B_API_URL":
			a.url = value
		case "E2B_API_KEY":
			a.key = value
		}
	}
	return a
}

func (a boxAPI) do(ctx context.Context, method, path, body string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, a.url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("X-API-Key", a.key)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= http.StatusBadRequest {
		err = fmt.Errorf("%s: %s", resp.Status, text)
	}
	return text, err
}

func (a boxAPI) call(t *testing.T, method, path, body string) []byte {
	t.Helper()
	text, err := a.do(t.Context(), method, path, body)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// boxContainers are the containers of sandboxes that last, by Docker's id, without those in the pool.
func (l *lab) boxContainers(t *testing.T) map[string]container.Summary {
	t.Helper()
	list, err := l.listContainers()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]container.Summary{}
	for _, c := range list {
		bound, err := filepath.Glob(l.path("data/pool/bound/" + c.ID + ".json"))
		if err != nil {
			t.Fatal(err)
		}
		if of := c.Labels["run.daycare.sandbox.lasting"]; of != "" && (!strings.HasPrefix(of, ".pool/") || len(bound) > 0) {
			found[c.ID] = c
		}
	}
	return found
}

// A stock client's sandbox comes from the pool, is one that nobody had, is found by the next service, and leaves nothing.
// A shell has waited there for its first command.
func TestStockClientsSandboxesFromThePool(t *testing.T) {
	beside(t)
	dir := stockClients(t)
	each(t, func(t *testing.T, p *place, runtime string) {
		w := openWorldBeside(t, p)
		settings, environ := e2bSettings(t)
		l := newLabIn(t, p, runtime, append(append(worldSettings(w), settings...), "SANDBOXD_POOL_SIZE=2")...)
		node := func(environ []string, argv ...string) (b pooledBox) {
			t.Helper()
			out := inDir(t, dir, environ, append([]string{"node", "pool.mjs"}, argv...)...)
			if err := json.Unmarshal([]byte(out), &b); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			return b
		}
		run := func(argv ...string) pooledBox { return node(append(environ, "E2B_TEST_NETWORK=none"), argv...) }
		hits := func() float64 { return l.metric(t, `sandboxd_pool_first_calls_total{outcome="hit"}`) }
		first := run("make")
		if hits() != 0 {
			t.Error("there was a pool before anybody came")
		}
		had, boxes := map[string]bool{}, []pooledBox{first}
		for i := range 2 {
			l.ready(t, 2)
			b := run("make")
			t.Logf("create %.1f ms, first command %.1f ms", b.CreateMs, b.FirstMs)
			if b.Was != "" || b.Wrote != "/home/user\n" || b.Ahead != "ahead.2.so\n" || hits() != float64(i+1) {
				t.Errorf("%+v, %v hits", b, hits())
			}
			boxes = append(boxes, b)
			for id := range l.boxContainers(t) {
				had[id] = true
			}
			if len(had) != len(boxes) {
				t.Errorf("%d sandboxes have had %d containers", len(boxes), len(had))
			}
		}
		others := 0
		t.Run("with a network", func(t *testing.T) {
			for i, outcome := range []string{"empty", "hit"} {
				allowed, denied := w.name(t, "allowed", w.shared), w.name(t, "denied", w.shared)
				first := fmt.Sprintf("%s; %s --resolve %s:80:%s; true", hello(allowed), hello(denied), denied, w.shared)
				before := l.metric(t, `sandboxd_pool_first_calls_total{outcome="`+outcome+`"}`)
				node(append(environ, "E2B_TEST_NETWORK="+allowed, "E2B_TEST_FIRST="+first), "make")
				others++
				if got := l.metric(t, `sandboxd_pool_first_calls_total{outcome="`+outcome+`"}`); got != before+1 {
					t.Errorf("sandbox %d: %v of %s, %v before", i, got, outcome, before)
				}
				if got, refused := w.arrivals(allowed), w.arrivals(denied); len(got) != 1 || len(refused) != 0 {
					t.Errorf("sandbox %d: its first command's %v and %v arrived", i, got, refused)
				}
				if outcome == "empty" {
					l.ready(t, 4)
				}
			}
		})
		t.Run("the service is killed while it binds", func(t *testing.T) {
			for i := range 3 {
				eventually(t, "a container waits", func() bool { return l.metric(t, "sandboxd_pool_containers") > 0 })
				l.killWhile(t, time.Duration(4*i)*time.Millisecond, func() {
					_, _ = newBoxAPI(environ).do(t.Context(), http.MethodPost, "/sandboxes", `{"templateID": "base", "timeout": 600, "allow_internet_access": false}`)
				})
			}
			for _, b := range boxes {
				if got := run("look", b.ID); got.Was != strings.Repeat("/home/user\n", 3) {
					t.Errorf("after it: %+v", got)
				}
			}
		})
		clearBoxes(t, l, newBoxAPI(environ), len(boxes)+others)
	})
}

// clearBoxes removes all sandboxes, also those that were made whose maker has not been told, and nothing is left of any.
func clearBoxes(t *testing.T, l *lab, api boxAPI, least int) {
	t.Helper()
	var all []struct{ SandboxID string }
	if err := json.Unmarshal(api.call(t, http.MethodGet, "/v2/sandboxes", ""), &all); err != nil || len(all) < least {
		t.Fatalf("%d sandboxes, %v", len(all), err)
	}
	for _, b := range all {
		api.call(t, http.MethodDelete, "/sandboxes/"+b.SandboxID, "")
	}
	eventually(t, "nothing is left of sandboxes", func() bool {
		users, err := filepath.Glob(l.path("users/s*"))
		records, recordErr := filepath.Glob(l.path("data/pool/bound/*.json"))
		return err == nil && recordErr == nil && len(users) == 0 && len(records) == 0 && len(l.boxContainers(t)) == 0
	})
}
