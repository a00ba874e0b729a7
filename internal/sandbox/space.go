package sandbox

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/hints"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/pathmap"
)

// withLimits adds to hints that something was full what bounds it. What it was is in the command's
// words or, if those name a file by a path that is not absolute, /tmp if that is full.
func (s *Service) withLimits(ctx context.Context, p plan.Plan, list []hints.Hint) []hints.Hint {
	l := p.Spec.Platform.Limits
	bounds := []struct {
		dir, setting string
		bytes        int64
	}{{policy.Tmp.String(), "limits.tmp", l.Tmp}, {"/var/tmp", "limits.varTmp", l.VarTmp},
		{"/dev/shm", "limits.shm", l.Shm}, {"/run", "limits.run", l.Run}}
	for i := range list {
		h := &list[i]
		if h.Kind != hints.NoSpace {
			continue
		}
		if h.Path == "" && s.isTmpFull(ctx, p) {
			h.Path = policy.Tmp.String()
		}
		for _, b := range bounds {
			if pathmap.Within(h.Path, b.dir) {
				h.Path, h.Limit, h.Value = b.dir, b.setting, dockerexec.SizeText(b.bytes)
			}
		}
	}
	return list
}

// isTmpFull reports whether the user's /tmp has hardly any space left.
func (s *Service) isTmpFull(ctx context.Context, p plan.Plan) bool {
	dir, release, err := s.runner.Tmp(ctx, p.Spec, s.token, false)
	if err != nil {
		return false
	}
	defer release()
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == unix.TMPFS_MAGIC && st.Bavail < st.Blocks/50
}
