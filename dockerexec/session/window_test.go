package session

import (
	"errors"
	"runtime"
	"sync"
	"testing"

	"github.com/libp2p/go-yamux/v5"

	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// Data that a container announces takes no memory before it arrives, however many streams announce
// it.
func TestAnnouncedFramesTakeNoMemory(t *testing.T) {
	const streams = 90
	for name, c := range map[string]struct {
		kind wire.Kind
		size int
	}{
		"the largest exit":    {wire.KindExit, 16 << 10},
		"one beyond that":     {wire.KindExit, 4 << 20},
		"the largest output":  {wire.KindStdout, wire.MaxData},
		"the largest message": {wire.KindHello, 4 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			s, agent, done := greeting(t)
			announced := make(chan struct{}, streams)
			agent.scripts.Go(func() {
				for range streams {
					_, stream := agent.accept()
					h := wire.Header(c.kind, c.size)
					_, err := stream.Write(append(h[:], '{'))
					agent.must(err)
					announced <- struct{}{}
				}
			})
			before := allocated()
			var calls sync.WaitGroup
			for range streams {
				calls.Go(func() {
					if _, err := s.Run(t.Context(), aCommand, discard); !errors.Is(err, ErrBroken) {
						t.Error(err)
					}
				})
			}
			for range streams {
				<-announced
			}
			agent.scripts.Wait()
			_, _ = s.mux.Ping() // all that came before its answer has been read
			if grown := allocated() - before; grown > streams*64<<10 {
				t.Errorf("%d streams have taken %d KiB", streams, grown>>10)
			}
			done()
			calls.Wait()
		})
	}
}

// allocated is how much was allocated until now, also what is free again.
func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// The windows of all streams of a container grow to a bound together.
func TestWindowBudget(t *testing.T) {
	b := &windowBudget{left: 1000}
	var windows []yamux.MemoryManager
	for range 3 {
		w, err := b.open()
		if err != nil || w.ReserveMemory(256<<10, 255) != nil {
			t.Fatal("a stream cannot be opened")
		}
		windows = append(windows, w)
	}
	take := func(i, size int) bool { return windows[i].ReserveMemory(size, 128) == nil }
	if !take(0, 600) || take(1, 500) || !take(1, 400) || take(2, 1) {
		t.Errorf("left: %d", b.left)
	}
	windows[0].ReleaseMemory(100)
	if !take(2, 100) || take(2, 1) {
		t.Errorf("left: %d", b.left)
	}
	for _, w := range windows {
		w.Done()
		w.Done()
	}
	if take(0, 1) { // as yamux asks while what has come is read of a stream that has ended
		t.Error("a stream that has ended grows")
	}
	if b.left != 1000 {
		t.Errorf("left in the end: %d", b.left)
	}
}
