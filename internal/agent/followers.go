//go:build linux

package agent

import (
	"sync"
	"time"

	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// followers are those who follow one command that goes on without them, and what it printed while there were none.
//
// One who takes nothing must not stop the others, nor the command: when as much waits for it as may, the command waits
// for it for a while, which is backpressure to one who is only slow; then it is cut off. What waited for the last one who
// left is kept for the next.
type followers struct {
	patience time.Duration // how long the command waits for one who takes nothing

	mu   sync.Mutex
	all  map[*follower]bool
	kept []piece // not given to any follower yet
	size int     // of kept, as cost counts
	lost int64   // bytes that came before kept and are gone
	exit *wire.Exit
}

// piece is some output. Its data is shared by all who follow, and does not change once a follower has it.
type piece struct {
	kind wire.Kind
	data []byte
}

const (
	// maxWaiting is how much output may wait for one follower, and how much is kept while there is none, in bytes.
	maxWaiting = 1 << 20
	// maxNews is about how much a follower gets at a time: one that takes that much within followPatience is slow, but not cut off.
	maxNews = 128 << 10
	// pieceOverhead is what a piece costs beside its data. keptPiece is up to which size small ones are put together.
	pieceOverhead = 64
	keptPiece     = 4 << 10
	// followPatience is long for a network and short for a command.
	followPatience = 10 * time.Second
	// maxFollowers bounds those of one command.
	maxFollowers = 32
)

func (p piece) cost() int { return len(p.data) + pieceOverhead }

func newFollowers() *followers {
	return &followers{patience: followPatience, all: map[*follower]bool{}}
}

// follower is one of them. What waits for it is under the mutex of its followers.
type follower struct {
	of      *followers
	waiting []piece
	size    int
	lost    int64 // bytes that are missing before waiting
	cut     bool
	more    chan struct{} // has one when there is something new
	room    chan struct{} // has one when something was taken
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
	f := &follower{of: fs, more: make(chan struct{}, 1), room: make(chan struct{}, 1), gone: make(chan struct{})}
	f.stop = sync.OnceFunc(func() { close(f.gone) })
	f.waiting, f.size, f.lost = fs.kept, fs.size, fs.lost
	fs.kept, fs.size, fs.lost = nil, 0, 0
	fs.all[f] = true
	notify(f.more)
	return f
}

// notify leaves word in a channel that has room for one.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// write gives output to all who follow, or keeps it. It takes the data over.
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
	// All of them together may take that long.
	expired := make(chan struct{})
	defer time.AfterFunc(fs.patience, func() { close(expired) }).Stop()
	for _, f := range full {
		taken = fs.await(f, p, expired) || taken
	}
	if taken {
		return
	}
	// Those who might have taken it have left; others may have come.
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

// give is under the mutex.
func (f *follower) give(p piece) {
	f.waiting = append(f.waiting, p)
	f.size += p.cost()
	notify(f.more)
}

// await gives a piece to a follower for which too much waits, once it has taken some, and reports whether it did.
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
		case late:
			f.cut = true
			delete(fs.all, f)
			notify(f.more)
		}
		fs.mu.Unlock()
		if fits || late {
			return fits
		}
	}
}

// keep is under the mutex. What is kept is bounded, and the oldest goes.
func (fs *followers) keep(p piece) {
	if n := len(fs.kept); n > 0 && fs.kept[n-1].kind == p.kind && len(fs.kept[n-1].data)+len(p.data) <= keptPiece {
		last := fs.kept[n-1]
		// A follower that has left may still have the old one.
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

// end says how the command has ended. Nothing is written afterwards.
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

// next waits for news; false says that the follower has left.
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

// take is under the mutex.
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

// leave takes a follower away; unsent is what it has not got of its last news.
func (f *follower) leave(unsent delivery) {
	f.stop()
	fs := f.of
	fs.mu.Lock()
	defer fs.mu.Unlock()
	delete(fs.all, f)
	if len(fs.all) > 0 {
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
