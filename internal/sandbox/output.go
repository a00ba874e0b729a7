package sandbox

import (
	"fmt"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec"
)

// maxOutputKept is how much is kept of what a running command printed last, in bytes.
const maxOutputKept = 4 << 10

// outputs are what running commands printed last, by the ID of their call.
type outputs struct {
	mu  sync.Mutex
	all map[uint64]*lastOutput
}

// lastOutput is the end of one command's output, of both streams as they came.
type lastOutput struct {
	sandbox string

	mu   sync.Mutex
	ring [maxOutputKept]byte
	size int64 // of all that came
}

func (t *lastOutput) add(data []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if skip := len(data) - maxOutputKept; skip > 0 {
		t.size, data = t.size+int64(skip), data[skip:]
	}
	for len(data) > 0 {
		n := copy(t.ring[t.size%maxOutputKept:], data)
		t.size, data = t.size+int64(n), data[n:]
	}
}

// text is what is kept; cut says that there was more before.
func (t *lastOutput) text() (text []byte, cut bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.size <= maxOutputKept {
		return append([]byte{}, t.ring[:t.size]...), false
	}
	at := t.size % maxOutputKept
	return append(append([]byte{}, t.ring[at:]...), t.ring[:at]...), true
}

// heard keeps what a command prints until end is called, and notes when that began.
func (s *Service) heard(w *execWatch, out dockerexec.Output) (_ dockerexec.Output, end func()) {
	if w.to == nil || out == nil {
		return out, func() {}
	}
	kept, id := &lastOutput{sandbox: w.event.Sandbox}, w.event.ID
	s.outputs.mu.Lock()
	s.outputs.all[id] = kept
	s.outputs.mu.Unlock()
	var first sync.Once
	return func(stream dockerexec.Stream, data []byte) error {
			first.Do(func() { w.firstByte.Store(int64(time.Since(w.begun))) })
			kept.add(data)
			return out(stream, data)
		}, func() {
			s.outputs.mu.Lock()
			defer s.outputs.mu.Unlock()
			delete(s.outputs.all, id)
		}
}

// Output returns what a command that runs in a sandbox printed last: 4 KiB at most, and whether there was more before. The error is
// of class NotFound where there is no such sandbox, or no command runs in it by a call of that ID.
func (s *Service) Output(id string, call uint64) (text []byte, cut bool, err error) {
	box, err := s.Get(id)
	if err != nil {
		return nil, false, err
	}
	s.outputs.mu.Lock()
	kept := s.outputs.all[call]
	s.outputs.mu.Unlock()
	if kept == nil || kept.sandbox != box.ID.id {
		return nil, false, fmt.Errorf("no command runs for the call %d: %w", call, cerrdefs.ErrNotFound)
	}
	text, cut = kept.text()
	return text, cut, nil
}
