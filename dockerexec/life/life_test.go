package life

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/daycare-run/sandbox/internal/waittest"
)

// lateEngine is a Docker with one container that answers when it likes. It does what it was asked for also when its
// caller has left, one thing after the other, not always in the order in which it was asked, and not always at all.
type lateEngine struct {
	turn chan struct{} // has one while it does something to the container

	mu     sync.Mutex
	random *rand.Rand
	paused bool
	ended  bool
	busy   int // requests that have not come to their end
}

var errRefused = errors.New("no")

func (d *lateEngine) chance(percent int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.random.IntN(100) < percent
}

func (d *lateEngine) delay(limit time.Duration) {
	d.mu.Lock()
	wait := time.Duration(d.random.Int64N(int64(limit)))
	d.mu.Unlock()
	time.Sleep(wait)
}

func (d *lateEngine) is() (paused, ended bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.paused, d.ended
}

func (d *lateEngine) with(do func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	do()
}

func (d *lateEngine) Pause(context.Context, string) error { return d.ask(true) }

func (d *lateEngine) Resume(context.Context, string) error {
	err := d.ask(false)
	if err != nil { // as the real one
		d.mu.Lock()
		d.ended = true
		d.mu.Unlock()
	}
	return err
}

func (d *lateEngine) ask(pause bool) error {
	answer := make(chan error, 1)
	d.mu.Lock()
	d.busy++
	d.mu.Unlock()
	go func() {
		d.delay(50 * time.Millisecond) // until somebody looks at the request
		d.turn <- struct{}{}
		defer func() { <-d.turn }()
		answer <- d.do(pause)
		d.mu.Lock()
		d.busy--
		d.mu.Unlock()
	}()
	return <-answer
}

func (d *lateEngine) do(pause bool) error {
	limit, slow, refuses, late := 200*time.Millisecond, d.chance(3), d.chance(10), d.chance(50)
	if slow {
		limit = 4 * time.Second
	}
	d.delay(limit)
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.ended: // nothing runs there
	case pause && refuses:
		d.paused = d.paused || late // it may say so and have done it
		return errRefused
	default:
		d.paused = pause
	}
	return nil
}

// modelled is one container with those who need it.
type modelled struct {
	*Life
	docker *lateEngine
	t      *testing.T
	seed   uint64
}

func (m *modelled) check(who string, paused bool) {
	if is, ended := m.docker.is(); is != paused && !ended {
		m.t.Errorf("seed %d: %s, and Docker has it paused: %v", m.seed, who, is)
	}
}

func (m *modelled) user(ctx context.Context) {
	done, err := m.Use(ctx)
	if err != nil {
		return
	}
	m.check("it is used", false)
	m.docker.delay(300 * time.Millisecond)
	m.check("it is still used", false)
	done()
}

func (m *modelled) holder(ctx context.Context) {
	release, err := m.Hold(ctx)
	if err != nil {
		if release != nil {
			_ = release()
		}
		return
	}
	m.check("it is held", true)
	m.docker.delay(300 * time.Millisecond)
	m.check("it is still held", true)
	_ = release()
}

// visitor is at the container without a call's knowing.
func (m *modelled) visitor(ctx context.Context) {
	done, err := m.Visit(ctx)
	if err != nil {
		return
	}
	m.check("it is visited", false)
	m.docker.delay(300 * time.Millisecond)
	m.check("it is still visited", false)
	done()
}

func (m *modelled) freezer(ctx context.Context) { _, _ = m.Freeze(ctx) }

func (m *modelled) pauser(ctx context.Context) {
	if m.Pause(ctx) == nil {
		m.check("it was paused on request", true)
		m.docker.delay(time.Second)
		m.check("it is paused on request", true)
		if _, err := m.Use(ctx); ctx.Err() == nil && !errors.Is(err, ErrPaused) && m.Now().State == Frozen {
			m.t.Errorf("seed %d: it was used while it is paused on request: %v", m.seed, err)
		}
	}
	_ = m.Resume(context.WithoutCancel(ctx))
}

// caller runs a command, as calls do.
func (m *modelled) caller(ctx context.Context) {
	from, thawing, err := m.Join(100)
	if err != nil {
		return
	}
	defer func() {
		if m.Do(Return, nil) == Removes {
			m.Do(Removed, nil)
		}
	}()
	if from == Frozen && thawing != nil {
		go func() { _ = m.Thaw(context.WithoutCancel(ctx), thawing) }()
	}
	end, err := m.Command(ctx)
	if err != nil {
		return
	}
	defer end()
	if thawing != nil {
		<-thawing.Done()
	}
	m.docker.delay(300 * time.Millisecond)
	if s := m.Now().State; s == Frozen {
		m.t.Errorf("seed %d: it is frozen during a call", m.seed)
	}
}

// killer ends the container, as anybody at Docker may.
func (m *modelled) killer(context.Context) {
	if !m.docker.chance(3) {
		return
	}
	m.docker.with(func() { m.docker.ended = true })
	m.Do(Die, errRefused)
}

// Docker has a container as its state says, whoever comes, waits, gives up and is killed in whichever order: it runs for
// who is at it, is paused for who holds it, and is as its state says when nobody is left.
func TestDockerHasItAsItsStateSays(t *testing.T) {
	for seed := range uint64(300) {
		synctest.Test(t, func(t *testing.T) {
			d := &lateEngine{turn: make(chan struct{}, 1), random: rand.New(rand.NewPCG(seed, 13))}
			m := &modelled{New(t.Context(), Config{Engine: d, Detached: seed%2 == 0}), d, t, seed}
			m.Do(Begin, nil)
			m.Name("c")
			m.Do(Succeed, nil)
			end, err := m.Command(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			end() // so holders pause it
			doers := []func(context.Context){m.user, m.user, m.user, m.visitor, m.visitor, m.holder, m.holder, m.killer}
			if m.detached {
				doers = append(doers, m.pauser)
			} else {
				doers = append(doers, m.freezer, m.freezer, m.caller, m.caller)
			}
			var all sync.WaitGroup
			for _, do := range doers {
				all.Go(func() {
					for range 6 {
						m.docker.delay(500 * time.Millisecond)
						ctx, cancel := context.WithCancel(t.Context())
						if m.docker.chance(40) {
							giveUp := time.AfterFunc(time.Duration(seed%7+1)*40*time.Millisecond, cancel)
							defer giveUp.Stop()
						}
						do(ctx)
						cancel()
					}
				})
			}
			all.Wait()
			waittest.Until(t, "what nobody waits for any more has ended", func() (idle bool) {
				d.with(func() { idle = d.busy == 0 })
				return idle
			})
			m.check("nobody is left", m.Now().State == Frozen)
			if _, ended := m.docker.is(); ended {
				return
			}
			if _, thawing, err := m.Join(100); err == nil && thawing != nil {
				_ = m.Thaw(t.Context(), thawing)
			}
			done, err := m.Use(t.Context())
			if _, ended := m.docker.is(); err != nil && !ended {
				t.Fatalf("seed %d: it cannot be used at the end: %v", seed, err)
			}
			if err == nil {
				m.check("it is used at the end", false)
				done()
			}
		})
		if t.Failed() {
			return
		}
	}
}

// A container in which no command has begun is not paused for a holder: its first command waits.
func TestTheFirstCommandWaitsForHolders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &lateEngine{turn: make(chan struct{}, 1), random: rand.New(rand.NewPCG(1, 1))}
		l := New(t.Context(), Config{Engine: d})
		l.Do(Begin, nil)
		l.Name("c")
		l.Do(Succeed, nil)
		release, err := l.Hold(t.Context())
		if err != nil || d.busy > 0 || d.paused {
			t.Fatal("Docker was asked to pause it", err)
		}
		began := false
		go func() {
			end, err := l.Command(t.Context())
			if err == nil {
				began = true
				end()
			}
		}()
		synctest.Wait()
		if began {
			t.Error("a command began while it was held")
		}
		if err := release(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if !began {
			t.Error("no command begins after it was held")
		}
	})
}

// What runs by itself asks nobody before it begins a command, so it is paused for holders from its first moment.
func TestDetachedIsPausedForHolders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &lateEngine{turn: make(chan struct{}, 1), random: rand.New(rand.NewPCG(1, 1))}
		l := New(t.Context(), Config{Engine: d, Detached: true})
		l.Do(Begin, nil)
		l.Name("c")
		release, err := l.Hold(t.Context())
		if err != nil || !d.paused {
			t.Fatal("it runs while it is held", err)
		}
		if err := release(); err != nil || d.paused {
			t.Error("it stays paused", err)
		}
	})
}

// A container for calls that was found paused is left to the call that has it taken over: it is not on its way out.
func TestOnlyACallHasAFoundOneTakenOver(t *testing.T) {
	d := &lateEngine{turn: make(chan struct{}, 1), random: rand.New(rand.NewPCG(1, 1))}
	l := New(t.Context(), Config{Engine: d, ID: "c", Paused: true})
	for name, use := range map[string]func(context.Context) (func(), error){
		"Use": l.Use, "UseToSignal": l.UseToSignal, "Visit": l.Visit,
	} {
		if _, err := use(t.Context()); !errors.Is(err, ErrPaused) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if from, thawing, err := l.Join(1); from != Frozen || thawing != nil || err != nil || l.Now().State != Starting {
		t.Errorf("a call found it %v: %v, and it is %v", from, err, l.Now().State)
	}
}

// Docker may tell late that it has resumed a container, which is paused again by then. It is resumed all the same.
func TestDockerTellsLateThatItHasResumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &lateEngine{turn: make(chan struct{}, 1), random: rand.New(rand.NewPCG(1, 1))}
		l := New(t.Context(), Config{Engine: d, ID: "c"})
		l.Do(Succeed, nil)
		for range 2 { // the second time after the first one's event
			if frozen, err := l.Freeze(t.Context()); !frozen || err != nil {
				t.Fatal(frozen, err)
			}
			l.Resumed()
			_, thawing, err := l.Join(1)
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Thaw(t.Context(), thawing); err != nil || d.paused {
				t.Errorf("it is paused for a call: %v", err)
			}
			l.Do(Return, nil)
		}
		if frozen, err := l.Freeze(t.Context()); !frozen || err != nil {
			t.Fatal(frozen, err)
		}
		d.with(func() { d.paused = false }) // somebody else has
		l.Resumed()
		release, err := l.Hold(t.Context())
		if err != nil || !d.paused {
			t.Errorf("it runs while it is held: %v", err)
		}
		if err := release(); err != nil {
			t.Error(err)
		}
	})
}

// A container that was held for long rests, so that its programs have half of the time.
func TestHoldersLeaveHalfOfTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &lateEngine{turn: make(chan struct{}, 1), random: rand.New(rand.NewPCG(1, 1))}
		l := New(t.Context(), Config{Engine: d, Detached: true, ID: "c"})
		var held time.Duration
		begun := time.Now()
		for time.Since(begun) < 30*time.Second {
			release, err := l.Hold(t.Context())
			if err != nil {
				if release != nil {
					_ = release()
				}
				continue
			}
			from := time.Now()
			waittest.Pass(time.Second)
			held += time.Since(from)
			_ = release()
		}
		if share := held.Seconds() / time.Since(begun).Seconds(); share > 0.6 {
			t.Errorf("it was held %.0f %% of the time", 100*share)
		}
	})
}
