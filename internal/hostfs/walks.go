package hostfs

import "sync"

// walksAtOnce is how many trees of one user may be walked at a time: each walk takes up to maxDepth
// descriptors and a processor.
const walksAtOnce = 4

// Walks bounds the walks of each user's trees, however many calls ask for them; further ones wait. The zero
// value is ready to use. It is safe for concurrent use.
type Walks struct {
	mu sync.Mutex
	of map[string]*walkers
}

// walkers are the walks of one user.
type walkers struct {
	places chan struct{}
	count  int // includes those that wait; under Walks.mu
}

// begin waits until one more of a user's trees may be walked; end ends that walk.
func (w *Walks) begin(user string) (end func()) {
	w.mu.Lock()
	if w.of == nil {
		w.of = map[string]*walkers{}
	}
	of := w.of[user]
	if of == nil {
		of = &walkers{places: make(chan struct{}, walksAtOnce)}
		w.of[user] = of
	}
	of.count++
	w.mu.Unlock()
	of.places <- struct{}{}
	return func() {
		<-of.places
		w.mu.Lock()
		defer w.mu.Unlock()
		if of.count--; of.count == 0 {
			delete(w.of, user)
		}
	}
}
