package life

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"
)

// ErrPaused is the error for a container that stays frozen: because its user asked for that, or
// because it was found so and only a call has it taken over.
var ErrPaused = fmt.Errorf("it is paused: resume it first: %w", cerrdefs.ErrFailedPrecondition)

// ErrLeft is the error for a container that takes no calls any more: another one will do.
var ErrLeft = errors.New("the container is being removed")

// ErrUnwanted is why a container is not made for which no call waits any more.
var ErrUnwanted = errors.New("no call waits for the container any more")

// Config says what a Life is about.
type Config struct {
	Engine Engine
	// Detached says that the container goes on without calls and without a service.
	Detached bool
	// ID is Docker's id of a container that was found, and Paused says that it was found paused.
	ID     string
	Paused bool
}

// Life is the life of one container. It is safe for concurrent use. Methods without a context do
// not block.
type Life struct {
	engine   Engine
	detached bool
	making   context.Context
	stop     context.CancelCauseFunc
	wanted   chan struct{} // closed by the first call
	settled  chan struct{} // closed when its maker is done
	gone     chan struct{}
	asking   chan struct{} // holds one while Docker is asked to pause or resume it

	mu       sync.Mutex
	id       string
	state    State
	reason   Reason
	why      error // why it ended or left
	calls    int
	commands int
	lastUsed time.Time
	thawing  *Thawing
	pause    pause
}

// New returns the Life of a container that is to be made, or of one that was found. One to be made
// is Queued. One that was found is Frozen if it is paused, else Ready if it is detached, else
// Starting. ctx bounds the making of it.
func New(ctx context.Context, c Config) *Life {
	l := &Life{
		engine: c.Engine, detached: c.Detached, id: c.ID, lastUsed: time.Now(),
		wanted: make(chan struct{}), settled: make(chan struct{}), gone: make(chan struct{}),
		asking: make(chan struct{}, 1),
		pause:  pause{is: c.Paused, ran: c.ID != "" || c.Detached, changed: make(chan struct{})},
	}
	l.making, l.stop = context.WithCancelCause(ctx)
	switch {
	case c.Paused:
		l.state, l.reason = Frozen, Found
	case c.ID != "" && c.Detached:
		l.state = Ready
	case c.ID != "":
		l.state = Starting
	}
	if c.ID != "" && c.Detached {
		close(l.settled)
	}
	return l
}

// Outcome says what came of an event, and what the caller has to do now.
type Outcome uint8

// The outcomes.
const (
	// Refused means that the table does not allow the event in the present state: somebody else was
	// faster.
	Refused Outcome = iota
	// Done means that there is nothing to do: what was Queued or Starting is its maker's to end.
	Done
	// Ends means that the container came to Ended: the caller frees what its programs had.
	Ends
	// Removes means that the container came to Leaving: the caller removes it, and then does
	// Removed.
	Removes
)

// Do has an event happen. why is the reason of Die, Abort, Remove, Release and Fail; the first
// reason stays, except that Fail's is kept in any case.
func (l *Life) Do(on Event, why error) Outcome {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.do(on, why)
}

func (l *Life) do(on Event, why error) Outcome {
	from := l.state
	to, ok := l.next(on)
	if !ok {
		return Refused
	}
	switch on {
	case Call:
		l.calls++
		closeOnce(l.wanted)
	case Return:
		l.calls--
		l.lastUsed = time.Now()
		if from == Queued && to == Leaving {
			why = ErrUnwanted
		}
	case Freeze:
		l.reason = Idle
	case Pause:
		l.reason = Requested
	case Resume:
		l.lastUsed = time.Now()
	default:
	}
	l.enter(to, why)
	if on == Fail { // what its maker says is more than that it was to stop
		l.why = why
		closeOnce(l.settled)
	}
	switch {
	case to == Ended && from > Starting && from != Ended:
		return Ends
	case to == Leaving && from > Starting && from != Leaving:
		return Removes
	default:
		return Done
	}
}

// next looks an event up in the table.
func (l *Life) next(on Event) (to State, ok bool) {
	for _, t := range table {
		if t.from == l.state && t.on == on && l.holds(t.guard) {
			return t.to, true
		}
	}
	return l.state, false
}

func (l *Life) holds(g guard) bool {
	switch g {
	case unused:
		return l.calls+l.commands == 0 && !l.detached
	case used:
		return l.calls+l.commands > 0
	case last:
		return l.calls == 1
	case more:
		return l.calls > 1
	case byCalls:
		return !l.detached
	case detached:
		return l.detached
	case idle:
		return l.reason == Idle && !l.detached
	case found:
		return l.reason == Found
	default:
		return true
	}
}

// enter comes to a state.
func (l *Life) enter(to State, why error) {
	l.state = to
	if to >= Ended {
		l.why = cmp.Or(l.why, why)
	}
	if to > Starting {
		l.stop(cmp.Or(l.why, ErrLeft))
	}
	if to > Starting && to != Leaving {
		closeOnce(l.settled)
	}
	if to == Gone {
		closeOnce(l.gone)
	}
	l.pause.notify()
}

// closeOnce closes a channel that may be closed already. Life.mu is held.
func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

// Join counts a call, of which there may be at most limit; it must be followed by Return. It
// returns the state that the container was in: from Queued, Starting and Draining the call waits
// for Settled; from Frozen to Starting, the caller has it taken over. thawing is set while it may
// still be resuming: the caller that found it Frozen calls Thaw. The error is ErrLeft, ErrPaused,
// or errdefs.ErrResourceExhausted.
func (l *Life) Join(limit int) (from State, thawing *Thawing, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.calls >= limit {
		return l.state, nil, fmt.Errorf("it has %d calls already, which is the most: %w", l.calls,
			cerrdefs.ErrResourceExhausted)
	}
	from = l.state
	refused := l.do(Call, nil) == Refused
	switch {
	case refused && from == Frozen:
		return from, nil, ErrPaused
	case refused:
		return from, nil, ErrLeft
	case from == Frozen && l.state == Ready:
		l.thawing = &Thawing{done: make(chan struct{})}
	}
	return from, l.thawing, nil
}

// Command counts a command that may be running until end is called. If the container is held and no
// command has begun there yet, it waits for the holder. The error is the context's cause.
func (l *Life) Command(ctx context.Context) (end func(), err error) {
	err = l.wait(ctx, func() (bool, error) {
		return l.pause.ran || l.pause.holders == 0, nil
	}, func() {
		l.pause.ran = true
		l.commands++
	})
	if err != nil {
		return nil, err
	}
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.commands--
	}), nil
}

// Name sets Docker's id of a container that is being made: empty while Docker has none.
func (l *Life) Name(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.id, l.pause.is, l.pause.doubt = id, false, false
}

// ID returns Docker's id; empty while Docker has no such container.
func (l *Life) ID() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.id
}

// Now is what a Life says of itself at one moment.
type Now struct {
	State    State
	Reason   Reason // if State is Frozen
	ID       string
	Calls    int
	Commands int
	LastUsed time.Time
	Why      error // why it ended or left
}

// Now returns what is so at this moment.
func (l *Life) Now() Now {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Now{l.state, l.reason, l.id, l.calls, l.commands, l.lastUsed, l.why}
}

// Making ends, with the reason, when the container need not be made any more, and when it is made.
func (l *Life) Making() context.Context { return l.making }

// Wanted is closed when a call wants the container.
func (l *Life) Wanted() <-chan struct{} { return l.wanted }

// Settled is closed when its maker is done: the container has been made, or will not be.
func (l *Life) Settled() <-chan struct{} { return l.settled }

// Gone is closed when the container is no concern of this service any more.
func (l *Life) Gone() <-chan struct{} { return l.gone }
