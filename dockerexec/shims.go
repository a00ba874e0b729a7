package dockerexec

import (
	"context"
	"path/filepath"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/client"

	"github.com/daycare-run/sandbox/internal/dockerd"
)

// forgottenAfter is how long a shim has had neither a container nor a child before it counts as forgotten: Docker
// takes a moment from one to the other.
const forgottenAfter = 3 * time.Second

// ForgottenShims finds the shims of containers that are gone and that were made for the owner's DataDir, or for any if
// that is empty. If it finds some, it waits and looks a second time.
func (o Owner) ForgottenShims(ctx context.Context, docker *client.Client) ([]dockerd.Shim, error) {
	first, err := findForgotten(ctx, docker, o.DataDir)
	if err != nil || len(first) == 0 {
		return nil, err
	}
	select {
	case <-time.After(forgottenAfter):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	second, err := findForgotten(ctx, docker, o.DataDir)
	var both []dockerd.Shim
	for pid, s := range second {
		if first[pid].Container == s.Container {
			both = append(both, s)
		}
	}
	return both, err
}

// findForgotten looks once. Shims are listed before their containers: a container exists before its shim does.
func findForgotten(ctx context.Context, docker *client.Client, dataDir string) (map[int]dockerd.Shim, error) {
	all, err := dockerd.Shims()
	if err != nil {
		return nil, err
	}
	found := map[int]dockerd.Shim{}
	for _, s := range all {
		if len(s.Children) > 0 || !isOf(s, dataDir) {
			continue
		}
		asking, cancel := context.WithTimeout(ctx, signalLimit)
		_, err := docker.ContainerInspect(asking, s.Container)
		cancel()
		if cerrdefs.IsNotFound(err) {
			found[s.PID] = s
		}
	}
	return found, nil
}

// isOf reports whether a shim's container had an agent of a dataDir mounted, or of any if dataDir is empty.
func isOf(s dockerd.Shim, dataDir string) bool {
	for _, source := range s.Sources {
		dir, name := filepath.Split(source)
		if strings.HasPrefix(name, agentPrefix) && (dataDir == "" || filepath.Clean(dir) == filepath.Join(dataDir, agentDir)) {
			return true
		}
	}
	return false
}

// removeShims ends the shims that Docker has forgotten.
func (e *Executor) removeShims() {
	left, err := e.owner().ForgottenShims(e.ctx, e.docker)
	for _, s := range left {
		e.cfg.Log.Warn().Int("pid", s.PID).Str("container", s.Container[:12]).Msg("ending a shim that Docker has forgotten")
		if err := s.Kill(); err != nil {
			e.cfg.Log.Warn().Err(err).Msg("cannot end a shim")
		}
	}
	if err != nil && e.ctx.Err() == nil {
		e.cfg.Log.Warn().Err(err).Msg("cannot look for shims that Docker has forgotten")
	}
}
