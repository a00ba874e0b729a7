package sandbox

import (
	"fmt"
	"slices"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec/session"
)

// maxOutputKept is how many bytes are kept of what a running command printed last.
const maxOutputKept = 4 << 10

// outputs has what running commands printed last, by the ID of their call.
type outputs struct {
	mu  sync.Mutex
	all map[uint64]*lastOutput
}

// lastOutput is the end of one command's output, with both streams in the order in which they came.
// It uses memory only for what came, up to maxOutputKept.
type lastOutput struct {
	sandbox, user string // its owner: another user's sandbox may have that name by now

	mu   sync.Mutex
	ring []byte // full before it wraps around
	at   int    // where it begins
	cut  bool   // there was more before
}

func (t *lastOutput) add(data []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	size := len(t.ring) + len(data)
	t.cut = t.cut || size > maxOutputKept
	if skip := len(data) - maxOutputKept; skip >= 0 {
		t.ring, t.at, data = t.ring[:0], 0, data[skip:]
	}
	if size > cap(t.ring) && size > maxOutputKept/4 && cap(t.ring) < maxOutputKept {
		t.ring = append(make([]byte, 0, maxOutputKept), t.ring...)
	}
	n := min(maxOutputKept-len(t.ring), len(data))
	t.ring, data = append(t.ring, data[:n]...), data[n:]
	for len(data) > 0 {
		n := copy(t.ring[t.at:], data)
		t.at, data = (t.at+n)%maxOutputKept, data[n:]
	}
}

// text returns what is kept; cut says that there was more before.
func (t *lastOutput) text() (text []byte, cut bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Concat(t.ring[t.at:], t.ring[:t.at]), t.cut
}

// heard wraps out to keep what a command prints until end is called, and to note when output began.
func (s *Service) heard(w *execWatch, out session.Output) (_ session.Output, end func()) {
	if out == nil {
		return out, func() {}
	}
	w.last.sandbox, w.last.user = w.event.Sandbox, w.user
	s.outputs.mu.Lock()
	s.outputs.all[w.event.ID] = &w.last
	s.outputs.mu.Unlock()
	return func(stream session.Stream, data []byte) error {
			if w.firstByte.Load() == 0 {
				w.firstByte.CompareAndSwap(0, int64(time.Since(w.begun)))
			}
			w.last.add(data)
			return out(stream, data)
		}, func() {
			s.outputs.mu.Lock()
			defer s.outputs.mu.Unlock()
			delete(s.outputs.all, w.event.ID)
		}
}

// Output returns what a command that runs in a sandbox printed last, 4 KiB at most, and whether
// there was more before. The error is of class NotFound if there is no such sandbox, or if no
// command with that call ID runs in it.
func (s *Service) Output(id string, call uint64) (text []byte, cut bool, err error) {
	box, err := s.Get(id)
	if err != nil {
		return nil, false, err
	}
	s.outputs.mu.Lock()
	kept := s.outputs.all[call]
	s.outputs.mu.Unlock()
	if kept == nil || kept.sandbox != box.ID.String() || kept.user != box.User.String() {
		return nil, false, fmt.Errorf("no command runs for the call %d: %w", call,
			cerrdefs.ErrNotFound)
	}
	text, cut = kept.text()
	return text, cut, nil
}
