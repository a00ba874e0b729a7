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

// passes is how often everything is measured.
const passes = 2

// results are all measurements.
type results struct {
	settings settings
	machine  machine
	passes   []findings
}

// findings are the measurements of one pass.
type findings struct {
	settings settings
	dns      dnsFindings
	work     worked
	runtimes []runtimeFindings
	// failed says, by part, why it was not measured or only partly.
	failed map[string]string
}

// runtimeFindings are the measurements of one runtime.
type runtimeFindings struct {
	runtime   string
	warm      warm
	typical   typical
	resting   resting
	cold      cold
	creation  creation
	together  together
	streams   []stream
	memory    memory
	grants    grants
	network   networked
	guard     guarded
	processes durable
	e2b       foreign
	work      worked
}

// errLeft marks an error after which something is left behind.
var errLeft = errors.New("not everything is removed")

// lab has what the measurements of all runtimes share.
type lab struct {
	settings settings
	docker   *client.Client
	dir      string // of this run alone; removed at the end
	hasDisk  bool   // dir is on a disk of its own
	floor    string // the floor program
	// e2bAddress is where the service that was started for E2B's clients listens for them.
	e2bAddress string
	world      *inet.Inet // nil when nothing needs it
	image      string     // the version that the last service reported
	progress   io.Writer
	begun      time.Time
	pass       int               // the number of the pass, from 1
	failed     map[string]string // findings.failed of this pass
}

// say reports progress.
func (l *lab) say(format string, args ...any) {
	fmt.Fprintf(l.progress, "%6.1fs  pass %d: %s\n", time.Since(l.begun).Seconds(), l.pass, fmt.Sprintf(format, args...))
}

// measure runs everything and removes what it made, even if it fails.
func measure(ctx context.Context, cfg settings, progress io.Writer) (_ results, err error) {
	l, err := newLab(ctx, cfg, progress)
	if err != nil {
		return results{}, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	found := results{settings: cfg}
	if found.machine, err = inspectMachine(ctx, l.docker, cfg.runtimes); err != nil {
		return results{}, err
	}
	for l.pass = 1; l.pass <= passes; l.pass++ {
		one, err := l.measurePass(ctx)
		if err != nil {
			return results{}, err
		}
		found.passes = append(found.passes, one)
	}
	found.machine.image = l.image
	return found, nil
}

func (l *lab) measurePass(ctx context.Context) (findings, error) {
	l.failed = map[string]string{}
	found := findings{settings: l.settings, failed: l.failed}
	if err := l.measureAlone(ctx, &found); err != nil {
		return found, err
	}
	for _, runtime := range l.settings.runtimes {
		one := runtimeFindings{runtime: runtime}
		if err := l.measureRuntime(ctx, &one); err != nil {
			return found, fmt.Errorf("runtime %s: %w", runtime, err)
		}
		found.runtimes = append(found.runtimes, one)
	}
	return found, nil
}

// measureAlone measures what needs no container.
func (l *lab) measureAlone(ctx context.Context, found *findings) error {
	return l.steps(ctx, "", []step{
		{"dns", "DNS questions", func() (err error) { found.dns, err = l.measureDNS(ctx); return }},
		{"work", "work on the host", func() (err error) { found.work, err = l.workOnHost(ctx); return }},
	})
}

// step is one part of the measurements.
type step struct {
	part, name string
	run        func() error
}

// steps runs the steps that were asked for. A failed step is noted and the others still run,
// because a run is long.
func (l *lab) steps(ctx context.Context, of string, list []step) error {
	for _, s := range list {
		if !l.settings.has(s.part) {
			continue
		}
		l.say("%s%s", of, s.name)
		if err := s.run(); err != nil {
			if err := l.fail(ctx, fmt.Errorf("%s%s: %w", of, s.name, err), s.part); err != nil {
				return err
			}
		}
	}
	return nil
}

// fail notes why parts were not measured. It returns an error if the run must end.
func (l *lab) fail(ctx context.Context, err error, parts ...string) error {
	if ctx.Err() != nil || errors.Is(err, errLeft) {
		return err
	}
	l.say("FAILED: %v", err)
	for _, part := range parts {
		if l.settings.has(part) {
			l.failed[part] = err.Error()
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
	if cfg.has("work") {
		if err := l.mountDisk(ctx); err != nil {
			return nil, errors.Join(err, l.close())
		}
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
	if err := errors.Join(err, l.unmountDisk(), os.RemoveAll(l.dir), l.docker.Close()); err != nil {
		return fmt.Errorf("%w: %w", errLeft, err)
	}
	return nil
}

// measureRuntime measures all of one runtime, in services one after the other.
func (l *lab) measureRuntime(ctx context.Context, found *runtimeFindings) error {
	for _, part := range []struct {
		names    []string
		name     string
		settings func() ([]string, error)
		run      func(*service) error
	}{
		{insideParts, "inside", withoutPool, func(s *service) error { return s.measureInside(ctx, found) }},
		{[]string{"work"}, "work", workSettings, func(s *service) (err error) { found.work, err = s.workInside(ctx); return }},
		{[]string{"rest"}, "rest", noSettings, func(s *service) error { return s.measureResting(ctx, &found.resting.waiting) }},
		{[]string{"rest"}, "rest-alone", aloneSettings, func(s *service) error { return s.measureAgentAlone(ctx, &found.resting) }},
		{[]string{"network", "guard"}, "outside", l.worldSettings, func(s *service) error { return s.measureOutside(ctx, found) }},
		{[]string{"processes"}, "processes", noSettings, func(s *service) error { return s.measureStarts(ctx, &found.processes) }},
		{[]string{"e2b"}, "e2b", l.e2bSettings, func(s *service) error { return s.measureE2B(ctx, &found.e2b) }},
	} {
		if !l.settings.has(part.names...) {
			continue
		}
		settings, err := part.settings()
		if err == nil {
			err = l.withService(ctx, found.runtime, part.name, settings, part.run)
		}
		if err != nil {
			if err := l.fail(ctx, fmt.Errorf("%s: %w", found.runtime, err), part.names...); err != nil {
				return err
			}
		}
	}
	return l.steps(ctx, found.runtime+": ", []step{
		{"create", "create and first command", func() error { return l.measureCreations(ctx, found) }},
	})
}

func noSettings() ([]string, error) { return nil, nil }

// withoutPool is the setting for first calls that have to make a container.
func withoutPool() ([]string, error) { return []string{"SANDBOXD_POOL_SIZE=0"}, nil }

// withService starts a service for one runtime, measures, and stops it.
func (l *lab) withService(ctx context.Context, runtime, name string, settings []string, run func(*service) error) (err error) {
	l.say("%s: starting a service: %s", runtime, name)
	s, err := l.startService(ctx, runtime, fmt.Sprintf("%s-%s-%d", runtime, name, l.pass), settings)
	if err != nil {
		return err
	}
	defer func() {
		l.say("%s: stopping the service and removing its containers", runtime)
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
// once more when all of that container has been measured. Grants make further containers, so they come
// last.
func (s *service) measureInside(ctx context.Context, found *runtimeFindings) error {
	return s.steps(ctx, s.runtime+": ", []step{
		{"memory", "memory at rest", func() error { return s.measureRest(ctx, &found.memory) }},
		{"warm", "warm commands", func() (err error) { found.warm, err = s.measureWarm(ctx); return }},
		{"session", "a session", func() (err error) { found.typical, err = s.measureSession(ctx); return }},
		{"cold", "cold exec", func() (err error) { found.cold, err = s.measureCold(ctx); return }},
		{"together", "64 at once", func() (err error) { found.together, err = s.measureTogether(ctx); return }},
		{"streams", "streams", func() (err error) { found.streams, err = s.measureStreams(ctx); return }},
		{"memory", "memory after all this", func() error { return s.measureEnd(ctx, &found.memory) }},
		{"grants", "grants", func() (err error) { found.grants, err = s.measureGrants(ctx); return }},
	})
}

// measureOutside measures what goes over the network, in the test internet.
func (s *service) measureOutside(ctx context.Context, found *runtimeFindings) error {
	if err := s.travel(ctx); err != nil {
		return err
	}
	return s.steps(ctx, s.runtime+": ", []step{
		{"network", "calls with a network", func() (err error) { found.network, err = s.measureNetwork(ctx); return }},
		{"guard", "connections through the guard", func() error { return s.measureConnections(ctx, &found.guard) }},
		{"guard", "idle connections", func() error { return s.measureIdle(ctx, &found.guard) }},
	})
}
