package plan

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/images"
	"github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/errs"
)

// PlatformConfig is the operator's part of a platform.
type PlatformConfig struct {
	// Settings is the platform without ImageID, which Find provides.
	Settings dockerexec.Platform
	// AcceptDefaultRuntime takes Docker's default runtime if Docker does not know Settings.Runtime.
	AcceptDefaultRuntime bool
	// Find finds the image; Forget makes the next Find a fresh one.
	Find   func(context.Context) (images.Image, error)
	Forget func()
	// FindOther finds another image by its reference, and looks each time; nil if there are no
	// others.
	FindOther func(ctx context.Context, reference string) (images.Image, error)
	// Overrides makes the files that containers get instead of those of an image.
	Overrides func(ctx context.Context, imageID string) (*images.Overrides, error)
	// Certificates are trusted in containers besides the image's own; empty for the image's own
	// alone.
	Certificates []*x509.Certificate
	// Inspect asks Docker for its runtimes and size.
	Inspect func(context.Context) (engine.Info, error)
	Log     zerolog.Logger
}

// Platforms knows the present platform: the settings made concrete by what Docker has. It is
// safe for concurrent use.
type Platforms struct {
	cfg atomic.Pointer[PlatformConfig]

	stale atomic.Bool // Forget or Use was called since present was found

	mu      sync.Mutex
	present *Platform
}

// Platform is a dockerexec.Platform with what else is known of its image.
type Platform struct {
	dockerexec.Platform
	runtimes  []string
	gvisors   []string // Docker's runtimes that are gVisor
	env       []string
	Version   string
	overrides *images.Overrides
	Engine    string
	// certificates are PlatformConfig.Certificates.
	certificates []*x509.Certificate
}

// NewPlatforms returns Platforms that have not asked Docker yet.
func NewPlatforms(cfg PlatformConfig) *Platforms {
	p := &Platforms{}
	p.cfg.Store(&cfg)
	return p
}

// Use makes the next Current use cfg, and ask Docker.
func (p *Platforms) Use(cfg PlatformConfig) {
	p.cfg.Store(&cfg)
	p.stale.Store(true)
}

// Forget makes the next Current ask Docker. It does not block, even while another call is asking.
func (p *Platforms) Forget() {
	p.cfg.Load().Forget()
	p.stale.Store(true)
}

// Current returns the present platform; the first call after Forget asks Docker. The error is
// errdefs.ErrNotImplemented if Docker does not know the runtime.
func (p *Platforms) Current(ctx context.Context) (dockerexec.Platform, error) {
	present, err := p.Present(ctx)
	return present.Platform, err
}

func (p *Platforms) Present(ctx context.Context) (Platform, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.stale.Swap(false) && p.present != nil {
		return *p.present, nil
	}
	p.present = nil
	cfg := p.cfg.Load() // after stale was cleared, so that a later Use is not missed
	info, err := cfg.Inspect(ctx)
	if err != nil {
		return Platform{}, err
	}
	present := Platform{Platform: cfg.Settings, Engine: info.Version, gvisors: info.GVisor,
		runtimes: info.Runtimes}
	if !slices.Contains(info.Runtimes, present.Runtime) {
		if !cfg.AcceptDefaultRuntime {
			return Platform{},
				fmt.Errorf("the Docker daemon does not know the runtime %q (it knows %s): register it (scripts/setup.sh does that for runsc), or set docker.enableWeakerNestedSandbox to accept %q: %w",
					present.Runtime, strings.Join(info.Runtimes, ", "), info.DefaultRuntime,
					cerrdefs.ErrNotImplemented)
		}
		cfg.Log.Warn().Str("wanted", present.Runtime).Str("taken", info.DefaultRuntime).
			Msg("Docker does not know the runtime; a weaker one is accepted by enableWeakerNestedSandbox")
		present.Runtime, present.EventsRuntime = info.DefaultRuntime, info.DefaultRuntime
	}
	present.GVisor = present.isGVisor(present.Runtime) && present.isGVisor(present.EventsRuntime)
	present.Offline, present.Linked = info.Offline[present.Runtime], info.Linked[present.Runtime]
	// Docker refuses to grant more CPUs than there are.
	if info.CPUs > 0 {
		present.Limits.NanoCPUs = min(present.Limits.NanoCPUs, int64(info.CPUs)*1e9)
	}
	image, err := cfg.Find(ctx)
	if err != nil {
		return Platform{}, err
	}
	if err := present.addOverrides(ctx, cfg, image); err != nil {
		return Platform{}, err
	}
	p.present = &present
	return present, nil
}

// of returns the present platform with another image, which Docker must have.
func (p *Platforms) of(ctx context.Context, reference string) (Platform, error) {
	other, err := p.Present(ctx)
	if err != nil {
		return Platform{}, err
	}
	cfg := p.cfg.Load()
	if cfg.FindOther == nil {
		return Platform{}, errs.Invalid("there is no image here other than the service's")
	}
	image, err := cfg.FindOther(ctx, reference)
	if err != nil {
		return Platform{}, err
	}
	return other, other.addOverrides(ctx, cfg, image)
}

// addOverrides sets a platform's image, with the files that containers get instead of that image's
// own.
func (p *Platform) addOverrides(ctx context.Context, cfg *PlatformConfig,
	image images.Image) (err error) {
	p.ImageID, p.env, p.Version = image.ID, image.Env, image.Version
	if p.overrides, err = cfg.Overrides(ctx, image.ID); err != nil {
		return err
	}
	p.Bundle, p.BundleAt, p.certificates = "", "", cfg.Certificates
	if len(cfg.Certificates) > 0 {
		p.Bundle, p.BundleAt, err = p.overrides.Bundle(cfg.Certificates)
	}
	return err
}

// isGVisor reports whether a runtime is gVisor, which does not start with too many mounts.
func (p Platform) isGVisor(runtime string) bool { return slices.Contains(p.gvisors, runtime) }
