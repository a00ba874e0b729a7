package sandbox

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/cgroup"
	"github.com/daycare-run/sandbox/internal/quota"
)

const (
	// fillEvery is how often the pool checks whether something is missing, and fillSoon how often
	// while something is.
	fillEvery, fillSoon = time.Second, 50 * time.Millisecond
	// fillAfter is how long after the last first call the pool is filled, and fillAnyway how long
	// running commands, and calls that come one after the other, may delay that.
	fillAfter, fillAnyway = 200 * time.Millisecond, 2 * time.Second
	// fillRests is how long the pool rests after it has made a container, as a multiple of how long
	// that took, for unlikeFor after a first call of a kind for which none are kept: such a call
	// makes its own meanwhile, and gains nothing.
	fillRests, unlikeFor = 4, 10 * time.Second
	// fillAgain is how long the pool waits after a failure.
	fillAgain = 10 * time.Second
	// fillMemory is more than a container takes that waits: of those that are made together, each
	// has it.
	fillMemory = 64 << 20
)

// Fill keeps the pool full until ctx ends. It makes as many containers at a time as PoolConfig says,
// when no call waits for one, or in their turn.
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

// step makes containers if some are missing and the moment is good, and waits for them. It returns
// when to look again.
func (p *Pool) step(ctx context.Context) (wait time.Duration) {
	p.revise(ctx)
	if p.outdated.Swap(false) { // nothing is being made now: that would be done here
		p.runner.Trim(nil)
	}
	cfg := p.cfg.Load()
	missing := p.missing(max(cfg.AtOnce, 1))
	spare := cgroup.AvailableMemory() - cfg.MinFreeMemory
	short := p.shortFor(len(missing) > 0)
	switch {
	case len(missing) == 0:
		return fillEvery
	case spare < 0:
		return fillEvery
	case !p.quiet() && short < fillAnyway:
		return fillSoon
	}
	missing = missing[:min(len(missing), int(spare/fillMemory)+1)]
	var filling sync.WaitGroup
	faults := make([]error, len(missing))
	for i, class := range missing {
		filling.Go(func() { faults[i] = p.fillOne(ctx, class) })
	}
	filling.Wait()
	wait = fillAgain
	for i, err := range faults {
		switch {
		case err == nil:
			wait = fillSoon
		case ctx.Err() == nil:
			p.failed(missing[i].key, err)
		}
	}
	if err := errors.Join(faults...); err != nil && ctx.Err() == nil {
		p.countFailure(err) // they failed at once, so as one
	}
	return wait
}

// fillOne makes one container of a class.
func (p *Pool) fillOne(ctx context.Context, class keyedClass) error {
	begun := time.Now()
	if err := p.fill(ctx, class); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.failing, class.key)
	p.said, p.short = "", time.Time{}
	p.filled, p.took = time.Now(), time.Since(begun)
	p.stats.Refills++
	p.stats.Refilling += p.took
	return nil
}

// failed notes a failure to make a container of a class, and logs it once for each reason.
func (p *Pool) failed(class string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failing[class] = true
	if said := err.Error(); said != p.said {
		p.said = said
		p.log.Warn().Err(err).Msg("cannot fill the pool; trying again")
	}
}

// missing returns the class of each container that is missing, at most so many, those of the class
// with most votes first. A class of which none can be made keeps no other one waiting. missing
// removes containers that are too many.
func (p *Pool) missing(most int) (missing []keyedClass) {
	size := p.size()
	limits, left := map[string]int{}, p.cfg.Load().Max
	wanted := p.classes.list()
	for _, w := range wanted {
		limits[w.key] = min(size, left)
		left -= limits[w.key]
	}
	p.runner.Trim(limits)
	has, _ := p.runner.Stocked()
	p.mu.Lock()
	defer p.mu.Unlock()
	var failing []keyedClass
	for _, w := range wanted {
		for range limits[w.key] - has[w.key] {
			if p.failing[w.key] {
				failing = append(failing, w)
			} else {
				missing = append(missing, w)
			}
		}
	}
	if len(missing) == 0 {
		clear(p.failing) // each has had its turn
		missing = failing
	}
	return missing[:min(len(missing), most)]
}

// quiet reports whether no first call has just come, the pool does not rest, and no commands run
// that a start would slow.
func (p *Pool) quiet() bool {
	p.mu.Lock()
	since := time.Since(p.last)
	rests := time.Since(p.unlike) < unlikeFor && time.Since(p.filled) < fillRests*p.took
	p.mu.Unlock()
	if rests {
		return false
	}
	commands := p.quotas.Stats().InUse[quota.Commands]
	return since > fillAfter && (commands == 0 || since > fillAnyway)
}

// shortFor returns how long something has been missing without a container having been made.
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

// fill makes one container of a class. A class whose calls policy decides about otherwise now is
// forgotten until a first call says what it is. So is one of sandboxes of which none can be made:
// an image in which nothing can start keeps no other class waiting. A full quota drops none.
func (p *Pool) fill(ctx context.Context, class keyedClass) error {
	planned := false
	err := p.runner.Stock(ctx, class.key, func(user string) (dockerexec.Spec, error) {
		spec, err := p.pooledSpec(ctx, class, user)
		planned = err == nil
		return spec, err
	})
	_, full := errors.AsType[*quota.Exceeded](err)
	if errors.Is(err, errOtherClass) ||
		err != nil && planned && !full && class.Persistent && ctx.Err() == nil {
		p.classes.drop(class.key)
	}
	return err
}
