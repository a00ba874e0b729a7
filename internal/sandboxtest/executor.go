package sandboxtest

import (
	"context"
	"fmt"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/cgroup"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/warm"
)

// Executor implements sandbox.Executor. A command calls RunFunc, or ends at once if that is nil.
type Executor struct {
	RunFunc func(context.Context, dockerexec.Spec, warm.Command,
		session.Output) (warm.Result, error)
	// TmpFunc returns the directory of a user's /tmp; if it is nil, there is none.
	TmpFunc func() (string, error)
	// List are the containers, and Pool those that have no user yet.
	List, Pool []dockerexec.Summary
	// WarmFunc is called with the container that a registration wants, or with why it has none.
	WarmFunc func(dockerexec.Spec, error)
}

// Run implements sandbox.Executor.
func (e Executor) Run(ctx context.Context, spec dockerexec.Spec, c warm.Command,
	out session.Output) (warm.Result, error) {
	if c.Prepare != nil {
		done, err := c.Prepare(ctx, nil) // without a session no ports are offered
		if err != nil {
			return warm.Result{}, err
		}
		defer done()
	}
	if e.RunFunc != nil {
		return e.RunFunc(ctx, spec, c, out)
	}
	if c.Started != nil {
		c.Started()
	}
	return warm.Result{}, nil
}

// Containers implements sandbox.Executor.
func (e Executor) Containers() []dockerexec.Summary { return e.List }

// Pooled implements sandbox.Executor.
func (e Executor) Pooled() []dockerexec.Summary { return e.Pool }

// Usages implements sandbox.Executor.
func (e Executor) Usages(context.Context) map[string]cgroup.Usage {
	all := map[string]cgroup.Usage{}
	for _, c := range e.List {
		if c.ID != "" {
			all[c.Name] = cgroup.Usage{At: time.Now(), CPU: time.Since(c.Since) / 10,
				Memory: 64 << 20}
		}
	}
	return all
}

// FreezeIdle implements sandbox.Executor.
func (e Executor) FreezeIdle(string) {}

// Leave implements sandbox.Executor.
func (e Executor) Leave(context.Context, string) error { return nil }

// HoldsFile implements sandbox.Executor.
func (e Executor) HoldsFile(string, dockerexec.FileID) bool { return false }

// Changed implements sandbox.Executor.
func (e Executor) Changed(string, string, string, dockerexec.Change) {}

// RenameInside implements sandbox.Executor.
func (e Executor) RenameInside(context.Context, string, string, string, string) bool { return false }

// Removed implements sandbox.Executor.
func (e Executor) Removed(string, string, string) {}

// Warm implements sandbox.Executor.
func (e Executor) Warm(_ string, _ quota.Token,
	plan func(context.Context, func(dockerexec.Spec)) error) {
	if e.WarmFunc == nil {
		return
	}
	var planned dockerexec.Spec
	err := plan(context.Background(), func(spec dockerexec.Spec) { planned = spec })
	e.WarmFunc(planned, err)
}

// Tmp implements sandbox.Executor.
func (e Executor) Tmp(context.Context, dockerexec.Spec, quota.Token, bool) (string, func(), error) {
	if e.TmpFunc == nil {
		return "", nil, fmt.Errorf("no /tmp here: %w", cerrdefs.ErrNotFound)
	}
	dir, err := e.TmpFunc()
	return dir, func() {}, err
}
