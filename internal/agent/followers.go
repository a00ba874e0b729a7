//go:build linux

package agent

import (
	"sync"
	"time"

	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// followers are the followers of one command, which goes on without them, and what it printed while
// there were none.
//
// A follower that takes nothing must not stop the others, nor the command: when maxWaiting bytes
// wait for it, the command waits for it for a while, which is backpressure to a follower that is
// only slow; then it is cut off. What waited for the last follower when it left, or was cut off, is
// kept for the next one. The command of a call waits for its caller for as long as that is there.
type followers struct {
	waits bool // for a follower, until that leaves

	mu   sync.Mutex
	all  map[*follower]bool
	kept []piece // not given to any follower yet
	size int     // of kept, as cost counts
	lost int64   // bytes that came before kept and are gone
	// last was cut off, and what waited for it is kept; nil once another one has joined.
	last *follower
	exit *wire.Exit
}

// piece is a piece of output. Its data is shared by all followers, and does not change once a
// follower has it.
type piece struct {
	kind wire.Kind
	data []byte
}

const (
	// maxWaiting is how much output may wait for one follower, and how much is kept while there is
	// none, in bytes.
	maxWaiting = 1 << 20
	// maxNews is about how much a follower gets at a time, in bytes: if it takes that much within
	// followPatience, it is not cut off.
	maxNews = 128 << 10
	// pieceOverhead is what a piece costs beside its data. keptPiece is the size up to which small
	// ones are put together.
	pieceOverhead = 64
	keptPiece     = 4 << 10
	// followPatience is how long the command waits for a follower that takes nothing: long for a
	// network and short for a command.
	followPatience = 10 * time.Second
	// maxFollowers bounds the followers of one command.
	maxFollowers = 32
)

func (p piece) cost() int { return len(p.data) + pieceOverhead }

func newFollowers(waits bool) *followers {
	return &followers{all: map[*follower]bool{}, waits: waits}
}

// follower is one follower of a command. The mutex of its followers covers waiting, size, lost and
// cut.
type follower struct {
	of      *followers
	waiting []piece
	size    int
	lost    int64 // bytes that are missing before waiting
	cut     bool
	more    chan struct{} // holds one when there is something new
	room    chan struct{} // holds one when something was taken
	gone    chan struct{} // closed when it leaves
	stop    func()        // closes gone
}

// join adds a follower, which gets everything that is kept. It returns nil when there are too many.
func (fs *followers) join() *follower {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if len(fs.all) >= maxFollowers {
		return nil
	}
	f := &follower{of: fs, more: make(chan struct{}, 1), room: make(chan struct{}, 1),
		gone: make(chan struct{})}
	f.stop = sync.OnceFunc(func() { close(f.gone) })
	f.waiting, f.size, f.lost = fs.kept, fs.size, fs.lost
	fs.kept, fs.size, fs.lost, fs.last = nil, 0, 0, nil
	fs.all[f] = true
	notify(f.more)
	return f
}

// notify sends on a channel with room for one value, unless it is full.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// write gives output to all followers, or keeps it if there are none. The data must not change
// afterwards.
func (fs *followers) write(kind wire.Kind, data []byte) {
	p := piece{kind, data}
	fs.mu.Lock()
	var full []*follower
	taken := false
	for f := range fs.all {
		if f.size < maxWaiting {
			f.give(p)
			taken = true
		} else {
			full = append(full, f)
		}
	}
	if !taken && len(full) == 0 {
		fs.keep(p)
	}
	fs.mu.Unlock()
	if len(full) == 0 {
		return
	}
	expired := make(chan struct{})
	if !fs.waits { // all of them together have that long
		defer time.AfterFunc(followPatience, func() { close(expired) }).Stop()
	}
	for _, f := range full {
		taken = fs.await(f, p, expired) || taken
	}
	if taken {
		return
	}
	// All followers that it waited for have left; others may have come.
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for f := range fs.all {
		f.give(p)
		taken = true
	}
	if !taken {
		fs.keep(p)
	}
}

// give adds a piece to what waits for a follower. The mutex is held.
func (f *follower) give(p piece) {
	f.waiting = append(f.waiting, p)
	f.size += p.cost()
	notify(f.more)
}

// await gives a piece to a follower for which too much waits, once it has taken some. It reports
// false if it left or was cut off.
func (fs *followers) await(f *follower, p piece, expired <-chan struct{}) bool {
	for {
		late := false
		select {
		case <-f.room:
		case <-f.gone:
			return false
		case <-expired:
			late = true
		}
		fs.mu.Lock()
		fits := fs.all[f] && f.size < maxWaiting
		switch {
		case fits:
			f.give(p)
		case late && fs.all[f]:
			f.cut = true
			delete(fs.all, f)
			if len(fs.all) == 0 { // the next one gets what waited
				fs.kept, fs.size, fs.lost, fs.last = f.waiting, f.size, f.lost, f
			}
			f.waiting, f.lost = nil, 0
			notify(f.more)
		}
		fs.mu.Unlock()
		if fits || late {
			return fits
		}
	}
}

// keep keeps a piece for the next follower, and drops the oldest ones above maxWaiting. The mutex
// is held.
func (fs *followers) keep(p piece) {
	if n := len(fs.kept); n > 0 && fs.kept[n-1].kind == p.kind &&
		len(fs.kept[n-1].data)+len(p.data) <= keptPiece {
		last := fs.kept[n-1]
		// This copies the data, since a follower that has left may still have it.
		fs.kept[n-1].data = append(last.data[:len(last.data):len(last.data)], p.data...)
		fs.size += len(p.data)
	} else {
		fs.kept = append(fs.kept, p)
		fs.size += p.cost()
	}
	for fs.size > maxWaiting {
		oldest := fs.kept[0]
		fs.kept[0] = piece{}
		fs.kept = fs.kept[1:]
		fs.size -= oldest.cost()
		fs.lost += int64(len(oldest.data))
	}
}

// end records how the command has ended. Nothing is written afterwards.
func (fs *followers) end(exit wire.Exit) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.exit = &exit
	for f := range fs.all {
		notify(f.more)
	}
}

// delivery is what a follower gets next.
type delivery struct {
	lost   int64
	pieces []piece
	cut    bool
	exit   *wire.Exit // after the pieces; nil while the command runs
}

// next waits for the next delivery; false means that the follower has left.
func (f *follower) next() (delivery, bool) {
	for {
		f.of.mu.Lock()
		n := f.take()
		f.of.mu.Unlock()
		if n.lost > 0 || len(n.pieces) > 0 || n.cut || n.exit != nil {
			notify(f.room)
			return n, true
		}
		select {
		case <-f.more:
		case <-f.gone:
			return delivery{}, false
		}
	}
}

// take returns what is there to deliver. The mutex is held.
func (f *follower) take() delivery {
	if f.cut {
		return delivery{cut: true}
	}
	n := delivery{lost: f.lost}
	f.lost = 0
	size, i := 0, 0
	for ; i < len(f.waiting) && size < maxNews; i++ {
		size += f.waiting[i].cost()
	}
	n.pieces, f.waiting = f.waiting[:i:i], f.waiting[i:]
	if f.size -= size; len(f.waiting) == 0 {
		f.waiting, n.exit = nil, f.of.exit
	}
	return n
}

// leave removes a follower; unsent is the part of its last delivery that was not sent.
func (f *follower) leave(unsent delivery) {
	f.stop()
	fs := f.of
	fs.mu.Lock()
	defer fs.mu.Unlock()
	delete(fs.all, f)
	if len(fs.all) > 0 || f.cut && fs.last != f {
		return
	}
	later, lost := fs.kept, fs.lost
	fs.kept, fs.size, fs.lost = nil, 0, unsent.lost+f.lost
	for _, list := range [][]piece{unsent.pieces, f.waiting, later} {
		for _, p := range list {
			fs.keep(p)
		}
	}
	fs.lost += lost
}
