package main

import (
	"context"
	"errors"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec"
)

// endLimit is how long an orderly shutdown may take beyond what the settings grant.
const endLimit = 5 * time.Second

// flushLimit is how long callers have to receive the last responses.
const flushLimit = time.Second

// callCounter counts calls in progress, including those over a WebSocket, which http.Server does
// not wait for.
type callCounter struct {
	mu      sync.Mutex
	running int
	none    chan struct{} // closed when running drops to 0; nil while nobody waits
}

// counting wraps handler and counts its calls.
func (c *callCounter) counting(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		c.add(1)
		defer c.add(-1)
		handler.ServeHTTP(w, req)
	})
}

func (c *callCounter) add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running += n
	if c.running == 0 && c.none != nil {
		close(c.none)
		c.none = nil
	}
}

// ended returns a channel that is closed when no call is in progress.
func (c *callCounter) ended() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	ended := make(chan struct{})
	if c.running == 0 {
		close(ended)
		return ended
	}
	if c.none == nil {
		c.none = ended
	}
	return c.none
}

// wait reports whether all calls have ended before ctx does.
func (c *callCounter) wait(ctx context.Context) bool {
	select {
	case <-c.ended():
		return true
	case <-ctx.Done():
		return false
	}
}

// ended waits until no call is in progress and no detached command runs. It reports false if ctx
// ends first.
func (d *daemon) ended(ctx context.Context, calls *callCounter) bool {
	return calls.wait(ctx) && d.service.AwaitDetached(ctx)
}

// stop accepts no more connections and lets the calls in progress and the detached commands end by
// themselves, for shutdownGraceMs or until the process is signalled again. Then it ends the
// commands as if the callers had gone, and the callers are told. ctx has already ended.
func (d *daemon) stop(ctx context.Context, calls *callCounter, servers ...*http.Server) error {
	cfg := d.cfg.Load()
	again := make(chan os.Signal, 1)
	signal.Notify(again, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(again)
	ctx = context.WithoutCancel(ctx)
	d.log.Info().Int("commands", commands(d.warm.Containers())).
		Stringer("grace", cfg.ShutdownGrace.Duration()).
		Msg("stopping: no more calls are taken, and what runs may end by itself; stop again to end it at once")

	grace, atOnce := context.WithTimeout(ctx, cfg.ShutdownGrace.Duration())
	defer atOnce()
	waiting := make(chan struct{})
	defer close(waiting)
	go func() {
		select {
		case <-again:
			atOnce()
		case <-waiting:
		}
	}()
	var closing sync.WaitGroup
	for _, server := range servers {
		closing.Go(func() { _ = server.Shutdown(grace) }) // its error only says that grace has ended
	}
	closing.Wait()
	if !d.ended(grace, calls) {
		d.cut(ctx, calls, cfg.Exec.KillGrace.Duration(), errors.Is(grace.Err(), context.Canceled))
	}
	// A call has ended when its handler has, but its response may still be on its way.
	flushed, cancel := context.WithTimeout(ctx, flushLimit)
	defer cancel()
	var faults []error
	for _, server := range servers {
		_ = server.Shutdown(flushed)
		faults = append(faults, server.Close())
	}
	return errors.Join(faults...)
}

// cut ends the running commands, with the grace period of a command whose caller has gone, or at
// once.
func (d *daemon) cut(ctx context.Context, calls *callCounter, grace time.Duration, atOnce bool) {
	for _, c := range d.warm.Containers() {
		if c.Commands > 0 {
			d.events.Tell(ctx, c.User,
				dockerexec.Incident{What: "commands are cut off: the service is stopping",
					Level: zerolog.WarnLevel, Container: c.Name, Commands: c.Commands})
		}
	}
	d.warm.EndCommands()
	if atOnce {
		grace = 0
		d.executor.Shutdown()
	}
	ctx, cancel := context.WithTimeout(ctx, grace+endLimit)
	defer cancel()
	if !d.ended(ctx, calls) {
		d.log.Warn().Msg("calls that do not end are cut off")
	}
}

func commands(containers []dockerexec.Summary) (running int) {
	for _, c := range containers {
		running += c.Commands
	}
	return running
}
