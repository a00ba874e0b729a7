package main

import (
	"context"
	"errors"
	"time"

	"github.com/daycare-run/sandbox/api/types"
)

// grants has the times of a warm exec of `true` by its grants.
type grants struct {
	// none and workspace are the same call again and again; each call of alternating asks for other
	// grants than the one before. paused is the call of none after as long a pause as a container
	// has in alternating.
	none, workspace, alternating, paused sample
	// cold counts the calls that found no container.
	cold int
}

// asked has the grants of the alternating calls, in turn. Each has a container of its own.
var asked = [][]string{nil, {"@workspace"}, {"@write:/home/out"}}

const (
	// grantTries is how often all grants may be tried until every call finds its container. The
	// first calls may make directories in the home, so that the same grants need another container.
	grantTries = 5
	// grantsTarget is how long a call with grants may take, relative to one without.
	grantsTarget = 1.05
)

func (s *service) measureGrants(ctx context.Context) (found grants, err error) {
	if err := s.warmGrants(ctx); err != nil {
		return found, err
	}
	granted := func(tags []string) func() (time.Duration, error) {
		return func() (time.Duration, error) { return found.time(ctx, s, tags) }
	}
	calls, length := 0, time.Millisecond
	err = byTurns(s.settings.warmTurns(), warmUps,
		repeated(rowLength, &found.none, granted(asked[0])),
		repeated(rowLength, &found.workspace, granted(asked[1])),
		repeated(rowLength, &found.alternating, func() (time.Duration, error) {
			calls++
			return found.time(ctx, s, asked[calls%len(asked)])
		}),
		repeated(rowLength, &found.paused, func() (_ time.Duration, err error) {
			time.Sleep(time.Duration(len(asked)-1) * length)
			length, err = found.time(ctx, s, asked[0])
			return length, err
		}))
	return found, err
}

// warmGrants returns when each grant has its container.
func (s *service) warmGrants(ctx context.Context) error {
	for range grantTries {
		var g grants
		for _, tags := range asked {
			if _, err := g.time(ctx, s, tags); err != nil {
				return err
			}
		}
		if g.cold == 0 {
			return nil
		}
	}
	return errors.New("calls still find no container for their grants, although the same calls came before")
}

// time measures an exec with grants, and counts it in cold if it was cold.
func (g *grants) time(ctx context.Context, s *service, tags []string) (time.Duration, error) {
	return timed(func() error {
		out, err := s.call(ctx, boxID, types.Exec{Argv: []string{"true"}, Permissions: tags})
		if out.Cold {
			g.cold++
		}
		return err
	})
}

func grantsSection(f findings) section {
	s := section{
		title: "Grants",
		how: "A warm exec of `true` through the API, by what it is granted: calls without grants; calls with `@workspace`; and\n" +
			"calls that ask for nothing, `@workspace` and `@write:/home/out` in turn, so that each goes to another container than\n" +
			"the one before. All three containers were used before. The ways take turns in rows of ten, and each turn begins with\n" +
			"another one. Paused is a call without grants after a pause as long as two calls: so long is each container idle where\n" +
			"three take turns. A cold call is one that found no container.",
		head: timesHead("runtime", "grants"),
	}
	for _, r := range f.runtimes {
		g := r.grants
		s.times(g.none, r.runtime, "none")
		s.times(g.workspace, r.runtime, "`@workspace`")
		s.times(g.alternating, r.runtime, "alternating")
		s.times(g.paused, r.runtime, "none, paused")
		s.judge(
			zero(r.runtime, "cold calls", g.cold),
			atMost(r.runtime, "p50 of `@workspace` ÷ none", ratio(g.workspace.median(), g.none.median()), grantsTarget, times),
			atMost(r.runtime, "p50 of alternating ÷ none", ratio(g.alternating.median(), g.none.median()), grantsTarget, times))
	}
	return s
}
