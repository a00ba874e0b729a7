package sandbox

import (
	"context"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/singleflight"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/events"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/quota"
)

// PoolConfig says how many containers are kept ready for new users.
type PoolConfig struct {
	// Size is how many are kept for each kind of first call that came lately, and Max how many in all. A Size of 0 means none.
	Size, Max int
	// MinFreeMemory is how many bytes of memory the host must have available for more to be made.
	MinFreeMemory int64
	// Lasting are what sandboxes that last are made of now. No containers wait for other kinds of them.
	Lasting []plan.Lasting
}

// poolExecutor makes the pool's containers and gives them to users. *dockerexec.Executor is one.
type poolExecutor interface {
	Stock(ctx context.Context, class string, spec dockerexec.Spec) error
	Stocked() (all map[string]int, ready int)
	Trim(most map[string]int)
	Bind(ctx context.Context, class string, leave int, a quota.Account, egress dockerexec.Egress) error
	BindLasting(ctx context.Context, class string, leave int, user string, egress dockerexec.Egress) error
	DropPooled(user string) error
	NewPoolUser() (string, error)
}

// Pool keeps containers ready for users who are still to come, with homes of their own. The first calls of
// recent users decide which kinds of containers it keeps. It is safe for concurrent use.
type Pool struct {
	planner  *plan.Planner
	quotas   *quota.Ledger
	events   *events.Stream
	executor poolExecutor
	classes  *poolClasses
	cfg      atomic.Pointer[PoolConfig]
	log      zerolog.Logger
	wake     chan struct{} // holds a token when there may be something to do
	review   atomic.Bool   // what classes stand for may have changed

	binding singleflight.Group // by user

	mu     sync.Mutex
	last   time.Time // when a first call came
	unlike time.Time // when a first call came of a kind for which no containers are kept
	filled time.Time // when a container was last made; took is how long that took
	took   time.Duration
	short  time.Time           // since when a container has been missing; zero for none
	taken  map[share]time.Time // when a token last got a container of a class
	stats  PoolStats
	futile int    // failures in a row that are due to the file system
	off    string // why there is no pool after so many failures; until Use
	said   string // the last failure to fill it that was logged
}

// What the pool was for a user's first call. After all but poolHit, the call makes a container of its own.
const (
	poolHit    = "hit"
	poolEmpty  = "empty"  // no container of the class waits
	poolUnlike = "unlike" // no containers are kept for calls of this kind
	poolFailed = "failed"
)

// PoolOutcomes are all outcomes.
var PoolOutcomes = []string{poolHit, poolEmpty, poolUnlike, poolFailed}

// PoolStats are the pool's numbers.
type PoolStats struct {
	// Ready is how many containers wait for a user, and Classes how many kinds are kept.
	Ready, Classes int
	// Asked counts first calls by what the pool was for them.
	Asked map[string]uint64
	// Refills is how many containers were made, and Refilling how long that took in all.
	Refills   uint64
	Refilling time.Duration
	// Off is why the pool has turned itself off; empty if it has not.
	Off string
}

// OpenPool returns a Pool that continues with the kinds of containers recorded in file. Fill fills it.
func OpenPool(file string, cfg PoolConfig, planner *plan.Planner, executor poolExecutor, quotas *quota.Ledger, events *events.Stream, log zerolog.Logger) *Pool {
	p := &Pool{
		planner: planner, executor: executor, quotas: quotas, events: events, classes: readClasses(file, log), log: log,
		wake: make(chan struct{}, 1), taken: map[share]time.Time{}, stats: PoolStats{Asked: map[string]uint64{}},
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
	p.Review()
}

// maxFutile is how many failures in a row, due to the file system, turn the pool off.
const maxFutile = 3

// countFailure counts failures that will happen again. Others do not count; a container that a user gets resets the count.
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
		p.off = dockerexec.ErrHomesStay.Error() // without a user's name
		p.log.Error().Err(err).Int("times", maxFutile).Msg("the pool is off: new users wait for their containers; it tries again when the settings are read again or the service is started again")
	}
}

// Off returns why the pool has turned itself off, and "" if it has not.
func (p *Pool) Off() string {
	if p == nil {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.off
}

// size returns how many containers are kept for each class.
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

// Stats returns the present numbers.
func (p *Pool) Stats() PoolStats {
	_, ready := p.executor.Stocked()
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.Off = p.off
	s.Ready, s.Classes, s.Asked = ready, len(p.classes.list()), maps.Clone(p.stats.Asked)
	return s
}

// bind gives a user who has no folder one of the pool's, with the container that has it. Nothing depends on
// it: the call continues like any other, and finds the container by its Spec or makes one.
func (p *Pool) bind(ctx context.Context, c plan.Decided, token quota.Token) (hit bool) {
	if p == nil || p.size() == 0 || p.planner.Files().HasFolder(c.User.String()) {
		return false
	}
	// A call that comes meanwhile waits, and finds what this one has bound.
	_, _, _ = p.binding.Do(c.User.String(), func() (any, error) {
		if p.planner.Files().HasFolder(c.User.String()) { // by now
			return nil, nil
		}
		class, key, ok := classOf(c)
		hit = p.bindOnce(c, keyedClass{class, key}, ok, token, func(leave int) error {
			return p.executor.Bind(ctx, key, leave, quota.Account{User: c.User.String(), Token: token}, c.Egress)
		})
		return nil, nil
	})
	return hit
}

// bindLasting is bind for a sandbox that lasts, before it has its container.
func (p *Pool) bindLasting(ctx context.Context, c plan.Decided, l plan.Shape, token quota.Token) (hit bool) {
	if p == nil || p.size() == 0 {
		return false
	}
	class, key, ok := p.lastingClass(ctx, c, l)
	return p.bindOnce(c, keyedClass{class, key}, ok && p.cfg.Load().has(l), token, func(leave int) error {
		return p.executor.BindLasting(ctx, key, leave, c.User.String(), c.Egress)
	})
}

// bindOnce binds a container of a class if there is one, and counts the outcome.
func (p *Pool) bindOnce(c plan.Decided, class keyedClass, is bool, token quota.Token, bind func(leave int) error) (hit bool) {
	outcome, h := poolUnlike, share{class.key, token.Name}
	if is {
		p.classes.note(vote{Key: class.key, User: c.User.String(), Caller: token.Name}, class.poolClass)
		outcome = p.outcomeOf(c, bind(p.toLeave(h)))
	}
	p.mu.Lock()
	if outcome == poolHit {
		p.taken[h] = time.Now()
	}
	p.stats.Asked[outcome]++
	p.last = time.Now()
	if outcome == poolUnlike {
		p.unlike = p.last
	}
	p.mu.Unlock()
	p.wakeUp()
	return outcome == poolHit
}

func (p *Pool) outcomeOf(c plan.Decided, err error) string {
	if errors.Is(err, dockerexec.ErrNotStocked) {
		return poolEmpty
	}
	p.countFailure(err)
	if err != nil {
		p.events.Tell(context.Background(), c.User.String(), dockerexec.Incident{What: "the pool cannot serve a new user", Err: err})
		return poolFailed
	}
	return poolHit
}
