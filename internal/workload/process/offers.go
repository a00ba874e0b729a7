package process

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/agent/wire"
	"github.com/daycare-run/sandbox/internal/fair"
)

// Offers offers the ports of processes in the containers of calls: at 127.0.0.1 there, relayed by
// the service, with no network between containers. It is safe for concurrent use.
type Offers struct {
	manager *Manager
	all     *fair.Pool // connections of all calls, shared by users
	log     zerolog.Logger

	mu   sync.Mutex
	open map[*session.Session]*offer // by the container that calls are in
}

// NewOffers returns Offers of a Manager's processes.
func NewOffers(m *Manager) *Offers {
	return &Offers{manager: m, all: fair.NewPool(maxAllConnections, 0), log: m.log,
		open: map[*session.Session]*offer{}}
}

// ReachedBy reports whether one of those names the process.
func (r Record) ReachedBy(reaches []dockerexec.Reach) bool {
	return slices.ContainsFunc(reaches, func(to dockerexec.Reach) bool {
		return cmp.Or(to.Name, r.Name) == r.Name && cmp.Or(to.Sandbox, r.SandboxID) == r.SandboxID
	})
}

// ErrInside says that a process runs inside its sandbox, whose ports are not told apart.
var ErrInside = errors.New("it runs inside its sandbox, beside others: only a call in that sandbox reaches its ports")

// Bounds of an offer: how long a call waits for the ports that there are, how often is looked for
// processes that have been started since, when a process that did not tell its ports is asked
// again, and how long the ports stay offered for the next call.
const (
	offerLimit    = 5 * time.Second
	offerInterval = 500 * time.Millisecond
	offerAgain    = 5 * time.Second
	offerLinger   = time.Second
)

// offer is what is offered in one container, for as long as calls are in it.
type offer struct {
	*owner
	of      *Offers
	reaches []dockerexec.Reach
	begun   chan struct{} // closed when what there was at the beginning is offered, or cannot be
	calls   int           // under Offers.mu

	mu     sync.Mutex
	told   map[Identity]*toldPorts // by the instance of the process
	behind map[int]*process        // by port
	wake   chan struct{}
}

// toldPorts are the ports of one instance.
type toldPorts struct {
	by    *process
	ports []int // nil until it has told
	end   context.CancelFunc
	again time.Time // when to ask again, if it has ceased to tell; zero while it tells
}

// Enter offers the ports of a user's processes in a container until the caller, a call there, calls
// leave. It blocks until those are offered that a process listens at now, for 5 s at most, or until
// ctx ends: what does not answer is left out.
func (o *Offers) Enter(ctx context.Context, in *session.Session, user string,
	reaches []dockerexec.Reach) (leave func()) {
	if len(reaches) == 0 {
		return func() {}
	}
	o.mu.Lock()
	f := o.open[in]
	if f == nil {
		f = o.begin(in, user, reaches)
	}
	f.calls++
	o.mu.Unlock()
	limit := time.NewTimer(offerLimit)
	defer limit.Stop()
	select {
	case <-f.begun:
	case <-limit.C:
	case <-ctx.Done():
	}
	return sync.OnceFunc(func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if f.calls--; f.calls == 0 {
			time.AfterFunc(offerLinger, func() { o.end(in, f, true) })
		}
	})
}

// end ends an offer, or only if no call is in its container.
func (o *Offers) end(in *session.Session, f *offer, ifUnused bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if ifUnused && f.calls > 0 {
		return
	}
	if o.open[in] == f {
		delete(o.open, in)
	}
	f.cancel()
}

// begin begins to offer ports in a container; o.mu is held.
func (o *Offers) begin(in *session.Session, user string, reaches []dockerexec.Reach) *offer {
	f := &offer{of: o, reaches: reaches, begun: make(chan struct{}),
		owner: &owner{user: user, slots: make(chan struct{}, maxConnections), all: o.all},
		told:  map[Identity]*toldPorts{}, behind: map[int]*process{}, wake: make(chan struct{}, 1)}
	f.ctx, f.cancel = context.WithCancel(o.manager.ctx)
	o.open[in] = f
	go func() {
		begun := sync.OnceFunc(func() { close(f.begun) })
		defer begun()
		defer o.end(in, f, false)
		if err := f.run(in, begun); err != nil && f.ctx.Err() == nil {
			o.log.Warn().Err(err).Str("user", user).
				Msg("cannot offer ports of processes in a call's container")
		}
	}()
	return f
}

// run keeps the offered ports as the processes listen, until f.ctx ends.
func (f *offer) run(in *session.Session, begun func()) error {
	offered, err := in.Offer(f.ctx)
	if err != nil {
		return err
	}
	defer offered.Close()
	go f.accept(offered)
	next := time.NewTicker(offerInterval)
	defer next.Stop()
	set := []int{}
	for {
		waiting := f.ask()
		if want := f.sum(); !slices.Equal(want, set) {
			// What programs of the container have is tried again, until they give it up.
			if set, err = offered.Set(want); err != nil {
				return err
			}
		}
		if !waiting {
			begun()
		}
		select {
		case <-f.wake:
		case <-next.C:
		case <-f.ctx.Done():
			return nil
		}
	}
}

// reached lists the processes that run and are reached, by name.
func (f *offer) reached() []*process {
	list := slices.DeleteFunc(f.of.manager.all(), func(p *process) bool {
		r := p.shown()
		return r.UserID != f.user || r.Status != Running || f.of.manager.paused(r) ||
			!r.ReachedBy(f.reaches)
	})
	slices.SortFunc(list, func(a, b *process) int {
		return cmp.Or(cmp.Compare(a.shown().Name, b.shown().Name), cmp.Compare(a.id, b.id))
	})
	return list
}

// ask asks the processes that are reached for their ports, and forgets those of others. It reports
// whether one has yet to tell for the first time.
func (f *offer) ask() (waiting bool) {
	list := f.reached()
	f.mu.Lock()
	defer f.mu.Unlock()
	there := map[Identity]bool{}
	for _, p := range list {
		f.of.manager.mu.Lock()
		i := p.instance()
		f.of.manager.mu.Unlock()
		id := i.identity()
		there[id] = true
		told := f.told[id]
		if told == nil || !told.again.IsZero() && time.Now().After(told.again) {
			told = &toldPorts{by: p}
			var ctx context.Context
			ctx, told.end = context.WithCancel(f.ctx)
			f.told[id] = told
			go f.follow(ctx, i, told)
		}
		waiting = waiting || told.ports == nil && told.again.IsZero()
	}
	for id, told := range f.told {
		if !there[id] {
			told.end()
			delete(f.told, id)
		}
	}
	return waiting
}

// follow takes what one instance tells.
func (f *offer) follow(ctx context.Context, i Instance, told *toldPorts) {
	change := func(ports []int, again time.Time) {
		f.mu.Lock()
		told.ports, told.again = ports, again
		f.mu.Unlock()
		select {
		case f.wake <- struct{}{}:
		default:
		}
	}
	err := f.of.manager.cfg.Runner.Ports(ctx, i, func(ports []int) bool {
		change(append([]int{}, ports...), time.Time{})
		return true
	})
	if ctx.Err() != nil {
		return
	}
	f.of.log.Debug().Err(err).Str("process", i.Process).Msg("a process does not tell its ports")
	change(nil, time.Now().Add(offerAgain))
}

// sum decides which ports are offered. Of two processes that listen at one port, the first by name
// has it.
func (f *offer) sum() []int {
	f.mu.Lock()
	defer f.mu.Unlock()
	told := slices.SortedFunc(maps.Values(f.told), func(a, b *toldPorts) int {
		return cmp.Or(cmp.Compare(a.by.shown().Name, b.by.shown().Name),
			cmp.Compare(a.by.id, b.by.id))
	})
	clear(f.behind)
	for _, t := range told {
		for _, port := range t.ports {
			if f.behind[port] == nil && len(f.behind) < wire.MaxPorts {
				f.behind[port] = t.by
			}
		}
	}
	return slices.Sorted(maps.Keys(f.behind))
}

// accept relays the connections that arrive, until the offer ends.
func (f *offer) accept(offered *session.Offer) {
	for f.take() {
		arrived, err := offered.Accept(f.ctx)
		if err != nil {
			f.give()
			return
		}
		go func() {
			defer f.give()
			f.relay(arrived, func() (Conn, error) { return f.reach(arrived) }, f.of.log)
		}()
	}
}

// reach connects an arrival to its process.
func (f *offer) reach(arrived session.Arrival) (Conn, error) {
	f.mu.Lock()
	p := f.behind[arrived.Port]
	f.mu.Unlock()
	if p == nil {
		return nil, errors.New("no process listens at that port any more")
	}
	conn, err := p.dialer()(f.ctx, arrived.Port)
	if err != nil {
		return nil, err
	}
	if err := arrived.Answer(); err != nil {
		conn.Abort()
		return nil, err
	}
	return conn, nil
}
