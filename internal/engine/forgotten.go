package engine

import (
	"context"
	"time"

	cerrdefs "github.com/containerd/errdefs"
)

// forgottenAfter is how long a shim has had neither a container nor a child before it counts as
// forgotten: Docker takes a moment from one to the other.
const forgottenAfter = 3 * time.Second

// ForgottenShims implements Engine. If it finds some, it waits and looks a second time.
func (d Docker) ForgottenShims(ctx context.Context, ours func(Shim) bool) ([]Shim, error) {
	first, err := d.findForgotten(ctx, ours)
	if err != nil || len(first) == 0 {
		return nil, err
	}
	select {
	case <-time.After(forgottenAfter):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	second, err := d.findForgotten(ctx, ours)
	var both []Shim
	for pid, s := range second {
		if first[pid].Container == s.Container {
			both = append(both, s)
		}
	}
	return both, err
}

// findForgotten looks once. Shims are listed before their containers: a container exists before its
// shim does.
func (d Docker) findForgotten(ctx context.Context, ours func(Shim) bool) (map[int]Shim, error) {
	all, err := Shims()
	if err != nil {
		return nil, err
	}
	found := map[int]Shim{}
	for _, s := range all {
		if len(s.Children) > 0 || !ours(s) {
			continue
		}
		asking, cancel := context.WithTimeout(ctx, signalLimit)
		_, err := d.client.ContainerInspect(asking, s.Container)
		cancel()
		if cerrdefs.IsNotFound(err) {
			found[s.PID] = s
		}
	}
	return found, nil
}
