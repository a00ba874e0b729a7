package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// step measures one part, or several of them.
type step struct {
	name  string
	parts []string
	run   func() error
}

// steps runs the steps that were asked for. A failed step is noted and the others still run,
// because a run is long. It returns an error if the run must end.
func (l *lab) steps(ctx context.Context, list []step) error {
	for _, s := range list {
		if !l.settings.has(s.parts...) {
			continue
		}
		l.say("%s", s.name)
		err := s.run()
		if err == nil {
			continue
		}
		err = fmt.Errorf("%s: %w", s.name, err)
		if ctx.Err() != nil || errors.Is(err, errLeft) {
			return err
		}
		l.say("FAILED: %v", err)
		for _, part := range s.parts {
			if l.settings.has(part) {
				l.failed[part] = strings.TrimPrefix(l.failed[part]+"; "+err.Error(), "; ")
			}
		}
	}
	return nil
}

// steps runs steps in a service, and names them after its runtime.
func (s *service) steps(ctx context.Context, list []step) error {
	for i := range list {
		list[i].name = s.runtime + ": " + list[i].name
	}
	return s.lab.steps(ctx, list)
}

// keep returns a step's function that keeps what a measurement finds.
func keep[T any](ctx context.Context, found *T, measure func(context.Context) (T, error)) func() error {
	return func() (err error) {
		*found, err = measure(ctx)
		return err
	}
}

func (l *lab) measurePass(ctx context.Context) (findings, error) {
	l.failed = map[string]string{}
	found := findings{settings: l.settings, failed: l.failed, runtimes: make([]runtimeFindings, len(l.settings.runtimes))}
	steps := []step{
		{"DNS questions", []string{"dns"}, keep(ctx, &found.dns, l.measureDNS)},
		{"work on the host", []string{"work"}, keep(ctx, &found.work, l.workOnHost)},
		{"among many others", []string{"scale"}, keep(ctx, &found.scale, l.measureScale)},
	}
	for i, runtime := range l.settings.runtimes {
		found.runtimes[i].runtime = runtime
		steps = append(steps, l.runtimeSteps(ctx, &found.runtimes[i])...)
	}
	err := l.steps(ctx, steps)
	return found, err
}

// noPool is the setting for first calls that have to make a container.
var noPool = []string{"SANDBOXD_POOL_SIZE=0"}

// runtimeSteps measure all of one runtime, in services one after the other.
func (l *lab) runtimeSteps(ctx context.Context, found *runtimeFindings) []step {
	in := func(name string, settings []string, run func(*service) error, parts ...string) step {
		return step{found.runtime + ": " + name, parts, func() error {
			return l.withService(ctx, found.runtime, name, settings, run)
		}}
	}
	return []step{
		in("inside", noPool, func(s *service) error { return s.measureInside(ctx, found) },
			"warm", "session", "cold", "together", "streams", "memory", "grants"),
		in("work", workSettings, func(s *service) (err error) { found.work, err = s.workInside(ctx); return }, "work"),
		in("rest", nil, func(s *service) error { return s.measureResting(ctx, &found.resting.waiting) }, "rest"),
		in("rest-alone", aloneSettings, func(s *service) error { return s.measureAgentAlone(ctx, &found.resting) }, "rest"),
		in("outside", l.worldSettings(), func(s *service) error { return s.measureOutside(ctx, found) }, "network", "guard"),
		in("credentials", l.credentialSettings(), func(s *service) (err error) { found.credentials, err = s.measureCredentials(ctx); return }, "credentials"),
		in("processes", nil, func(s *service) (err error) { found.processes, err = s.measureStarts(ctx); return }, "processes"),
		{found.runtime + ": e2b", []string{"e2b"}, func() (err error) { found.e2b, err = l.measureE2B(ctx, found.runtime); return }},
		in("create-pool", poolSettings, func(s *service) error { return s.measurePooled(ctx, &found.creation) }, "create"),
		in("create-frozen", frozenSettings, func(s *service) error { return s.measureFrozen(ctx, &found.creation) }, "create"),
		in("create-refill", nil, func(s *service) error { return s.measureRefilling(ctx, &found.creation) }, "create"),
		in("crowd", crowdSettings, func(s *service) error { return s.measureCrowd(ctx, &found.crowd) }, "crowd"),
		in("crowd-frozen", frozenCrowdSettings, func(s *service) error { return s.measureFrozenCrowd(ctx, &found.crowd) }, "crowd"),
		in("create", noPool, func(s *service) error { return s.measureCreation(ctx, &found.creation) }, "create"),
	}
}

// withService starts a service for one runtime, measures, and stops it.
func (l *lab) withService(ctx context.Context, runtime, name string, settings []string, run func(*service) error) (err error) {
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
// once more when all of that container has been measured. Grants make further containers, so they
// come last.
func (s *service) measureInside(ctx context.Context, found *runtimeFindings) error {
	return s.steps(ctx, []step{
		{"memory at rest", []string{"memory"}, keep(ctx, &found.memory.fresh, s.daemonAtRest)},
		{"warm commands", []string{"warm"}, keep(ctx, &found.warm, s.measureWarm)},
		{"a session", []string{"session"}, keep(ctx, &found.session, s.measureSession)},
		{"cold exec", []string{"cold"}, keep(ctx, &found.cold, s.measureCold)},
		{"64 at once", []string{"together"}, keep(ctx, &found.together, s.measureTogether)},
		{"streams", []string{"streams"}, keep(ctx, &found.streams, s.measureStreams)},
		{"memory after all this", []string{"memory"}, keep(ctx, &found.memory.end, s.daemonAtRest)},
		{"grants", []string{"grants"}, keep(ctx, &found.grants, s.measureGrants)},
	})
}

// measureOutside measures what goes over the network, in the test internet.
func (s *service) measureOutside(ctx context.Context, found *runtimeFindings) error {
	if err := s.travel(ctx); err != nil {
		return err
	}
	return s.steps(ctx, []step{
		{"calls with a network", []string{"network"}, keep(ctx, &found.network, s.measureNetwork)},
		{"connections through the guard", []string{"guard"}, func() error { return s.measureGuard(ctx, &found.guard) }},
	})
}
