package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
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
