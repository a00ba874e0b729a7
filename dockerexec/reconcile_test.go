package dockerexec

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	containertypes "github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/client"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/quota"
)

// preparerLog is a mountPreparer that remembers what it was asked.
type preparerLog struct {
	mu    sync.Mutex
	calls []string
}

func (g *preparerLog) note(call string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls = append(g.calls, call)
}

func (g *preparerLog) Prepare(s Spec) (Prepared, error) {
	g.note("prepare " + s.User)
	return Prepared{}, nil
}
func (g *preparerLog) Release(s Spec)             { g.note("release " + s.User) }
func (g *preparerLog) Rebind(from, to Spec) error { g.note("rebind " + from.User); return nil }

// fakeEngine answers what a test has answers for, by the end of the path, and with an error all else.
func fakeEngine(t *testing.T, answers map[string]any) engine.Engine {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "engine.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		for end, answer := range answers {
			if strings.HasSuffix(r.URL.Path, end) && answer == nil {
				w.WriteHeader(http.StatusNotFound)
				_, _ = w.Write([]byte(`{"message":"not there"}`))
				return
			} else if strings.HasSuffix(r.URL.Path, end) {
				_ = json.NewEncoder(w).Encode(answer)
				return
			}
		}
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = w.Write([]byte(`{"message":"not in this test"}`))
	})}}
	server.Start()
	t.Cleanup(server.Close)
	docker, err := client.NewClientWithOpts(client.WithHost("unix://"+listener.Addr().String()), client.WithVersion("1.41"))
	if err != nil {
		t.Fatal(err)
	}
	return engine.NewDocker(docker)
}

// A comparison that has failed is made again, although Docker's events have begun and go on.
func TestAComparisonThatFailsIsMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newScriptedEngine(t)
		spec := engine.spec("alice")
		spec.Persistent = "s1"
		id := engine.add(spec.labels(), "")
		engine.failing = 3
		e := engine.executor()
		e.Start(t.Context(), noProcesses{})
		defer e.Shutdown()
		time.Sleep(compareAgain + time.Second)
		if e.runningDetached(id) != nil {
			t.Fatal("found in spite of the engine")
		}
		time.Sleep(compareAgain)
		synctest.Wait()
		if e.runningDetached(id) == nil {
			t.Error("it was not found when the engine listed it again")
		}
	})
}

// A container that is listed while this service starts it is not taken over as well: what it has is given back once.
func TestAComparisonDuringAStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newScriptedEngine(t)
		var count atomic.Int64
		engine.attach, engine.unasked = answers(t, &count), true
		e := engine.executor()
		defer e.Shutdown()
		engine.started = func(string) {
			if err := e.Reconcile(t.Context()); err != nil {
				t.Error(err)
			}
		}
		spec := engine.spec("alice")
		spec.Persistent = "s1"
		made, err := e.StartPersistent(t.Context(), spec, quota.Token{})
		if err == nil {
			err = e.RemoveProcess(t.Context(), made.ID)
		}
		synctest.Wait()
		if got := fmt.Sprint(e.cfg.Mounts.(*preparerLog).calls); err != nil || got != "[prepare alice release alice]" {
			t.Errorf("%s, %v", got, err)
		}
	})
}

// A container that runs without the service, and ends while Docker's events are interrupted, is given up with all that it had.
func TestUnheardEndReleasesAll(t *testing.T) {
	for kind, change := range map[string]func(*Spec){
		"lasting": func(s *Spec) { s.Persistent = "s1" },
		"process": func(s *Spec) { s.Process = Process{ID: "p1", Dir: s.SpoolDir} },
	} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := newScriptedEngine(t)
				e := engine.executor()
				defer e.Shutdown()
				spec := engine.spec("alice")
				change(&spec)
				id := engine.add(spec.labels(), "")
				for _, runs := range []bool{true, false} {
					if !runs {
						engine.lose(id, false)
					}
					if err := e.Reconcile(t.Context()); err != nil || e.PersistentRuns(id) != runs {
						t.Errorf("it runs: %t, and was taken for one that does: %t, %v", runs, e.PersistentRuns(id), err)
					}
				}
				synctest.Wait()
				if got := fmt.Sprint(e.cfg.Mounts.(*preparerLog).calls); got != "[prepare alice release alice]" {
					t.Error(got)
				}
			})
		})
	}
}

// While the platform is not known, what runs is known all the same, and nothing is stale. Before that nothing is known to have ended.
func TestRunningContainersAreKnownWithoutAPlatform(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newScriptedEngine(t)
		var count atomic.Int64
		engine.attach, engine.unasked = answers(t, &count), true
		e := engine.executor()
		unknown := errors.New("the image is not there")
		e.cfg.Platform = func(context.Context) (Platform, error) { return Platform{}, unknown }
		defer e.Shutdown()
		spec := engine.spec("alice")
		spec.Persistent = "s1"
		id := engine.add(spec.labels(), "")
		engine.sleeps("bob")
		if !e.PersistentRuns(id) {
			t.Error("it was taken for one that has ended")
		}
		if err := e.Reconcile(t.Context()); !errors.Is(err, unknown) {
			t.Error(err)
		}
		if !e.PersistentRuns(id) || e.PersistentRuns("another") {
			t.Error("what runs is not known")
		}
		stream, err := e.AskPersistent(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		_ = stream.Close()
		synctest.Wait()
		if len(engine.containers) != 2 || len(e.calls) != 1 {
			t.Errorf("%d containers are left, and %d of users are known", len(engine.containers), len(e.calls))
		}
	})
}

// What one container needs on the host may be released with another that is given up, so all adopted containers must
// be known before the first can fail.
func TestAdoptedContainersAreLaidBeforeOneIsCleared(t *testing.T) {
	const users = 20
	var list []containertypes.Summary
	platform := Platform{Instance: "test"}
	answers := map[string]any{}
	for i := range users {
		spec := Spec{Platform: platform, User: string(rune('a' + i))}
		answers["/"+strings.Repeat(spec.User, 64)] = nil // gone when it is removed
		list = append(list, containertypes.Summary{ID: strings.Repeat(spec.User, 64), State: containertypes.StateRunning, Labels: spec.labels()})
	}
	answers["/containers/json"] = list
	preparer := &preparerLog{}
	e := New(fakeEngine(t, answers), Config{
		Instance: "test", Mounts: preparer, ImagesChanged: func() {}, Log: zerolog.Nop(),
		Platform: func(context.Context) (Platform, error) { return platform, nil },
	})
	_ = e.Reconcile(t.Context()) // the engine cannot list volumes
	e.work.Wait()
	e.Shutdown()
	prepared := 0
	for i, call := range preparer.calls {
		switch {
		case strings.HasPrefix(call, "prepare "):
			prepared++
		case prepared < users:
			t.Fatalf("call %d is %q after %d of %d were prepared", i, call, prepared, users)
		}
	}
	if len(preparer.calls) != 2*users {
		t.Errorf("%d calls instead of %d: %v", len(preparer.calls), 2*users, preparer.calls)
	}
}

// A process that somebody takes off its network goes on, and its masks stay; a container of calls is of no use then.
func TestContainersThatAreTakenOffTheirNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newScriptedEngine(t)
		spec := engine.spec("alice")
		spec.Process = Process{ID: "p1", Dir: spec.SpoolDir}
		ids := []string{engine.add(spec.labels(), ""), engine.has("bob")}
		e := engine.executor()
		e.Start(t.Context(), noProcesses{})
		defer e.Shutdown()
		synctest.Wait()
		engine.mu.Lock()
		for _, listener := range engine.listeners {
			for _, id := range ids {
				listener <- events.Message{Type: events.NetworkEventType, Action: events.ActionDisconnect, Actor: events.Actor{Attributes: map[string]string{"container": id}}}
			}
		}
		engine.mu.Unlock()
		synctest.Wait()
		if log := e.cfg.Mounts.(*preparerLog); e.runningDetached(ids[0]) == nil || slices.Contains(log.calls, "release alice") {
			t.Errorf("the process's container is given up: %v", log.calls)
		}
		if left := e.Containers(); len(left) != 0 {
			t.Errorf("that of calls is there: %v", left)
		}
	})
}
