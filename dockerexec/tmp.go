package dockerexec

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/internal/engine"
)

// A user's /tmp is a Docker volume: a tmpfs that exists from the start of the user's first
// container to the end of the last one. So it is shared, bounded, and emptied when no container
// uses it.

// tmpName returns the volume's name. It depends on which directory the home is, not on the home's
// name: a pooled container has both before there is a user. Another size makes another volume: a
// volume's size is fixed.
func (s Spec) tmpName() string {
	whose := "user " + s.User
	// otherwise a later home may have the number of an earlier one
	if home := s.Home(); home.Since != 0 {
		whose = fmt.Sprintf("home %d %d %d", home.Dev, home.Ino, home.Since)
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d %s", s.Platform.Instance, s.Platform.Limits.Tmp,
		whose))
	return "daycare-sandbox-tmp-" + hex.EncodeToString(sum[:16])
}

// tmpOf returns the /tmp volume of an existing container, which another version of the service may
// have named; empty if the engine does not say.
func tmpOf(mounts []specs.Mount) string {
	for _, m := range mounts {
		if m.Type == engine.VolumeType && m.Destination == "/tmp" {
			return m.Source
		}
	}
	return ""
}

// tmpVolume returns the volume of /tmp; the engine makes it with the container.
func (s Spec) tmpVolume() engine.Volume {
	labels := s.Platform.owner().labels()
	labels[labelUser] = s.User
	size := fmt.Sprint("size=", s.Platform.Limits.Tmp)
	return engine.Volume{
		Name: s.tmpName(), Labels: labels,
		Options: []string{"nosuid", "nodev", size, "mode=1777"},
	}
}

// TmpDir returns where a container's /tmp is on Docker's host. It is there while any container has
// it.
func (e *Executor) TmpDir(ctx context.Context, c *Container) (string, error) {
	found, err := e.engine.FindVolume(ctx, c.tmp)
	if err != nil {
		return "", fmt.Errorf("cannot find /tmp of user %q: %w", c.spec.User, e.engine.Explain(err))
	}
	return found.Dir, nil
}

// SharesTmp reports whether a container of the same user has the /tmp that one of the Spec would
// have.
func (c *Container) SharesTmp(spec Spec) bool { return c.tmp == spec.tmpName() }

// HeldTmp is TmpDir of a Spec's /tmp, if any container has it, whatever that is there for.
func (e *Executor) HeldTmp(ctx context.Context, spec Spec) (dir string, held bool) {
	if !e.hasTmp(spec.tmpName()) {
		return "", false
	}
	found, err := e.engine.FindVolume(ctx, spec.tmpName())
	return found.Dir, err == nil
}

// removeTmp removes a volume that no container has any more. One in use is left to its last user;
// Docker may also report one as in use for a moment after that user has gone.
func (e *Executor) removeTmp(ctx context.Context, name string) error {
	for wait := 20 * time.Millisecond; ; wait *= 2 {
		err := e.engine.RemoveVolume(ctx, name)
		switch {
		case err == nil || cerrdefs.IsNotFound(err):
			return nil
		case !cerrdefs.IsConflict(err):
			return fmt.Errorf("cannot remove the volume %s: %w", name, err)
		case wait > 5*time.Second || e.hasTmp(name):
			return nil
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
	}
}

// hasTmp reports whether a known container has a volume; after Shutdown, it says so of each.
func (e *Executor) hasTmp(name string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for c := range e.all {
		if c.tmp == name && c.is(inUse...) {
			return true
		}
	}
	return e.closed
}

// removeUnusedTmp removes this instance's volumes that no container has: those of an earlier
// service.
func (e *Executor) removeUnusedTmp(ctx context.Context) error {
	found, err := e.engine.ListVolumes(ctx, labelInstance+"="+e.cfg.Instance, true)
	if err != nil {
		return e.engine.Explain(err)
	}
	for _, v := range found {
		if err := e.removeTmp(ctx, v.Name); err != nil {
			return err
		}
	}
	return nil
}
