package dockerexec

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/docker/docker/client"

	"github.com/daycare-run/sandbox/internal/engine"
)

// lateEngine is a Docker with one container that answers when it likes. It does what it was asked for also when its
// caller has left, one thing after the other, not always in the order in which it was asked, and not always at all.
type lateEngine struct {
	turn chan struct{} // has one while it does something to the container

	mu     sync.Mutex
	random *rand.Rand
	paused bool
	ended  bool
	busy   int // requests that have not come to their end
}

func (d *lateEngine) chance(percent int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.random.IntN(100) < percent
}

func (d *lateEngine) delay(most time.Duration) {
	d.mu.Lock()
	wait := time.Duration(d.random.Int64N(int64(most)))
	d.mu.Unlock()
	time.Sleep(wait)
}

func (d *lateEngine) RoundTrip(r *http.Request) (*http.Response, error) {
	status := make(chan int, 1)
	d.mu.Lock()
	d.busy++
	d.mu.Unlock()
	_, what, _ := strings.Cut(r.URL.Path, "/containers/c/")
	go func() {
		d.delay(50 * time.Millisecond) // until somebody looks at the request
		d.turn <- struct{}{}
		defer func() { <-d.turn }()
		status <- d.do(what)
		d.mu.Lock()
		d.busy--
		d.mu.Unlock()
	}()
	select {
	case code := <-status:
		d.mu.Lock()
		body := `{"message":"no"}`
		if what == "json" {
			body = `{"Id":"c","State":{"Running":true,"Paused":false}}`
			if d.paused {
				body = strings.Replace(body, "false", "true", 1)
			}
		}
		d.mu.Unlock()
		return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body))}, nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

func (d *lateEngine) do(what string) int {
	if what == "json" {
		return http.StatusOK
	}
	slow, refuses, late := d.chance(3), d.chance(10), d.chance(50)
	most := 200 * time.Millisecond
	if slow {
		most = 4 * time.Second
	}
	d.delay(most)
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.ended:
		return http.StatusNotFound
	case what == "kill":
		d.ended = true
	case what == "pause" && d.paused, what == "unpause" && !d.paused:
		return http.StatusConflict
	case what == "pause" && refuses:
		d.paused = late // it may say so and have done it
		return http.StatusInternalServerError
	case what == "pause" || what == "unpause":
		d.paused = what == "pause"
	default:
		return http.StatusNotFound
	}
	return http.StatusNoContent
}

func (d *lateEngine) is() (paused, ended bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.paused, d.ended
}

// The record of a container is what Docker has, whoever comes, waits and gives up in whichever order: it runs for its
// users, is paused for its holders, and is as the record says when nobody is left.
func TestTheRecordIsWhatDockerHas(t *testing.T) {
	for seed := range uint64(300) {
		synctest.Test(t, func(t *testing.T) {
			d := &lateEngine{turn: make(chan struct{}, 1), random: rand.New(rand.NewPCG(seed, 13))}
			client, err := client.NewClientWithOpts(client.WithVersion("1.41"), client.WithHost("tcp://engine:1"), client.WithHTTPClient(&http.Client{Transport: d}))
			if err != nil {
				t.Fatal(err)
			}
			docker := engine.NewDocker(client)
			var p pauses
			var stopped bool // by who alone stops it and has it go on
			check := func(who string, want bool) {
				if paused, ended := d.is(); paused != want && !ended {
					t.Errorf("seed %d: %s, and Docker has it paused: %v", seed, who, paused)
				}
			}
			users := func(ctx context.Context) {
				done, err := p.use(ctx, docker, "c")
				if err != nil {
					return
				}
				check("it is used", false)
				d.delay(300 * time.Millisecond)
				check("it is still used", false)
				done()
			}
			holders := func(ctx context.Context) {
				resume, err := p.hold(ctx, docker, "c")
				if err != nil {
					return
				}
				check("it is held", true)
				d.delay(300 * time.Millisecond)
				check("it is still held", true)
				_ = resume()
			}
			freezers := func(ctx context.Context) {
				wants := d.chance(80)
				_, _ = p.freeze(ctx, docker, "c", func() bool { return wants })
			}
			stoppers := func(ctx context.Context) {
				if stopped = p.stop(ctx, docker, "c") == nil; stopped {
					check("it was paused on request", true)
					d.delay(time.Second)
					check("it is paused on request", true)
					if _, err := p.use(ctx, docker, "c"); ctx.Err() == nil && !errors.Is(err, ErrPaused) {
						t.Errorf("seed %d: it was used while it is paused on request: %v", seed, err)
					}
				}
				if err := p.goOn(context.WithoutCancel(ctx), docker, "c"); err == nil {
					stopped = false
				}
			}
			var all sync.WaitGroup
			for _, do := range []func(context.Context){users, users, users, holders, holders, freezers, freezers, stoppers} {
				all.Go(func() {
					for range 6 {
						d.delay(500 * time.Millisecond)
						ctx, cancel := context.WithCancel(t.Context())
						if d.chance(40) {
							giveUp := time.AfterFunc(time.Duration(seed%7+1)*40*time.Millisecond, cancel)
							defer giveUp.Stop()
						}
						do(ctx)
						cancel()
					}
				})
			}
			all.Wait()
			for busy := 1; busy > 0; time.Sleep(time.Second) { // what nobody waits for any more
				d.mu.Lock()
				busy = d.busy
				d.mu.Unlock()
			}
			check("nobody is left", p.of["c"] != nil && p.of["c"].frozen)
			done, err := p.use(t.Context(), docker, "c")
			if _, ended := d.is(); err != nil && !ended {
				t.Fatalf("seed %d: it cannot be used at the end: %v", seed, err)
			}
			check("it is used at the end", false)
			if err == nil {
				done()
			}
		})
		if t.Failed() {
			return
		}
	}
}
