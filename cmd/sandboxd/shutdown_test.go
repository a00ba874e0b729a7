package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/sandbox"
	"github.com/daycare-run/sandbox/internal/sandboxtest"
	"github.com/daycare-run/sandbox/internal/warm"
)

// Whoever waits for the calls to end waits for those over a WebSocket, too: for all that a handler does.
func TestCallsAreWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, finish := make(chan struct{}), make(chan struct{})
		c := &callCounter{}
		handler := c.counting(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			begun <- struct{}{}
			<-finish
		}))
		if !c.wait(t.Context()) {
			t.Error("there is no call to wait for")
		}
		for range 2 {
			go handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
			<-begun
		}
		over, cancel := context.WithCancel(t.Context())
		cancel()
		if c.wait(over) {
			t.Error("two calls are being answered")
		}
		first, second := c.ended(), c.ended()
		finish <- struct{}{}
		synctest.Wait()
		select {
		case <-first:
			t.Error("one call is being answered")
		default:
		}
		finish <- struct{}{}
		<-first
		<-second
		if !c.wait(t.Context()) {
			t.Error("all calls have ended")
		}
	})
}

// A command that goes on without its caller is waited for as one whose caller waits.
func TestDetachedCommandsAreWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		finish := make(chan struct{})
		d := &daemon{service: sandboxtest.New(t, sandboxtest.Options{Executor: sandboxtest.Executor{
			RunFunc: func(ctx context.Context, _ dockerexec.Spec, c warm.Command, _ session.Output) (warm.Result, error) {
				c.Started()
				select {
				case <-finish:
				case <-ctx.Done():
				}
				return warm.Result{}, context.Cause(ctx)
			},
		}})}
		if _, _, err := d.service.Put("a", sandbox.Registration{UserID: "a"}); err != nil {
			t.Fatal(err)
		}
		if _, err := d.service.StartExec(t.Context(), "a", sandbox.Request{Command: "x"}, false); err != nil {
			t.Fatal(err)
		}
		ended := make(chan bool, 1)
		go func() { ended <- d.ended(t.Context(), &callCounter{}) }()
		synctest.Wait()
		select {
		case <-ended:
			t.Fatal("a command goes on")
		default:
		}
		close(finish)
		if !<-ended {
			t.Error("it has ended")
		}
	})
}
