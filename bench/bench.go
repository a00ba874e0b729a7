package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/docker/docker/client"
)

// findings are all that a run has measured.
type findings struct {
	settings settings
	machine  machine
	deciding deciding
	runtimes []runtimeFindings
}

// runtimeFindings are those of one runtime.
type runtimeFindings struct {
	runtime  string
	latency  latency
	cold     cold
	together together
	streams  []stream
	slow     slowReader
	flood    flood
	memory   memory
	reading  reading
	large    large
	grants   grants
}

// errLeft marks an error that has left something behind.
var errLeft = errors.New("not everything is removed")

// lab is what all runtimes' measurements share.
type lab struct {
	settings settings
	docker   *client.Client
	dir      string // of this run alone; removed at the end
	floor    string // the floor program
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
	l.say("deciding")
	if found.deciding, err = l.measureDeciding(); err != nil {
		return findings{}, fmt.Errorf("deciding: %w", err)
	}
	for _, runtime := range cfg.runtimes {
		one, err := l.measureRuntime(ctx, runtime, &found.machine)
		if err != nil {
			return findings{}, fmt.Errorf("runtime %s: %w", runtime, err)
		}
		found.runtimes = append(found.runtimes, one)
	}
	return found, nil
}

func newLab(ctx context.Context, cfg settings, progress io.Writer) (_ *lab, err error) {
	l := &lab{settings: cfg, progress: progress, begun: time.Now()}
	if err := checkBinaries(cfg.bin); err != nil {
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
	return l, nil
}

func (l *lab) close() error {
	if err := errors.Join(os.RemoveAll(l.dir), l.docker.Close()); err != nil {
		return fmt.Errorf("%w: %w", errLeft, err)
	}
	return nil
}

// measureRuntime starts a service for one runtime, measures, and stops it.
func (l *lab) measureRuntime(ctx context.Context, runtime string, m *machine) (_ runtimeFindings, err error) {
	found := runtimeFindings{runtime: runtime}
	l.say("%s: starting a service", runtime)
	s, err := l.startService(ctx, runtime)
	if err != nil {
		return found, err
	}
	defer func() {
		l.say("%s: stopping the service and removing its containers", runtime)
		err = errors.Join(err, s.close())
	}()
	health, err := s.api.Health(ctx)
	if err != nil {
		return found, err
	}
	m.image = health.ImageVersion
	// Memory comes first, while the service is fresh, and once more when all of that container has been
	// measured. Grants make further containers, and large files keep the disk busy, so they come last.
	steps := []struct {
		name string
		run  func() error
	}{
		{"memory at rest", func() error { return s.measureRest(ctx, &found.memory) }},
		{"warm exec", func() (err error) { found.latency, err = s.measureLatency(ctx); return }},
		{"cold exec", func() (err error) { found.cold, err = s.measureCold(ctx); return }},
		{"64 at once", func() (err error) { found.together, err = s.measureTogether(ctx); return }},
		{"streams", func() (err error) { found.streams, err = s.measureStreams(ctx); return }},
		{"a slow reader", func() (err error) { found.slow, err = s.measureSlowReader(ctx, found.streams); return }},
		{"a flood", func() (err error) { found.flood, err = s.measureFlood(ctx); return }},
		{"memory after all this", func() error { return s.measureEnd(ctx, &found.memory) }},
		{"reading a file", func() (err error) { found.reading, err = s.measureReading(ctx); return }},
		{"grants", func() (err error) { found.grants, err = s.measureGrants(ctx); return }},
		{"large files", func() (err error) { found.large, err = s.measureLarge(ctx); return }},
	}
	for _, step := range steps {
		l.say("%s: %s", runtime, step.name)
		if err := step.run(); err != nil {
			return found, fmt.Errorf("%s: %w", step.name, s.explain(err))
		}
	}
	return found, nil
}
