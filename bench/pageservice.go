package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/api"
	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/calls"
	"github.com/daycare-run/sandbox/internal/console"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/events"
	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/sandbox"
	"github.com/daycare-run/sandbox/internal/sandboxtest"
)

// The size of the service behind the page, and how often a call and a decision come.
const (
	pageUsers, pageContainers, pageDecisions = 200, 1000, 10_000
	pagePeriod                               = 50 * time.Millisecond
)

// plainPage is the page with which the console's frames are compared: a tall one that only the
// browser works on.
const plainPage = `<!doctype html><title>plain</title><div class="list" id="list"></div><script>
const list = document.getElementById("list");
list.style = "height:600px;overflow-y:auto";
for (let i = 0; i < 1000; i++) list.append(Object.assign(document.createElement("p"), {textContent: "line " + i}));
</script>`

// runPage serves the console and the API on a port of the loopback, of a service whose containers
// are made up: there is no engine below. Events, decisions, HTTP and JSON are the real ones.
func runPage(ctx context.Context, text string, stdout io.Writer) error {
	var dir string
	if err := readPlan(text, &dir); err != nil {
		return err
	}
	t := &unattended{dir: dir}
	defer t.end()
	var service *sandbox.Service
	log, stream := decisions.New(pageDecisions), (*events.Stream)(nil)
	service = sandboxtest.New(t, sandboxtest.Options{
		Executor: sandboxtest.Executor{List: madeUp()},
		Config: func(cfg *sandbox.Config) {
			stream = events.New()
			log = decisions.New(pageDecisions, func(d decisions.Decision) { stream.Publish(events.Decision, d.User, d) })
			cfg.Decisions, cfg.Events = log, stream
		},
	})
	for i := range pageUsers {
		if _, _, err := service.Put(pageUser(i), sandbox.Registration{UserID: pageUser(i)}); err != nil {
			return err
		}
	}
	for i := range pageDecisions {
		log.Add(madeUpDecision(i))
	}
	go func() {
		for i := 0; ctx.Err() == nil; i++ {
			time.Sleep(pagePeriod)
			happen(log, stream, i)
		}
	}()
	handler, err := pageHandler(service)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler}
	if err := answer(stdout, listener.Addr().String()); err != nil {
		return errors.Join(err, listener.Close())
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func pageHandler(service *sandbox.Service) (http.Handler, error) {
	everyone := func(*http.Request) (access.Caller, error) {
		return access.Caller{Name: "bench", Users: ids.Everyone()}, nil
	}
	page, err := console.New(console.Config{
		API:     api.New(service, api.Config{Authenticator: everyone, Version: "bench", MaxRequest: 1 << 20, MaxOutput: 1 << 20, Log: zerolog.Nop()}),
		SignIn:  func(string) (string, bool) { return "", true },
		Admit:   func(*http.Request) error { return nil },
		SealKey: make([]byte, 32),
	})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/", page)
	mux.HandleFunc("/plain", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, plainPage)
	})
	return mux, nil
}

func pageUser(i int) string { return fmt.Sprintf("user-%03d", i%pageUsers) }

func pageContainer(i int) string { return fmt.Sprintf("sandbox-bench-%04d", i%pageContainers) }

func madeUp() []dockerexec.Summary {
	list := make([]dockerexec.Summary, pageContainers)
	for i := range list {
		list[i] = dockerexec.Summary{
			Name: pageContainer(i), ID: fmt.Sprintf("%064x", i), User: pageUser(i), Fingerprint: dockerexec.Fingerprint(fmt.Sprintf("%064x", i)),
			Runtime: "runsc", State: []string{"idle", "frozen", "idle", "busy"}[i%4], Since: time.Now(), LastUsed: time.Now(),
		}
	}
	return list
}

func madeUpDecision(i int) decisions.Decision {
	d := decisions.Decision{User: pageUser(i), Container: pageContainer(i), Name: fmt.Sprintf("host-%05d.example.org", i), Via: decisions.DNS, Type: "A", Verdict: decisions.Allowed}
	if i%3 == 0 {
		d.Verdict, d.Reason = decisions.Denied, "the name is not allowed for this call"
	}
	return d
}

// happen makes a call, from its beginning to its end, and a decision.
func happen(log *decisions.Log, stream *events.Stream, i int) {
	call := calls.Event{ID: uint64(i + 1), What: calls.Began, Sandbox: pageUser(i), Command: "make test", Grants: "@network", In: pageContainer(i)}
	stream.Publish(events.Call, pageUser(i), call)
	call.What = calls.Running
	stream.Publish(events.Call, pageUser(i), call)
	call.What = calls.Ended
	call.Exec = calls.Exec{Outcome: "ok", InContainer: true, Start: 5 * time.Millisecond, Run: 20 * time.Millisecond, Total: 30 * time.Millisecond}
	stream.Publish(events.Call, pageUser(i), call)
	log.Add(madeUpDecision(i % pageDecisions))
}

// unattended stands in for the test that sandboxtest needs, where there is none.
type unattended struct {
	testing.TB
	dir      string
	cleanups []func()
}

func (u *unattended) Helper()                  {}
func (u *unattended) TempDir() string          { return u.dir }
func (u *unattended) Context() context.Context { return context.Background() }
func (u *unattended) Cleanup(f func())         { u.cleanups = append(u.cleanups, f) }
func (u *unattended) Error(args ...any)        { fmt.Fprintln(os.Stderr, args...) }
func (u *unattended) Fatal(args ...any)        { panic(fmt.Sprint(args...)) } // ends the helper with the reason

func (u *unattended) end() {
	for _, f := range u.cleanups {
		f()
	}
}
