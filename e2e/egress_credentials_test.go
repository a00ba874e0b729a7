package e2e

import (
	"context"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// keyed is what origins answer at /keyed/, and what they have got there.
type keyed struct {
	mu  sync.Mutex
	got map[string][]string // the credentials that came, by host and path
}

func (k *keyed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	k.mu.Lock()
	at := r.Host + r.URL.Path
	k.got[at] = append(k.got[at], r.Header.Get("Authorization"))
	k.mu.Unlock()
	switch r.URL.Path {
	case "/keyed/redirect":
		http.Redirect(w, r, r.URL.Query().Get("to"), http.StatusFound)
	case "/keyed/stream":
		_, _ = fmt.Fprintln(w, "more")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	default:
		w.Header().Set("X-Echo", r.Header.Get("Authorization"))
		_, _ = fmt.Fprintln(w, "answered")
	}
}

func (k *keyed) of(host, path string) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.got[host+path])
}

// A call that has a credential gets it put into its requests, by whatever program makes them, and no other call does. The value
// itself is nowhere inside, and nowhere on the host in the clear.
func TestCredentials(t *testing.T) {
	beside(t)
	w := openWorld(t)
	w.serveTools(t)
	origins := &keyed{got: map[string][]string{}}
	w.Handle("GET /keyed/", origins)
	each(t, func(t *testing.T, p *place, runtime string) {
		house := filepath.Join(t.TempDir(), "house.pem")
		if err := os.WriteFile(house, w.CA(), 0o600); err != nil {
			t.Fatal(err)
		}
		l := newLabIn(t, p, runtime, append(worldSettings(w), "SANDBOXD_EGRESS_CA_FILE="+house)...)
		name, other := w.name(t, "keyed", w.shared), w.name(t, "other", w.shared)
		const value = "the-value-that-nobody-sees-0123456789"
		set := func(value string, change func(*types.PutCredential)) types.Credential {
			p := types.PutCredential{CredentialTerms: types.CredentialTerms{Hosts: []string{name}, Env: "API_TOKEN",
				CredentialPlace: types.CredentialPlace{Header: "Authorization", Template: "Bearer {secret}"}}, Value: &value}
			if change != nil {
				change(&p)
			}
			c, err := l.client.PutCredential(t.Context(), "api", p)
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		placeholder := set(value, nil).Placeholder
		l.registerAs(t, "keyed", types.Registration{UserID: "keyed", Permissions: types.Permissions{Network: true, Secrets: []string{"api"}}})
		call := func(command string, tags ...string) types.Output {
			return l.run(t, "keyed", types.Exec{Command: strings.NewReplacer("NAME", name, "OTHER", other).Replace(command),
				Permissions: append([]string{"@network"}, tags...), AllowedDomains: []string{name, other}, TimeoutMs: unhurried})
		}
		for tool, command := range map[string]string{
			"curl":     `curl -sSi -H "Authorization: Bearer $API_TOKEN" https://NAME/keyed/curl`,
			"curl1":    `curl -sSi --http1.1 https://NAME/keyed/curl1`,
			"python":   `python3 -c 'import urllib.request as r; print(r.urlopen("https://NAME/keyed/python").read().decode())'`,
			"node":     `node -e 'fetch("https://NAME/keyed/node", {headers: {authorization: "Bearer " + process.env.API_TOKEN}}).then(r => r.text()).then(console.log)'`,
			"wget":     `wget -qO- https://NAME/keyed/wget`,
			"somebody": `curl -sS -H "Authorization: Bearer of somebody else" https://NAME/keyed/somebody`,
		} {
			out := call(command, "@secret:api")
			if got := origins.of(name, "/keyed/"+tool); !strings.Contains(out.Stdout, "answered") || !slices.Equal(got, []string{"Bearer " + value}) {
				t.Errorf("%s: %q %q, the origin got %q", tool, out.Stdout, out.Stderr, got)
			}
			if strings.Contains(out.Stdout+out.Stderr, value) {
				t.Errorf("%s has seen the value", tool)
			}
		}
		if out := call("cd /tmp; rm -rf clone; git clone -q https://NAME/repo.git clone && cat clone/greeting", "@secret:api"); out.Failed {
			t.Errorf("git: %q", out.Stderr)
		}
		// The value is not inside, nor on the host in the clear.
		out := call(`env; cat /proc/[0-9]*/environ | tr '\0' '\n'; cat /proc/[0-9]*/cmdline; mount`, "@secret:api")
		if strings.Contains(out.Stdout, value) || !strings.Contains(out.Stdout, "API_TOKEN="+placeholder) {
			t.Errorf("inside: %.2000q", out.Stdout)
		}
		for _, c := range l.containersOf(t, "keyed") {
			if inspected, err := l.engine.ContainerInspect(t.Context(), c.ID); err != nil || strings.Contains(fmt.Sprintf("%+v %+v %+v", inspected.Config, inspected.HostConfig, inspected.Mounts), value) {
				t.Errorf("inspected, %v: the value is there", err)
			}
		}
		inTheClear(t, l.dir, value)
		if strings.Contains(l.log.String(), value) {
			t.Error("the log has it")
		}
		// The next call has none, even with the placeholder, while the other container is still there.
		out = call("curl -sS -H 'Authorization: Bearer " + placeholder + "' https://NAME/keyed/without; echo token=$API_TOKEN")
		if got := origins.of(name, "/keyed/without"); out.Failed || !strings.Contains(out.Stdout, "token=\n") || !slices.Equal(got, []string{"Bearer " + placeholder}) {
			t.Errorf("without: %q %q, the origin got %q", out.Stdout, out.Stderr, got)
		}
		if len(l.containersOf(t, "keyed")) < 2 {
			t.Error("a call without the credential ran in the container of one with it")
		}
		// A redirect takes nothing along, and a placeholder goes nowhere else.
		call("curl -sSL -o /dev/null 'https://NAME/keyed/redirect?to=https://OTHER/keyed/landed'", "@secret:api")
		if got := origins.of(other, "/keyed/landed"); !slices.Equal(got, []string{""}) {
			t.Errorf("after a redirect the origin got %q", got)
		}
		if out := call("curl -sS --max-time 20 -H \"X-Key: $API_TOKEN\" http://OTHER/keyed/plain", "@secret:api"); !strings.Contains(out.Stdout, "what stands for a credential") || len(origins.of(other, "/keyed/plain")) > 0 {
			t.Errorf("by plain HTTP: %q %q", out.Stdout, out.Stderr)
		}
		for _, host := range []string{"also." + name, other} {
			out := call("curl -sS --max-time 20 -H 'Host: "+host+"' https://NAME/keyed/host", "@secret:api")
			if !strings.Contains(out.Stdout, "another host") || len(origins.of(host, "/keyed/host")) > 0 {
				t.Errorf("for the host %s: %q %q", host, out.Stdout, out.Stderr)
			}
		}
		// What happened is told, with no query and no value.
		log, err := l.client.Decisions(t.Context(), client.DecisionQuery{UserID: "keyed"})
		if text := fmt.Sprintf("%+v", log); err != nil || strings.Contains(text, value) || !strings.Contains(text, "credential:api") || !strings.Contains(text, "GET /keyed/curl 200") || !strings.Contains(text, "GET /keyed/redirect 302") || strings.Contains(text, "?to=") {
			t.Errorf("%v: %.3000s", err, text)
		}
		// A new value counts from the next request on, in the same container.
		set("another-value", nil)
		if out := call("curl -sS https://NAME/keyed/rotated", "@secret:api"); out.Cold || !slices.Equal(origins.of(name, "/keyed/rotated"), []string{"Bearer another-value"}) {
			t.Errorf("after a change: cold %v, the origin got %q", out.Cold, origins.of(name, "/keyed/rotated"))
		}
		// After a restart the service has it, and so has the container.
		l.stop(syscall.SIGTERM)
		if err := l.start(); err != nil {
			t.Fatal(err)
		}
		if out := call("curl -sS https://NAME/keyed/restarted", "@secret:api"); out.Failed || !slices.Equal(origins.of(name, "/keyed/restarted"), []string{"Bearer another-value"}) {
			t.Errorf("after a restart: %q, the origin got %q", out.Stderr, origins.of(name, "/keyed/restarted"))
		}
		// Once it is taken away a stream ends, and no call gets it.
		ended := make(chan types.Output, 1)
		go func() {
			out, err := l.client.Exec(context.Background(), "keyed", types.Exec{Command: "curl -sS https://" + name + "/keyed/stream; echo ended $?",
				Permissions: []string{"@network", "@secret:api"}, AllowedDomains: []string{name}, TimeoutMs: unhurried})
			if err != nil {
				out.Stderr = err.Error()
			}
			ended <- out
		}()
		eventually(t, "the stream has begun", func() bool { return len(origins.of(name, "/keyed/stream")) > 0 })
		if err := l.client.RemoveCredential(t.Context(), "api"); err != nil {
			t.Fatal(err)
		}
		if out := <-ended; !strings.Contains(out.Stdout, "ended ") || strings.HasSuffix(out.Stdout, "ended 0\n") {
			t.Errorf("the stream: %q %q", endOf(out.Stdout), out.Stderr)
		}
		if _, err := l.client.Exec(t.Context(), "keyed", types.Exec{Command: "true", Permissions: []string{"@network", "@secret:api"}, AllowedDomains: []string{name}}); err == nil || !strings.Contains(err.Error(), "api") {
			t.Errorf("a call with a credential that is gone: %v", err)
		}
	})
}

// inTheClear reports files below a directory that have a text.
func inTheClear(t *testing.T, dir, text string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return nil // it has gone, or is a socket
		}
		if content, err := os.ReadFile(name); err == nil && strings.Contains(string(content), text) {
			t.Errorf("%s has it", name)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
