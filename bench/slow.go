package main

import (
	"context"
	"fmt"
	"time"
)

// slowReader has the memory that the daemon needs while a reader is slower than the program that
// prints.
type slowReader struct {
	// rate is the reader's speed, in bytes per second.
	rate float64
	// before and peak are the daemon's resident memory, in bytes; peak is the kernel's own.
	before, peak int64
	// quarters has the memory after each quarter of the stream.
	quarters [4]int64
}

const (
	// slowest is the reader's rate if the stream can reach twice that. Otherwise the rate is half
	// the stream's.
	slowest = 100e6
	// burst is how much the reader reads at full speed before it pauses, in bytes.
	burst = 8 << 20
)

func (s *service) measureSlowReader(ctx context.Context, streams []stream) (found slowReader, err error) {
	fastest := streams[len(streams)-1]
	found.rate = min(slowest, fastest.api.median()/2)
	if err := s.resetPeak(); err != nil {
		return found, fmt.Errorf("cannot reset the peak of the daemon's memory: %w", err)
	}
	if found.before, err = s.daemonMemory("VmRSS"); err != nil {
		return found, err
	}
	reader := &burstReader{done: ctx.Done(), rate: found.rate, begun: time.Now(), every: s.settings.streamBytes / 4}
	reader.passed = func(quarter int) (err error) {
		if quarter <= len(found.quarters) {
			found.quarters[quarter-1], err = s.daemonMemory("VmRSS")
		}
		return err
	}
	if err := s.attach(ctx, reader, fastest.argv); err != nil {
		return found, err
	}
	found.peak, err = s.daemonMemory("VmHWM")
	return found, err
}

// burstReader takes bytes in bursts, at a rate that it keeps on average.
type burstReader struct {
	done   <-chan struct{} // ends a pause
	rate   float64
	begun  time.Time
	n      int64
	every  int64
	passed func(part int) error // called each time that another `every` bytes have come
}

func (b *burstReader) Write(p []byte) (int, error) {
	before := b.n
	b.n += int64(len(p))
	if part := b.n / b.every; part > before/b.every {
		if err := b.passed(int(part)); err != nil {
			return 0, err
		}
	}
	if b.n/burst == before/burst {
		return len(p), nil
	}
	due := b.begun.Add(time.Duration(float64(b.n) / b.rate * float64(time.Second)))
	select {
	case <-time.After(time.Until(due)):
		return len(p), nil
	case <-b.done:
		return 0, context.Canceled
	}
}
