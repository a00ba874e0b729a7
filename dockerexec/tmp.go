package dockerexec

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/quota"
)

// A user's /tmp is a Docker volume: a tmpfs that exists from the start of the user's first
// container to the end of the last one. So it is shared, bounded, and emptied when no container
// uses it.

// tmpName returns the volume's name. It depends on which directory the home is, not on the home's
// name: a pooled container has both before there is a user. Another size makes another volume: a
// volume's size is fixed.
func (s Spec) tmpName() string {
	whose := "user " + s.User
	if home := s.home(); home.Since != 0 { // otherwise a later home may have the number of an earlier one
		whose = fmt.Sprintf("home %d %d %d", home.Dev, home.Ino, home.Since)
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d %s", s.Platform.Instance, s.Platform.Limits.Tmp,
		whose))
	return "daycare-sandbox-tmp-" + hex.EncodeToString(sum[:16])
}

// tmpName returns the volume that a container has. If another version of the service made it, it
// may differ from its Spec's.
func (c *container) tmpName() string { return cmp.Or(c.tmp, c.spec.tmpName()) }

// tmpOf returns the /tmp volume of an existing container; empty if the engine does not say.
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

// Tmp returns where the user's /tmp is on Docker's host. It exists while the user has a container,
// so one is held until release: any of the user's that has it, or that of the Spec, which is made
// if create is set, within the token's bounds and in its turn; otherwise the error is
// errdefs.ErrNotFound. It blocks while a container is being made.
func (w *warm) Tmp(ctx context.Context, spec Spec, token quota.Token,
	create bool) (dir string, release func(), err error) {
	c := w.hold(spec)
	if c == nil && w.hasTmp(spec.tmpName()) {
		// A process has it. If that ends meanwhile, open files stay open, and the rest is not
		// found.
		found, err := w.engine.FindVolume(ctx, spec.tmpName())
		if err == nil {
			return found.Dir, func() {}, nil
		}
	}
	if c == nil {
		if !create {
			return "", nil, fmt.Errorf("user %q has no container: %w", spec.User,
				cerrdefs.ErrNotFound)
		}
		err := w.retryLost(ctx, spec.User, func() (err error) {
			c, _, err = w.acquire(ctx, spec, token)
			return err
		})
		if err != nil {
			return "", nil, err
		}
	}
	found, err := w.engine.FindVolume(ctx, c.tmpName())
	if err != nil {
		w.release(c)
		return "", nil, fmt.Errorf("cannot find /tmp of user %q: %w", spec.User,
			w.engine.Explain(err))
	}
	return found.Dir, func() { w.release(c) }, nil
}

// hold takes an existing container that has the Spec's /tmp; nil if there is none.
func (w *warm) hold(spec Spec) *container {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	for _, c := range w.calls {
		if c.spec.User != spec.User || c.tmpName() != spec.tmpName() ||
			!c.is(life.Ready, life.Draining, life.Frozen) {
			continue
		}
		if from, thawing, err := c.Join(maxCommands); err == nil {
			w.woken(c, from, thawing)
			return c
		}
	}
	return nil
}

// removeTmp removes a volume that no container has any more. One in use is left to its last user;
// Docker may also report one as in use for a moment after that user has gone.
func (h *host) removeTmp(ctx context.Context, name string) error {
	for wait := 20 * time.Millisecond; ; wait *= 2 {
		err := h.engine.RemoveVolume(ctx, name)
		switch {
		case err == nil || cerrdefs.IsNotFound(err):
			return nil
		case !cerrdefs.IsConflict(err):
			return fmt.Errorf("cannot remove the volume %s: %w", name, err)
		case wait > 5*time.Second || h.hasTmp(name):
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
func (h *host) hasTmp(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for c := range h.all {
		if c.is(inUse...) && c.tmpName() == name {
			return true
		}
	}
	return h.closed
}

// removeUnusedTmp removes this instance's volumes that no container has: those of an earlier
// service.
func (h *host) removeUnusedTmp(ctx context.Context) error {
	found, err := h.engine.ListVolumes(ctx, labelInstance+"="+h.cfg.Instance, true)
	if err != nil {
		return h.engine.Explain(err)
	}
	for _, v := range found {
		if err := h.removeTmp(ctx, v.Name); err != nil {
			return err
		}
	}
	return nil
}
