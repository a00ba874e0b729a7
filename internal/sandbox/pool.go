package sandbox

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/quota"
)

// PoolConfig says how many containers are kept ready for new users.
type PoolConfig struct {
	// Size is how many for each kind of first call that has come lately, and Max how many in all. A Size of 0 is for none.
	Size, Max int
	// MinFreeMemory is how many bytes the host has to have left, or no more are made.
	MinFreeMemory int64
}

// PoolExecutor makes the pool's containers and gives them to users. *dockerexec.Executor is one.
type PoolExecutor interface {
	Stock(ctx context.Context, class string, spec dockerexec.Spec) error
	Stocked() (all map[string]int, ready int)
	Trim(most map[string]int)
	Bind(ctx context.Context, class string, a quota.Account, egress dockerexec.Egress) error
	BindLasting(ctx context.Context, class, user string, egress dockerexec.Egress) error
	DropPooled(user string) error
	NewPoolUser() string
}

// Pool has containers ready for users who are still to come, with homes of their own. Which kinds of containers is up to
// the first calls of the users who came lately. It is safe for concurrent use.
type Pool struct {
	resolver *Resolver
	executor PoolExecutor
	classes  *poolClasses
	cfg      atomic.Pointer[PoolConfig]
	log      zerolog.Logger
	wake     chan struct{} // has one when there may be something to do

	mu      sync.Mutex
	binding map[string]chan struct{} // by user; closed when that is done
	last    time.Time                // when a first call came
	stats   PoolStats
	futile  int    // failures in a row for a reason of the file system
	off     string // why there is no pool, since so many; until Use
	said    string // the last failure to fill it that was logged
}

// PoolOutcome is what the pool was for a user's first call.
type PoolOutcome string

// The outcomes. All but PoolHit are reasons for the call to make a container of its own.
const (
	PoolHit    PoolOutcome = "hit"
	PoolEmpty  PoolOutcome = "empty"  // no container of the class waits
	PoolUnlike PoolOutcome = "unlike" // the call is of a kind for which none are kept
	PoolFailed PoolOutcome = "failed"
)

// PoolOutcomes are all of them.
var PoolOutcomes = []PoolOutcome{PoolHit, PoolEmpty, PoolUnlike, PoolFailed}

// PoolStats are the pool's numbers.
type PoolStats struct {
	// Ready are the containers that wait for a user, and Classes how many kinds are kept.
	Ready, Classes int
	// Asked counts first calls by what the pool was for them.
	Asked map[PoolOutcome]uint64
	// Refills is how many containers were made, and Refilling how long that took in all.
	Refills   uint64
	Refilling time.Duration
	// Off is why the pool has turned itself off; empty where it has not.
	Off string
}

// OpenPool returns a Pool that goes on with the kinds of containers that are in file. Fill fills it.
func OpenPool(file string, cfg PoolConfig, resolver *Resolver, executor PoolExecutor, log zerolog.Logger) *Pool {
	p := &Pool{
		resolver: resolver, executor: executor, classes: readClasses(file, log), log: log,
		wake: make(chan struct{}, 1), binding: map[string]chan struct{}{}, stats: PoolStats{Asked: map[PoolOutcome]uint64{}},
	}
	p.Use(cfg)
	return p
}

// Use replaces the PoolConfig. A Pool that has turned itself off tries again.
func (p *Pool) Use(cfg PoolConfig) {
	p.cfg.Store(&cfg)
	p.mu.Lock()
	p.futile, p.off, p.said = 0, "", ""
	p.mu.Unlock()
	p.wakeUp()
}

// maxFutile is after how many failures in a row, for a reason of the file system, the pool turns itself off.
const maxFutile = 3

// countFailure counts consecutive failures of the kind that will come again. Other failures do not count; a success resets the count.
func (p *Pool) countFailure(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		p.futile = 0
	}
	if !errors.Is(err, dockerexec.ErrHomesStay) {
		return
	}
	if p.futile++; p.futile == maxFutile {
		p.off = dockerexec.ErrHomesStay.Error() // and no user's name
		p.log.Error().Err(err).Int("times", maxFutile).Msg("the pool is off: new users wait for their containers; it tries again when the settings are read again or the service is started again")
	}
}

// Off is why the pool has turned itself off; empty where it has not.
func (p *Pool) Off() string {
	if p == nil {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.off
}

// size is how many containers are kept for each class.
func (p *Pool) size() int {
	if p.Off() != "" {
		return 0
	}
	return p.cfg.Load().Size
}

func (p *Pool) wakeUp() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Stats returns the numbers of now.
func (p *Pool) Stats() PoolStats {
	_, ready := p.executor.Stocked()
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.Off = p.off
	s.Ready, s.Classes, s.Asked = ready, len(p.classes.list()), map[PoolOutcome]uint64{}
	for outcome, n := range p.stats.Asked {
		s.Asked[outcome] = n
	}
	return s
}

// bind gives a user who has no home one of the pool's, with the container that has it. Nothing rests on it: the call goes on
// as any other, and finds the container by its Spec or makes one.
func (p *Pool) bind(ctx context.Context, c *call, token quota.Token) (hit bool) {
	if p == nil || p.size() == 0 || p.resolver.rootfs.HasHome(c.User.id) {
		return false
	}
	done := p.enter(ctx, c.User.id)
	if done == nil {
		return false
	}
	defer done()
	if p.resolver.rootfs.HasHome(c.User.id) { // by now
		return false
	}
	class, key, egress, ok := p.resolver.class(c)
	return p.bindOnce(c, keyedClass{class, key}, ok, token, func() error {
		return p.executor.Bind(ctx, key, quota.Account{User: c.User.id, Token: token}, egress)
	})
}

// bindLasting is bind for a sandbox that lasts, before it has its container.
func (p *Pool) bindLasting(ctx context.Context, c *call, l lastingShape, egress dockerexec.Egress, token quota.Token) (hit bool) {
	if p == nil || p.size() == 0 {
		return false
	}
	class, key, ok := p.resolver.lastingClass(ctx, c, l, egress)
	return p.bindOnce(c, keyedClass{class, key}, ok, token, func() error {
		return p.executor.BindLasting(ctx, key, c.User.id, egress)
	})
}

// bindOnce has a container of a class bound, if there are such, and counts what came of it.
func (p *Pool) bindOnce(c *call, class keyedClass, is bool, token quota.Token, bind func() error) (hit bool) {
	outcome := PoolUnlike
	if is {
		p.classes.note(vote{Key: class.key, User: c.User.id, Caller: token.Name}, class.poolClass)
		outcome = p.outcomeOf(c, bind())
	}
	p.mu.Lock()
	p.stats.Asked[outcome]++
	p.last = time.Now()
	p.mu.Unlock()
	p.wakeUp()
	return outcome == PoolHit
}

func (p *Pool) outcomeOf(c *call, err error) PoolOutcome {
	if errors.Is(err, dockerexec.ErrNotStocked) {
		return PoolEmpty
	}
	p.countFailure(err)
	if err != nil {
		p.log.Warn().Err(err).Str("user", c.User.id).Msg("the pool cannot serve a new user")
		return PoolFailed
	}
	return PoolHit
}

// enter waits for whoever binds for the same user, and is followed by done. It returns nil if somebody has.
func (p *Pool) enter(ctx context.Context, user string) (done func()) {
	p.mu.Lock()
	if under := p.binding[user]; under != nil {
		p.mu.Unlock()
		select {
		case <-under:
		case <-ctx.Done():
		}
		return nil
	}
	ended := make(chan struct{})
	p.binding[user] = ended
	p.mu.Unlock()
	return func() {
		p.mu.Lock()
		delete(p.binding, user)
		p.mu.Unlock()
		close(ended)
	}
}

const (
	// fillEvery is how often it is looked whether something is missing, and fillSoon how often while something is.
	fillEvery, fillSoon = time.Second, 50 * time.Millisecond
	// fillAfter is how long after the last first call the pool is filled, and fillAnyway how long commands that run
	// may put that off.
	fillAfter, fillAnyway = 200 * time.Millisecond, 2 * time.Second
	// fillAgain is when it is tried again after a failure.
	fillAgain = 10 * time.Second
)

// Fill keeps the pool full until ctx ends: one container is made at a time, while nobody waits for one.
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
	class, key, missing := p.missing()
	switch {
	case !missing:
		return fillEvery
	case dockerexec.AvailableMemory() < p.cfg.Load().MinFreeMemory:
		return fillEvery
	case !p.quiet():
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
	p.said = ""
	p.stats.Refills++
	p.stats.Refilling += time.Since(begun)
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

// quiet reports whether it is not the moment after a first call, with commands that a start would slow.
func (p *Pool) quiet() bool {
	p.mu.Lock()
	since := time.Since(p.last)
	p.mu.Unlock()
	commands := p.resolver.cfg().Quotas.Stats().InUse[quota.Commands]
	return since > fillAfter && (commands == 0 || since > fillAnyway)
}

// fill makes one container of a class.
func (p *Pool) fill(ctx context.Context, key string, class poolClass) error {
	user := p.executor.NewPoolUser()
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
