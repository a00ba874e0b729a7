package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/docker/docker/client"

	"github.com/daycare-run/sandbox/e2e/inet"
)

// findings are all that a run has measured.
type findings struct {
	settings settings
	machine  machine
	deciding deciding
	dns      dnsFindings
	policy   []registering
	runtimes []runtimeFindings
}

// runtimeFindings are those of one runtime.
type runtimeFindings struct {
	runtime   string
	latency   latency
	cold      cold
	together  together
	streams   []stream
	slow      slowReader
	flood     flood
	memory    memory
	reading   reading
	large     large
	grants    grants
	network   networked
	guard     guarded
	packages  packages
	processes durable
	surface   surface
}

// errLeft marks an error that has left something behind.
var errLeft = errors.New("not everything is removed")

// lab is what all runtimes' measurements share.
type lab struct {
	settings settings
	docker   *client.Client
	dir      string     // of this run alone; removed at the end
	floor    string     // the floor program
	world    *inet.Inet // nil when nothing needs it
	image    string     // the version that the last service said
	progress io.Writer
	begun    time.Time
}

// say tells how far the run is.
func (l *lab) say(format string, args ...any) {
	fmt.Fprintf(l.progress, "%6.1fs  %s\n", time.Since(l.begun).Seconds(), fmt.Sprintf(format, args...))
}

// measure runs everything and removes what it made, also when it fails.
func measure(ctx context.Context, cfg settings, progress io.Writer) (_ findings, err error) {
	l, err := newLab(ctx, cfg, progress)
	if err != nil {
		return findings{}, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	found := findings{settings: cfg}
	if found.machine, err = inspectMachine(ctx, l.docker, cfg.runtimes); err != nil {
		return findings{}, err
	}
	if err := l.measureAlone(ctx, &found); err != nil {
		return findings{}, err
	}
	for _, runtime := range cfg.runtimes {
		one := runtimeFindings{runtime: runtime}
		if err := l.measureRuntime(ctx, &one); err != nil {
			return findings{}, fmt.Errorf("runtime %s: %w", runtime, err)
		}
		found.runtimes = append(found.runtimes, one)
	}
	found.machine.image = l.image
	return found, nil
}

// measureAlone measures what needs no container.
func (l *lab) measureAlone(ctx context.Context, found *findings) error {
	return l.steps("", []step{
		{"deciding", "deciding", func() (err error) { found.deciding, err = l.measureDeciding(); return }},
		{"dns", "DNS questions", func() (err error) { found.dns, err = l.measureDNS(ctx); return }},
		{"policy", "registering containers", func() (err error) { found.policy, err = l.measureRegistering(ctx); return }},
	})
}

// step is a part of what is measured.
type step struct {
	part, name string
	run        func() error
}

// steps runs those that were asked for.
func (l *lab) steps(of string, list []step) error {
	for _, s := range list {
		if !l.settings.has(s.part) {
			continue
		}
		l.say("%s%s", of, s.name)
		if err := s.run(); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

func newLab(ctx context.Context, cfg settings, progress io.Writer) (_ *lab, err error) {
	l := &lab{settings: cfg, progress: progress, begun: time.Now()}
	if err := checkBinaries(cfg.bin); err != nil {
		return nil, err
	}
	if err := checkMeans(cfg); err != nil {
		return nil, err
	}
	if l.docker, err = connect(ctx, cfg.runtimes); err != nil {
		return nil, err
	}
	if l.dir, err = os.MkdirTemp("", "sandbox-bench-"); err != nil {
		return nil, errors.Join(err, l.docker.Close())
	}
	l.say("building the floor program")
	if l.floor, err = buildFloor(ctx, l.dir); err != nil {
		return nil, errors.Join(err, l.close())
	}
	if cfg.has(internetParts...) {
		l.say("making a test internet")
		if l.world, err = newWorld(ctx); err != nil {
			return nil, errors.Join(err, l.close())
		}
	}
	return l, nil
}

func (l *lab) close() error {
	var err error
	if l.world != nil {
		err = l.world.Close()
	}
	if err := errors.Join(err, os.RemoveAll(l.dir), l.docker.Close()); err != nil {
		return fmt.Errorf("%w: %w", errLeft, err)
	}
	return nil
}

// measureRuntime measures all of one runtime, in up to four services one after the other.
func (l *lab) measureRuntime(ctx context.Context, found *runtimeFindings) error {
	if l.settings.has(insideParts...) {
		err := l.withService(ctx, found.runtime, found.runtime, nil, func(s *service) error { return s.measureInside(ctx, found) })
		if err != nil {
			return err
		}
	}
	if l.settings.has("network", "guard") {
		err := l.withService(ctx, found.runtime, found.runtime+"-outside", worldSettings(l.world), func(s *service) error { return s.measureOutside(ctx, found) })
		if err != nil {
			return err
		}
	}
	var err error
	if l.settings.has("packages") {
		if found.packages, err = l.measurePackages(ctx, found.runtime); err != nil {
			return err
		}
	}
	if l.settings.has("processes") {
		err = l.withService(ctx, found.runtime, found.runtime+"-processes", processSettings(l.settings), func(s *service) error { return s.measureProcesses(ctx, &found.processes) })
	}
	return err
}

// withService starts a service for one runtime, measures, and stops it.
func (l *lab) withService(ctx context.Context, runtime, name string, settings []string, run func(*service) error) (err error) {
	l.say("%s: starting a service", name)
	s, err := l.startService(ctx, runtime, name, settings)
	if err != nil {
		return err
	}
	defer func() {
		l.say("%s: stopping the service and removing its containers", name)
		err = errors.Join(err, s.close())
	}()
	health, err := s.api.Health(ctx)
	if err != nil {
		return err
	}
	l.image = health.ImageVersion
	if err := run(s); err != nil {
		return s.explain(err)
	}
	return nil
}

// measureInside measures what needs no network. Memory comes first, while the service is fresh, and
// once more when all of that container has been measured. Grants make further containers, and large
// files keep the disk busy, so they come last.
func (s *service) measureInside(ctx context.Context, found *runtimeFindings) error {
	return s.steps(s.runtime+": ", []step{
		{"memory", "memory at rest", func() error { return s.measureRest(ctx, &found.memory) }},
		{"warm", "warm exec", func() (err error) { found.latency, err = s.measureLatency(ctx); return }},
		{"cold", "cold exec", func() (err error) { found.cold, err = s.measureCold(ctx); return }},
		{"together", "64 at once", func() (err error) { found.together, err = s.measureTogether(ctx); return }},
		{"streams", "streams", func() (err error) { found.streams, err = s.measureStreams(ctx); return }},
		{"slow", "a slow reader", func() (err error) { found.slow, err = s.measureSlowReader(ctx, found.streams); return }},
		{"flood", "a flood", func() (err error) { found.flood, err = s.measureFlood(ctx); return }},
		{"memory", "memory after all this", func() error { return s.measureEnd(ctx, &found.memory) }},
		{"reading", "reading a file", func() (err error) { found.reading, err = s.measureReading(ctx); return }},
		{"grants", "grants", func() (err error) { found.grants, err = s.measureGrants(ctx); return }},
		{"surface", "the surface", func() (err error) { found.surface, err = s.measureSurface(ctx); return }},
		{"large", "large files", func() (err error) { found.large, err = s.measureLarge(ctx); return }},
	})
}

// measureOutside measures what goes over the network, in the test internet.
func (s *service) measureOutside(ctx context.Context, found *runtimeFindings) error {
	if err := s.travel(ctx); err != nil {
		return err
	}
	return s.steps(s.runtime+": ", []step{
		{"network", "calls with a network", func() (err error) { found.network, err = s.measureNetwork(ctx); return }},
		{"guard", "connections through the guard", func() error { return s.measureConnections(ctx, &found.guard) }},
		{"guard", "idle connections", func() error { return s.measureIdle(ctx, &found.guard) }},
	})
}
