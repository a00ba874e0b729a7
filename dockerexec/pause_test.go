package dockerexec

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/docker/docker/client"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/internal/engine"
)

// pausable is a Docker with one container, which notes what happens to it. Pausing takes a second, or none.
type pausable struct {
	status int // of pausing; 0 is done
	fails  int // how often that is so; 0 is always
	quick  bool
	did    []string
}

func (p *pausable) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := func(status int, body string) (*http.Response, error) {
		return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body))}, nil
	}
	switch _, what, _ := strings.Cut(r.URL.Path, "/containers/c/"); what {
	case "pause":
		if !p.quick {
			time.Sleep(time.Second)
		}
		if status := p.status; status != 0 {
			if p.fails--; p.fails == 0 {
				p.status = 0
			}
			return answer(status, `{"message":"no"}`)
		}
		p.did = append(p.did, what)
		return answer(http.StatusNoContent, "")
	case "json":
		return answer(http.StatusOK, `{"Id":"c","State":{"Running":true}}`)
	default:
		p.did = append(p.did, what)
		return answer(http.StatusNoContent, "")
	}
}

func (p *pausable) client(t *testing.T) engine.Engine {
	docker, err := client.NewClientWithOpts(client.WithVersion("1.41"), client.WithHost("tcp://engine:1"), client.WithHTTPClient(&http.Client{Transport: p}))
	if err != nil {
		t.Fatal(err)
	}
	return engine.NewDocker(docker)
}

// The first holder of a container pauses it and the last one resumes it; users wait for that.
func TestAContainerIsPausedWhileItIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pauses
		engine := &pausable{}
		docker := engine.client(t)
		first, err := p.hold(t.Context(), docker, "c")
		if err != nil {
			t.Fatal(err)
		}
		second, err := p.hold(t.Context(), docker, "c")
		if err != nil {
			t.Fatal(err)
		}
		used := false
		go func() {
			done, _ := p.use(t.Context(), docker, "c")
			used = true
			time.Sleep(time.Minute)
			done()
		}()
		_ = first()
		_ = first()
		synctest.Wait()
		if got := strings.Join(engine.did, " "); got != "pause" || used {
			t.Errorf("held by one: %s, used: %v", got, used)
		}
		_ = second()
		synctest.Wait()
		if got := strings.Join(engine.did, " "); got != "pause unpause" || !used {
			t.Errorf("held by none: %s, used: %v", got, used)
		}
		begun := time.Now()
		third, err := p.hold(t.Context(), docker, "c")
		if took := time.Since(begun); err != nil || took != time.Minute+time.Second {
			t.Errorf("held while it is used, after %v: %v", took, err)
		}
		waiting, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := p.use(waiting, docker, "c"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("used while it is held: %v", err)
		}
		_ = third()
		time.Sleep(time.Minute)
		if done, err := p.use(t.Context(), docker, "another"); err == nil {
			done()
		}
		if len(p.of) != 0 {
			t.Errorf("left: %v", p.of)
		}
	})
}

// Callers that hold a container without end, some of them always, leave it half of the time.
func TestHoldersThatTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pauses
		engine := &pausable{quick: true}
		docker := engine.client(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for i := range 2 {
			go func() {
				time.Sleep(time.Duration(i) * time.Second)
				for {
					resume, err := p.hold(ctx, docker, "c")
					if err != nil {
						return
					}
					time.Sleep(2 * time.Second)
					_ = resume()
				}
			}()
		}
		time.Sleep(2500 * time.Millisecond)
		begun := time.Now()
		done, err := p.use(ctx, docker, "c")
		if took := time.Since(begun); err != nil || took > 5*time.Second {
			t.Fatalf("used after %v: %v", took, err)
		}
		done()
		free, samples := 0, 0
		for ctx.Err() == nil {
			p.mu.Lock()
			if c := p.of["c"]; c == nil || c.holders == 0 {
				free++
			}
			samples++
			p.mu.Unlock()
			time.Sleep(10 * time.Millisecond)
		}
		if free < samples/3 {
			t.Errorf("it may go on for %d of %d", free, samples)
		}
		time.Sleep(time.Minute) // until they have ended
	})
}

// A frozen container stays paused for its holders, which take no time from it by that, and resumes for its users.
func TestAFrozenContainerIsHeldAndUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pauses
		engine := &pausable{quick: true}
		docker := engine.client(t)
		did := func(want string) {
			t.Helper()
			if got := strings.Join(engine.did, " "); got != want {
				t.Errorf("Docker did %q, not %q", got, want)
			}
		}
		always := func() bool { return true }
		if frozen, err := p.freeze(t.Context(), docker, "c", func() bool { return false }); frozen || err != nil {
			t.Errorf("frozen although it is used by now: %v, %v", frozen, err)
		}
		did("")
		if frozen, err := p.freeze(t.Context(), docker, "c", always); !frozen || err != nil {
			t.Fatalf("%v, %v", frozen, err)
		}
		did("pause")
		for range 10 { // more than maxPaused in all
			resume, err := p.hold(t.Context(), docker, "c")
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			if err := resume(); err != nil {
				t.Fatal(err)
			}
		}
		if strings.Contains(strings.Join(engine.did, " "), "unpause") {
			t.Errorf("it was woken: %q", engine.did)
		}
		engine.did = nil
		begun := time.Now()
		done, err := p.use(t.Context(), docker, "c")
		if err != nil || time.Since(begun) != 0 {
			t.Fatalf("after %v: %v", time.Since(begun), err)
		}
		did("unpause")
		done()

		// Frozen while it is held, and wanted meanwhile: whoever holds it last lets it go on.
		engine.did = nil
		resume, err := p.hold(t.Context(), docker, "c")
		if err != nil {
			t.Fatal(err)
		}
		if frozen, err := p.freeze(t.Context(), docker, "c", always); !frozen || err != nil {
			t.Fatalf("%v, %v", frozen, err)
		}
		giving, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := p.use(giving, docker, "c"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("used while it is held: %v", err)
		}
		_ = resume()
		did("pause unpause")
		p.found("found")
		if done, err := p.use(t.Context(), docker, "found"); err == nil {
			done()
		}
		time.Sleep(time.Minute)
		if done, err := p.use(t.Context(), docker, "another"); err == nil {
			done()
		}
		if len(p.of) != 0 {
			t.Errorf("left: %v", p.of)
		}
	})
}

// A container that cannot be paused is held by nobody, and keeps running.
func TestAContainerThatCannotBePaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pauses
		engine := &pausable{status: http.StatusInternalServerError}
		docker := engine.client(t)
		if _, err := p.hold(t.Context(), docker, "c"); err == nil || strings.Join(engine.did, " ") != "unpause" {
			t.Errorf("%v, %v", err, engine.did)
		}
		engine.status = http.StatusNotFound
		resume, err := p.hold(t.Context(), docker, "c")
		if err != nil {
			t.Fatalf("one that is gone: %v", err)
		}
		_ = resume()
	})
}

// Of two starts the later waits if one's container could change what the other's runtime looks up.
func TestStartsThatDisturbEachOther(t *testing.T) {
	const home = "/users/a/home"
	bind := engine.BindMount
	mask := bind("/masks/closed", "/home/.ssh", true)
	shared := bind("/srv/shared", "/mnt/shared", false)
	for name, tt := range map[string]struct {
		one, other []specs.Mount
		want       bool
	}{
		"a writer and a mask":            {[]specs.Mount{bind(home, "/home", false)}, []specs.Mount{bind(home, "/home", true), mask}, true},
		"a writer below":                 {[]specs.Mount{bind(home+"/p", "/home/p", false)}, []specs.Mount{bind(home, "/home", true), mask}, false},
		"a writer where the mask is":     {[]specs.Mount{bind(home+"/p", "/home/p", false)}, []specs.Mount{bind(home, "/home", true), bind("/masks/closed", "/home/p/q", true)}, true},
		"readers":                        {[]specs.Mount{bind(home, "/home", true), mask}, []specs.Mount{bind(home, "/home", true), mask}, false},
		"two users":                      {[]specs.Mount{bind("/users/b/home", "/home", false), mask}, []specs.Mount{bind(home, "/home", false), mask}, false},
		"two users with a shared mount":  {[]specs.Mount{bind("/users/b/home", "/home", true), shared}, []specs.Mount{shared, bind("/masks/closed", "/mnt/shared/x", true)}, true},
		"a name that begins in like way": {[]specs.Mount{bind(home+"2", "/home", false)}, []specs.Mount{bind(home, "/home", true), mask}, false},
	} {
		one, err := newStart(Spec{}, Prepared{}, tt.one)
		if err != nil {
			t.Fatal(err)
		}
		other, err := newStart(Spec{}, Prepared{}, tt.other)
		if err != nil {
			t.Fatal(err)
		}
		if one.disturbs(other) != tt.want || other.disturbs(one) != tt.want {
			t.Errorf("%s: %v", name, !tt.want)
		}
	}
	if _, err := mountPoints([]specs.Mount{{Type: engine.VolumeType, Destination: "/tmp"}, bind("/masks/closed", "/tmp/x", true)}); err == nil {
		t.Error("a mount in a volume is not refused")
	}
}
