package plan_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/images"
	"github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/plantest"
)

func TestRuntimeThatTheEngineDoesNotKnow(t *testing.T) {
	cfg := plantest.Platform(t)
	cfg.Settings.Runtime = "kata"
	_, err := plan.NewPlatforms(cfg).Current(t.Context())
	if !cerrdefs.IsNotImplemented(err) {
		t.Fatal(err)
	}
	for _, part := range []string{`"kata"`, "runc, runsc", "scripts/setup.sh", "enableWeakerNestedSandbox"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%v has no %s", err, part)
		}
	}
	cfg.AcceptDefaultRuntime = true
	if p, err := plan.NewPlatforms(cfg).Current(t.Context()); err != nil || p.Runtime != "runc" {
		t.Errorf("accepted a weaker one: %q, %v", p.Runtime, err)
	}
	cfg.Settings.Runtime = "runsc"
	if p, err := plan.NewPlatforms(cfg).Current(t.Context()); err != nil || p.Runtime != "runsc" {
		t.Errorf("a weaker one would be accepted, but need not be: %q, %v", p.Runtime, err)
	}
}

func TestCPUsAreThoseThatThereAre(t *testing.T) {
	for _, tt := range []struct {
		wanted int64
		cpus   int
		want   int64
	}{{4e9, 2, 2e9}, {4e9, 4, 4e9}, {4e9, 64, 4e9}, {5e8, 2, 5e8}} {
		cfg := plantest.Platform(t)
		cfg.Settings.Limits.NanoCPUs = tt.wanted
		cfg.Inspect = func(context.Context) (engine.Info, error) {
			return engine.Info{CPUs: tt.cpus, Runtimes: []string{"runsc"}}, nil
		}
		if p, err := plan.NewPlatforms(cfg).Current(t.Context()); err != nil || p.Limits.NanoCPUs != tt.want {
			t.Errorf("%d of %d CPUs: %d, %v", tt.wanted, tt.cpus, p.Limits.NanoCPUs, err)
		}
	}
}

// TestPlatformIsKeptUntilForget counts the questions to Docker.
func TestPlatformIsKeptUntilForget(t *testing.T) {
	var inspected, found, forgotten int
	var fault error
	cfg := plantest.Platform(t)
	inspect, find := cfg.Inspect, cfg.Find
	cfg.Inspect = func(ctx context.Context) (engine.Info, error) { inspected++; return inspect(ctx) }
	cfg.Find = func(ctx context.Context) (images.Image, error) {
		found++
		image, _ := find(ctx)
		return image, fault
	}
	cfg.Forget = func() { forgotten++ }
	p := plan.NewPlatforms(cfg)
	fault = errors.New("image is missing")
	for range 2 { // a failure is not kept
		if _, err := p.Current(t.Context()); !errors.Is(err, fault) {
			t.Fatal(err)
		}
	}
	fault = nil
	for range 3 {
		if _, err := p.Current(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if inspected != 3 || found != 3 || forgotten != 0 {
		t.Errorf("inspected %d times, found %d, forgotten %d", inspected, found, forgotten)
	}
	p.Forget()
	if _, err := p.Current(t.Context()); err != nil || inspected != 4 || found != 4 || forgotten != 1 {
		t.Errorf("after Forget: inspected %d times, found %d, forgotten %d, %v", inspected, found, forgotten, err)
	}
}

// Another platform is asked for at once, and not only when Docker tells of something.
func TestPlatformsUse(t *testing.T) {
	p := plan.NewPlatforms(plantest.Platform(t))
	if _, err := p.Current(t.Context()); err != nil {
		t.Fatal(err)
	}
	cfg := plantest.Platform(t)
	cfg.Settings.Limits.NanoCPUs = 1e9
	p.Use(cfg)
	if now, err := p.Current(t.Context()); err != nil || now.Limits.NanoCPUs != 1e9 {
		t.Errorf("%+v, %v", now.Limits, err)
	}
}
