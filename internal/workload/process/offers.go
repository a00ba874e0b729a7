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
)

// Offers offers the ports of processes in the containers of calls: at 127.0.0.1 there, relayed by
// the service, with no network between containers. It is safe for concurrent use, and ends with its
// Manager.
type Offers struct {
	manager *Manager
	log     zerolog.Logger

	mu   sync.Mutex
	open map[*session.Session]*offer // by the container that calls are in
}

// NewOffers returns Offers of a Manager's processes.
func NewOffers(m *Manager) *Offers {
	return &Offers{manager: m, log: m.log, open: map[*session.Session]*offer{}}
}

// ReachedBy reports whether one of those names the process. One that runs inside its sandbox never
// is: its ports could be those of anything else there.
func (r Record) ReachedBy(reaches []dockerexec.Reach) bool {
	return !r.InSandbox && r.IsNamed(reaches)
}

// IsNamed reports whether one of those names the process.
func (r Record) IsNamed(reaches []dockerexec.Reach) bool {
	return slices.ContainsFunc(reaches, func(to dockerexec.Reach) bool {
		return cmp.Or(to.Name, r.Name) == r.Name && cmp.Or(to.Sandbox, r.SandboxID) == r.SandboxID
	})
}

// Bounds of an offer: how long a call waits for the ports that there are; how often is looked for
// processes that have been started since; when a process that does not tell its ports, or a
// container that does not take them, is asked again; how long the ports stay offered for the next
// call; and how many ports of one process are offered.
const (
	offerLimit    = 5 * time.Second
	offerInterval = 500 * time.Millisecond
	offerAgain    = 5 * time.Second
	offerLinger   = time.Second
	maxOffered    = wire.MaxPorts / 2
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
	name  string
	ports []int // the last that were told
	end   context.CancelFunc
	again time.Time // when to ask again, if it has ceased to tell; zero while it tells
	has   bool      // it has told, or has failed to
	fails bool      // it has failed twice in a row
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
			time.AfterFunc(offerLinger, func() { o.end(in, f) })
		}
	})
}

// end ends an offer unless calls are in its container.
func (o *Offers) end(in *session.Session, f *offer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if f.calls == 0 && o.open[in] == f {
		delete(o.open, in)
		f.cancel()
	}
}

// Silent reports whether a process that calls of its user reach does not tell its ports.
func (o *Offers) Silent(id string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, f := range o.open {
		f.mu.Lock()
		for _, t := range f.told {
			if t.by.id == id && t.fails {
				f.mu.Unlock()
				return true
			}
		}
		f.mu.Unlock()
	}
	return false
}

// begin begins to offer ports in a container; o.mu is held.
func (o *Offers) begin(in *session.Session, user string, reaches []dockerexec.Reach) *offer {
	f := &offer{of: o, reaches: reaches, begun: make(chan struct{}),
		owner: &owner{user: user, slots: make(chan struct{}, maxConnections), all: o.manager.cfg.Ports.all},
		told:  map[Identity]*toldPorts{}, behind: map[int]*process{}, wake: make(chan struct{}, 1)}
	f.ctx, f.cancel = context.WithCancel(o.manager.ctx)
	o.open[in] = f
	begun := sync.OnceFunc(func() { close(f.begun) })
	if !o.manager.background(func(context.Context) {
		defer f.work.Wait() // all of it ends with f.ctx, or soon after
		defer f.cancel()
		f.keep(in, begun)
	}) {
		begun()
	}
	return f
}

// keep offers ports until f.ctx or the container's session ends. What breaks is begun again.
func (f *offer) keep(in *session.Session, begun func()) {
	defer begun()
	for f.ctx.Err() == nil {
		err := f.run(in, begun)
		select {
		case <-in.Broken():
			return
		case <-f.ctx.Done():
			return
		default:
		}
		f.of.log.Warn().Err(err).Str("user", f.user).
			Msg("cannot offer ports of processes in a call's container; trying again")
		begun()
		if !f.pause(offerAgain) {
			return
		}
	}
}

// run keeps the offered ports as the processes listen, until f.ctx ends or something breaks.
func (f *offer) run(in *session.Session, begun func()) error {
	ctx, cancel := context.WithCancelCause(f.ctx)
	defer cancel(nil)
	offered, err := in.Offer(ctx)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, offered.Close)()
	defer offered.Close()
	f.work.Go(func() { cancel(f.accept(ctx, offered)) })
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
		case <-in.Broken():
			return session.ErrEnded
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// runningProcess is a process with what it runs in.
type runningProcess struct {
	*process
	name     string
	sandbox  string
	instance Instance
	tellsNot bool // an earlier version has started it
}

// reached lists the user's processes that run and are reached.
func (m *Manager) reached(user string, reaches []dockerexec.Reach) (list []runningProcess) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.ofUsers[user] {
		r := &p.record
		if r.Status == Running && r.ReachedBy(reaches) && !m.paused(*r) {
			list = append(list, runningProcess{p, r.Name, r.SandboxID, p.instance(), r.Held == ""})
		}
	}
	return list
}

// ask asks the processes that are reached for their ports, and forgets those of others. It reports
// whether one has yet to tell for the first time.
func (f *offer) ask() (waiting bool) {
	list := f.of.manager.reached(f.user, f.reaches)
	f.mu.Lock()
	defer f.mu.Unlock()
	there := map[Identity]bool{}
	for _, p := range list {
		id := p.instance.identity()
		there[id] = true
		told := f.told[id]
		if told == nil {
			told = &toldPorts{by: p.process, name: p.name, again: time.Now(), end: func() {}}
			f.told[id] = told
			told.has, told.fails = p.tellsNot, p.tellsNot
		}
		if p.tellsNot {
			continue
		}
		if !told.again.IsZero() && !time.Now().Before(told.again) {
			told.again = time.Time{}
			var ctx context.Context
			ctx, told.end = context.WithCancel(f.ctx)
			f.work.Go(func() { f.follow(ctx, p.instance, told) })
		}
		waiting = waiting || !told.has
	}
	for id, told := range f.told {
		if !there[id] {
			told.end()
			delete(f.told, id)
		}
	}
	return waiting
}

// follow takes what one instance tells. What it has told stays until it has failed twice.
func (f *offer) follow(ctx context.Context, i Instance, told *toldPorts) {
	change := func(do func()) {
		f.mu.Lock()
		do()
		told.has = true
		f.mu.Unlock()
		select {
		case f.wake <- struct{}{}:
		default:
		}
	}
	fresh := true // nothing has been told
	err := f.of.manager.cfg.Runner.Ports(ctx, i, func(ports []int) bool {
		fresh = false
		change(func() { told.ports, told.fails = ports[:min(len(ports), maxOffered)], false })
		return true
	})
	if ctx.Err() != nil {
		return
	}
	f.of.log.Debug().Err(err).Str("process", i.Process).Msg("a process does not tell its ports")
	told.end()
	change(func() {
		if !fresh {
			told.again = time.Now().Add(offerInterval)
			return
		}
		told.ports, told.fails, told.again = nil, true, time.Now().Add(offerAgain)
	})
}

// sum decides which ports are offered. Of two processes that listen at one port, the first by name
// has it.
func (f *offer) sum() []int {
	f.mu.Lock()
	defer f.mu.Unlock()
	told := slices.SortedFunc(maps.Values(f.told), func(a, b *toldPorts) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.by.id, b.by.id))
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

// accept relays the connections that arrive, until ctx ends or none can be fetched.
func (f *offer) accept(ctx context.Context, offered *session.Offer) error {
	for {
		select {
		case f.slots <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		arrived, err := offered.Accept(ctx)
		if err != nil {
			<-f.slots
			return err
		}
		f.work.Go(func() {
			defer func() { <-f.slots }()
			if !f.share() {
				arrived.Abort()
				return
			}
			defer f.all.Give(f.user, 1)
			f.relay(arrived, func() (Conn, error) { return f.reach(arrived) }, f.of.log)
		})
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
