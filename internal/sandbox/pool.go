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
	"github.com/daycare-run/sandbox/internal/rootfs"
	"github.com/daycare-run/sandbox/internal/warm"
)

// PoolConfig says how many containers are kept ready for new users.
type PoolConfig struct {
	// Size is how many are kept for each kind of first call that came lately, and Max how many in
	// all. A Size of 0 means none.
	Size, Max int
	// AtOnce is how many are made at a time; 0 means one.
	AtOnce int
	// MinFreeMemory is how many bytes of memory the host must have available for more to be made.
	MinFreeMemory int64
	// Homes says who owns new homes. If that changes, containers that wait are made again.
	Homes rootfs.Owners
	// Persistent are what persistent sandboxes are made of now. No containers wait for other kinds
	// of them.
	Persistent []plan.Persistent
}

// poolRunner makes the pool's containers and gives them to users. *warm.Runner is one.
type poolRunner interface {
	Stock(ctx context.Context, class string, plan func(user string) (dockerexec.Spec, error)) error
	Stocked() (all map[string]int, ready int)
	Trim(limits map[string]int)
	Bind(ctx context.Context, class string, leave int, a quota.Account,
		egress dockerexec.Egress) error
}

// Pool keeps containers ready for users who are still to come, with homes of their own. The first
// calls of recent users decide which kinds of containers it keeps. It is safe for concurrent use.
type Pool struct {
	planner  *plan.Planner
	quotas   *quota.Ledger
	events   *events.Stream
	runner   poolRunner
	classes  *poolClasses
	cfg      atomic.Pointer[PoolConfig]
	log      zerolog.Logger
	wake     chan struct{} // holds a token when there may be something to do
	review   atomic.Bool   // what classes stand for may have changed
	outdated atomic.Bool   // containers wait whose homes have owners of former settings

	binding singleflight.Group // by user

	mu     sync.Mutex
	last   time.Time // when a first call came
	unlike time.Time // when a first call came of a kind for which no containers are kept
	filled time.Time // when a container was last made; took is how long that took
	took   time.Duration
	short  time.Time // since when a container has been missing; zero for none
	taken  map[share]taking
	stats  PoolStats
	futile int    // failures in a row that are due to the file system
	off    string // why there is no pool after so many failures; until Use
	said   string // the last failure to fill it that was logged
	// failing are the classes of which none could be made when that was last tried.
	failing map[string]bool
}

// What the pool was for a user's first call. After all but poolHit, the call makes a container of
// its own.
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

// OpenPool returns a Pool that continues with the kinds of containers recorded in file. Fill fills
// it.
func OpenPool(file string, cfg PoolConfig, planner *plan.Planner, runner poolRunner,
	quotas *quota.Ledger, events *events.Stream, log zerolog.Logger) *Pool {
	p := &Pool{
		planner: planner, runner: runner, quotas: quotas, events: events,
		classes: readClasses(file, log), log: log, wake: make(chan struct{}, 1),
		taken: map[share]taking{}, failing: map[string]bool{},
		stats: PoolStats{Asked: map[string]uint64{}},
	}
	p.Use(cfg)
	return p
}

// Use replaces the PoolConfig. A Pool that has turned itself off tries again.
func (p *Pool) Use(cfg PoolConfig) {
	if was := p.cfg.Swap(&cfg); was != nil && was.Homes != cfg.Homes {
		p.outdated.Store(true)
	}
	p.mu.Lock()
	p.futile, p.off, p.said = 0, "", ""
	p.mu.Unlock()
	p.Review()
}

// maxFutile is how many failures in a row, due to the file system, turn the pool off.
const maxFutile = 3

// countFailure counts failures that will happen again. Others do not count; a container that a user
// gets resets the count.
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
		p.log.Error().Err(err).Int("times", maxFutile).
			Msg("the pool is off: new users wait for their containers; it tries again when the settings are read again or the service is started again")
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
	_, ready := p.runner.Stocked()
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.Off = p.off
	s.Ready, s.Classes, s.Asked = ready, len(p.classes.list()), maps.Clone(p.stats.Asked)
	return s
}

// bind gives a user who has no folder one of the pool's, with the container that has it. shape is
// that of a persistent sandbox; nil for calls. Nothing depends on bind: whoever asked continues as
// always, and finds the container by its Spec or makes one.
func (p *Pool) bind(ctx context.Context, c plan.Decided, shape *plan.Shape,
	token quota.Token) (hit bool) {
	if p == nil || p.size() == 0 {
		return false
	}
	user := c.User.String()
	isNew := func() bool {
		has, err := p.planner.Files().HasFolder(user)
		return err == nil && !has // of storage that does not answer, the call's plan tells
	}
	if !isNew() {
		return false
	}
	// A call that comes meanwhile waits, and finds what this one has bound.
	_, _, _ = p.binding.Do(user, func() (any, error) {
		if isNew() {
			hit = p.bindOnce(ctx, c, shape, token)
		}
		return nil, nil
	})
	return hit
}

// BindPersistent is bind for a persistent sandbox of that shape.
func (p *Pool) BindPersistent(ctx context.Context, c plan.Decided, shape plan.Shape,
	owner quota.Token) {
	p.bind(ctx, c, &shape, owner)
}

// bindOnce binds a container of a class if there is one, and counts the outcome.
func (p *Pool) bindOnce(ctx context.Context, c plan.Decided, shape *plan.Shape,
	token quota.Token) (hit bool) {
	class, is := p.classOf(ctx, c, shape)
	outcome, taker, leave := poolUnlike, share{class.key, token.Name}, 0
	if is {
		p.classes.note(vote{class: class, user: c.User.String(), caller: token.Name})
		a := quota.Account{User: c.User.String(), Token: token}
		leave = p.beginTaking(taker)
		outcome = p.outcomeOf(c, p.runner.Bind(ctx, class.key, leave, a, c.Egress))
	}
	p.mu.Lock()
	if is {
		p.endTaking(taker, leave, outcome == poolHit)
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
	if errors.Is(err, warm.ErrNotStocked) {
		return poolEmpty
	}
	p.countFailure(err)
	if err != nil {
		p.events.Tell(context.Background(), c.User.String(),
			dockerexec.Incident{What: "the pool cannot serve a new user", Err: err})
		return poolFailed
	}
	return poolHit
}
