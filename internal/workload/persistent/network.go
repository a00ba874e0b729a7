package persistent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/cgroup"
)

// SetNetwork replaces what the sandbox may reach. Connections that are no longer allowed end, and
// those that are still allowed go on, unless the sandbox had all of the network before. The error
// is of class FailedPrecondition if the sandbox was created without a network, or if it is
// restricted to names and is to have all of the network.
func (b *Sandbox) SetNetwork(ctx context.Context, n Network) error {
	return b.changes(func() error { return b.setNetwork(ctx, n) })
}

// setNetwork is SetNetwork with entry.changing held.
func (b *Sandbox) setNetwork(ctx context.Context, n Network) error {
	before := b.entry.recorded()
	if n.None || before.Network.None {
		return fmt.Errorf(
			"a sandbox has a network from the start or never: allow nothing, or make another sandbox: %w",
			cerrdefs.ErrFailedPrecondition)
	}
	box, err := b.entry.of.cfg.Planner.Sandboxes().Find(before.box())
	if err != nil {
		return err
	}
	reach, err := b.entry.of.cfg.Planner.PersistentEgress(box, n.persistent())
	if err != nil {
		return err
	}
	if b.entry.hasMoved() {
		return b.entry.change(func(r *record) { r.Network, r.Reach = n, &reach })
	}
	container, _, err := b.container(ctx)
	if err != nil {
		return err
	}
	// While it is not known which of the two applies, a service that starts lets the sandbox
	// reach nothing.
	set := func(n Network, reach *dockerexec.Egress) error {
		return b.entry.change(func(r *record) { r.Network, r.Reach = n, reach })
	}
	if err := set(before.Network, nil); err != nil {
		return err
	}
	if err := b.entry.of.cfg.Executor.SetEgress(ctx, container, reach); err != nil {
		return errors.Join(err, set(before.Network, before.Reach))
	}
	return set(n, &reach)
}

// Egress returns what a sandbox's container may reach, for a container that an earlier service
// created.
func (s *Sandboxes) Egress(id string) (reach dockerexec.Egress, known bool) {
	e := s.entry(id)
	if e == nil {
		return dockerexec.Egress{}, false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gone || e.record.Reach == nil {
		return dockerexec.Egress{}, false
	}
	return *e.record.Reach, true
}

// Metrics are the resources that a sandbox uses.
type Metrics struct {
	At time.Time
	// CPUPercent is relative to one processor, since the last call or the sandbox's start.
	CPUs, CPUPercent float64
	// Memory excludes MemoryCache. All sizes are in bytes. Disk is what the home takes and, under
	// gVisor, the root filesystem beyond the image, at most half a minute old; DiskTotal adds what
	// is free on the home's file system.
	Memory, MemoryLimit, MemoryCache, Disk, DiskTotal int64
}

// Metrics asks Docker which resources the sandbox uses. It does not resume a paused one.
func (b *Sandbox) Metrics(ctx context.Context) (Metrics, error) {
	if err := b.settle(ctx); err != nil {
		return Metrics{}, err
	}
	container, _, err := b.container(ctx)
	if err != nil {
		return Metrics{}, err
	}
	now := cgroup.Usage{At: time.Now(), MemoryLimit: b.Info().Memory}
	if container != "" { // a paused one that has moved has none
		if now, err = b.entry.of.cfg.Executor.Usage(ctx, container); err != nil {
			return Metrics{}, fmt.Errorf("cannot read the resource usage of sandbox %q: %w",
				b.entry.id, err)
		}
	}
	used, free, err := b.diskUsage(ctx)
	if err != nil {
		return Metrics{}, err
	}
	b.entry.mu.Lock()
	defer b.entry.mu.Unlock()
	since, before := b.entry.record.Started, time.Duration(0)
	if last := b.entry.usage; !last.At.IsZero() {
		since, before = last.At, last.CPU
	}
	b.entry.usage = now
	m := Metrics{
		At: now.At, CPUs: b.entry.record.CPUs, Memory: now.Memory, MemoryCache: now.Cache,
		MemoryLimit: min(now.MemoryLimit, b.entry.record.Memory), Disk: used,
		DiskTotal: used + free,
	}
	if passed := now.At.Sub(since); passed > 0 && now.CPU > before {
		m.CPUPercent = 100 * float64(now.CPU-before) / float64(passed)
	}
	return m, nil
}

// diskUsage is what a sandbox took on disk when last counted. Its lock is held during a count, so
// that only one runs.
type diskUsage struct {
	mu         sync.Mutex
	at         time.Time
	used, free int64
}

// countDiskEvery is the least time between two counts. A container has writtenLimit to report its
// part. Nothing verifies that, so at most maxWritten of it counts.
const (
	countDiskEvery = 30 * time.Second
	writtenLimit   = 2 * time.Second
	maxWritten     = 1 << 50
)

func (b *Sandbox) diskUsage(ctx context.Context) (used, free int64, err error) {
	d := &b.entry.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if time.Since(d.at) >= countDiskEvery {
		if d.used, d.free, err = b.entry.of.cfg.Planner.Files().Usage(ctx, b.entry.recorded().user()); err == nil {
			d.used += b.written(ctx)
			d.at = time.Now()
		}
	}
	return d.used, d.free, err
}

// written returns the bytes written to the root filesystem; 0 if they are not known.
func (b *Sandbox) written(ctx context.Context) int64 {
	ctx, cancel := context.WithTimeout(ctx, writtenLimit)
	defer cancel()
	asleep := *b
	asleep.asleep = true
	got, err := asleep.ask(ctx, control.Request{Do: control.Written}, nil)
	if err != nil {
		return 0
	}
	_ = got.stream.Close()
	return min(max(got.answer.Written, 0), maxWritten)
}
