package main

import (
	"context"
	"errors"
	"time"
)

// grants has the times of a warm exec of `true` by its grants.
type grants struct {
	// none and workspace are the same call again and again; each call of alternating asks for other
	// grants than the one before. paused is the call of none after as long a pause as a container
	// has in alternating.
	none, workspace, alternating, paused sample
	// cold counts the calls among them that found no container.
	cold int
}

// asked has the grants of the alternating calls, in turn. Each has a container of its own.
var asked = [][]string{nil, {"@workspace"}, {"@write:/home/out"}}

// grantWarmUps is how often all grants may be tried until every call finds its container. The first
// calls may make directories in the home, so that the same grants need another container.
const grantWarmUps = 5

// measureGrants takes turns in rows, and each turn begins with another way.
func (s *service) measureGrants(ctx context.Context) (found grants, err error) {
	if err := s.warmGrants(ctx); err != nil {
		return found, err
	}
	calls, pause := 0, time.Millisecond
	ways := []func(*grants) error{
		func(g *grants) error { return g.none.add(g.time(ctx, s, asked[0])) },
		func(g *grants) error { return g.workspace.add(g.time(ctx, s, asked[1])) },
		func(g *grants) error {
			calls++
			return g.alternating.add(g.time(ctx, s, asked[calls%len(asked)]))
		},
		func(g *grants) error {
			time.Sleep(time.Duration(len(asked)-1) * pause)
			took, err := g.time(ctx, s, asked[0])
			pause = took
			return g.paused.add(took, err)
		},
	}
	for turn := 0; len(found.none) < s.settings.warm; turn++ {
		into := &found
		if turn < warmUps {
			into = &grants{}
		}
		for i := range ways {
			for range rowLength {
				if err := ways[(turn+i)%len(ways)](into); err != nil {
					return found, err
				}
			}
		}
		if n := len(found.none); n > 0 && n%100 == 0 {
			s.say("%s: grants, %d of %d", s.runtime, n, s.settings.warm)
		}
	}
	return found, nil
}

// warmGrants returns when each grant has its container.
func (s *service) warmGrants(ctx context.Context) error {
	for range grantWarmUps {
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
	begun := time.Now()
	out, err := s.execGranted(ctx, boxID, tags, "true")
	took := time.Since(begun)
	if out.Cold {
		g.cold++
	}
	return took, err
}
