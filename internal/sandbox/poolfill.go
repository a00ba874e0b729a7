package sandbox

import (
	"context"
	"errors"
	"time"

	"github.com/daycare-run/sandbox/internal/cgroup"
	"github.com/daycare-run/sandbox/internal/quota"
)

const (
	// fillEvery is how often it is looked whether something is missing, and fillSoon how often while something is.
	fillEvery, fillSoon = time.Second, 50 * time.Millisecond
	// fillAfter is how long after the last first call the pool is filled, and fillAnyway how long commands that run, and
	// calls that come one after the other, may put that off.
	fillAfter, fillAnyway = 200 * time.Millisecond, 2 * time.Second
	// fillRests is how many times as long as a container took to be made none is, for unlikeFor after a first call of a kind for which
	// none are kept: it makes its own beside, and gains nothing.
	fillRests, unlikeFor = 4, 10 * time.Second
	// fillAgain is when it is tried again after a failure.
	fillAgain = 10 * time.Second
)

// Fill keeps the pool full until ctx ends: one container is made at a time, while no call waits for one, or in its turn.
func (p *Pool) Fill(ctx context.Context) {
	wait := fillSoon
	for {
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-p.wake:
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
			return
		}
		p.classes.save(p.log)
		wait = p.step(ctx)
	}
}

// step makes one container if one is missing and it is a good moment. It returns when to look again.
func (p *Pool) step(ctx context.Context) (wait time.Duration) {
	p.revise(ctx)
	class, key, missing := p.missing()
	short := p.shortFor(missing)
	switch {
	case !missing:
		return fillEvery
	case cgroup.AvailableMemory() < p.cfg.Load().MinFreeMemory:
		return fillEvery
	case !p.quiet() && short < fillAnyway:
		return fillSoon
	}
	begun := time.Now()
	if err := p.fill(ctx, key, class); err != nil {
		if ctx.Err() == nil {
			p.failed(err)
		}
		return fillAgain
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.said, p.short = "", time.Time{}
	p.filled, p.took = time.Now(), time.Since(begun)
	p.stats.Refills++
	p.stats.Refilling += p.took
	return fillSoon
}

// failed notes that the pool could not be filled, once for each reason.
func (p *Pool) failed(err error) {
	p.countFailure(err)
	p.mu.Lock()
	defer p.mu.Unlock()
	if said := err.Error(); said != p.said {
		p.said = said
		p.log.Warn().Err(err).Msg("cannot fill the pool; trying again")
	}
}

// missing is a class of which there are too few, the latest one first. Those that are too many are removed.
func (p *Pool) missing() (class poolClass, key string, ok bool) {
	size := p.size()
	most, left := map[string]int{}, p.cfg.Load().Max
	wanted := p.classes.list()
	for _, w := range wanted {
		most[w.key] = min(size, left)
		left -= most[w.key]
	}
	p.executor.Trim(most)
	has, _ := p.executor.Stocked()
	for _, w := range wanted {
		if has[w.key] < most[w.key] {
			return w.poolClass, w.key, true
		}
	}
	return class, "", false
}

// quiet reports whether it is not the moment after a first call, or one to rest, with commands that a start would slow.
func (p *Pool) quiet() bool {
	p.mu.Lock()
	since := time.Since(p.last)
	rests := time.Since(p.unlike) < unlikeFor && time.Since(p.filled) < fillRests*p.took
	p.mu.Unlock()
	if rests {
		return false
	}
	commands := p.resolver.cfg().Quotas.Stats().InUse[quota.Commands]
	return since > fillAfter && (commands == 0 || since > fillAnyway)
}

// shortFor is for how long something has been missing, without one having been made.
func (p *Pool) shortFor(missing bool) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !missing {
		p.short = time.Time{}
		return 0
	}
	if p.short.IsZero() {
		p.short = time.Now()
	}
	return time.Since(p.short)
}

// fill makes one container of a class.
func (p *Pool) fill(ctx context.Context, key string, class poolClass) error {
	user, err := p.executor.NewPoolUser()
	if err != nil {
		return err
	}
	spec, err := p.resolver.pooledSpec(ctx, class, user, key)
	if errors.Is(err, errOtherClass) {
		p.classes.drop(key) // until a first call says what it is now
	}
	if err != nil {
		return errors.Join(err, p.executor.DropPooled(user))
	}
	err = p.executor.Stock(ctx, key, spec)
	if err != nil && class.Lasts && ctx.Err() == nil {
		p.classes.drop(key) // an image in which nothing can start keeps no other class waiting
	}
	return err
}
