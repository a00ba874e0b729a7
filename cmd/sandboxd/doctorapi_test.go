package main

import (
	"context"
	"testing"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/api/types"
)

// However many ask, the host is looked at once at a time, and again when that is over, also by a caller who has left.
func TestOneLooksAtTheHost(t *testing.T) {
	begun := make(chan struct{})
	look := oneAtATime(func(ctx context.Context) (types.DoctorReport, error) {
		begun <- struct{}{}
		<-ctx.Done()
		return types.DoctorReport{}, ctx.Err()
	})
	for range 2 {
		ctx, leave := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			_, err := look(ctx)
			ended <- err
		}()
		<-begun
		if _, err := look(t.Context()); !cerrdefs.IsResourceExhausted(err) {
			t.Errorf("a second look beside it: %v", err)
		}
		leave()
		if err := <-ended; err == nil {
			t.Error("who has left is answered")
		}
	}
}
