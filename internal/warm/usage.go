package warm

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/daycare-run/sandbox/internal/cgroup"
)

const (
	// usageAge is how old an answer of Usages may be: it reads two files for each container.
	usageAge = 10 * time.Second
	// maxStatsAsked is how many of the containers whose control groups cannot be read here Docker
	// is asked about: asking costs a thousand times as much.
	maxStatsAsked = 64
	// statsLimit is how long Docker may take for all of them; those that it has not answered for by
	// then are left out.
	statsLimit = 5 * time.Second
)

// usages are what containers used at the last request.
type usages struct {
	turn chan struct{} // holds one while they are read, so that they are read once for all callers
	// Under turn.
	at  time.Time
	all map[string]cgroup.Usage
}

// Usages returns what the containers of calls and of the pool use, by name, at most ten seconds
// old. Those for which it is unknown are left out. It is read on request only, and nil if ctx ends
// while another call reads. The map must not be changed.
func (r *Runner) Usages(ctx context.Context) map[string]cgroup.Usage {
	u := &r.usages
	select {
	case u.turn <- struct{}{}:
		defer func() { <-u.turn }()
	case <-ctx.Done():
		return nil
	}
	if time.Since(u.at) < usageAge {
		return u.all
	}
	all, asked := map[string]cgroup.Usage{}, map[string]string{}
	for _, c := range append(r.Containers(), r.Pooled()...) {
		if c.ID == "" {
			continue
		}
		found, err := r.executor.Cgroups().Usage(c.ID)
		switch {
		case err == nil:
			all[c.Name] = found
		case len(asked) < maxStatsAsked:
			asked[c.Name] = c.ID
		}
	}
	answering, cancel := context.WithTimeout(ctx, statsLimit)
	defer cancel()
	var mu sync.Mutex
	var asking errgroup.Group
	asking.SetLimit(4)
	for name, id := range asked {
		asking.Go(func() error {
			found, err := r.executor.Usage(answering, id)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				found.Memory += found.Cache // as of those whose control groups are read
				all[name] = found
			}
			return nil // a container that is gone meanwhile uses nothing
		})
	}
	_ = asking.Wait()
	if ctx.Err() == nil {
		u.at, u.all = time.Now(), all
	}
	return all
}
