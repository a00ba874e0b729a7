package dockerexec

import (
	"context"
	"path/filepath"
	"strings"

	"github.com/daycare-run/sandbox/internal/engine"
)

// ForgottenShims finds the shims of containers that are gone and that were made for the owner's
// DataDir, or for any if that is empty. If it finds some, it takes some seconds.
func (o Owner) ForgottenShims(ctx context.Context, eng engine.Engine) ([]engine.Shim, error) {
	return eng.ForgottenShims(ctx, func(s engine.Shim) bool { return isOf(s, o.DataDir) })
}

// isOf reports whether a shim's container had an agent of a dataDir mounted, or of any if dataDir
// is empty.
func isOf(s engine.Shim, dataDir string) bool {
	for _, source := range s.Sources {
		dir, name := filepath.Split(source)
		if strings.HasPrefix(name, agentPrefix) &&
			(dataDir == "" || filepath.Clean(dir) == filepath.Join(dataDir, agentDir)) {
			return true
		}
	}
	return false
}

// removeShims ends the shims that Docker has forgotten.
func (e *Executor) removeShims() {
	left, err := e.owner().ForgottenShims(e.ctx, e.engine)
	for _, s := range left {
		e.cfg.Log.Warn().Int("pid", s.PID).Str("container", s.Container[:12]).
			Msg("ending a shim that Docker has forgotten")
		if err := s.Kill(); err != nil {
			e.cfg.Log.Warn().Err(err).Msg("cannot end a shim")
		}
	}
	if err != nil && e.ctx.Err() == nil {
		e.cfg.Log.Warn().Err(err).Msg("cannot look for shims that Docker has forgotten")
	}
}
