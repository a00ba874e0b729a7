package process

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Stop sends a signal to all of a user's process and kills what is left of it after the grace. It
// blocks until the process has ended and returns its record. A finished process is left as it is.
// If ctx ends, the process is stopped all the same; if the service ends, it is stopped at the next
// start. A signal that comes during an earlier one's grace is sent at once, unless ctx has ended.
func (m *Manager) Stop(ctx context.Context, user, id string,
	signal syscall.Signal) (Record, error) {
	p, err := m.find(user, id)
	if err != nil {
		return Record{}, err
	}
	m.mu.Lock()
	i, signalled := p.instance(), p.signalled
	m.mu.Unlock()
	stop := p.join(stopping, func(ctx context.Context) error { return p.stop(ctx, signal) })
	if signalled {
		// The turn's holder waits for it to end. The signal names the container, so it cannot reach
		// another one.
		if err := m.signalAgain(ctx, i, signal); err != nil {
			return Record{}, err
		}
	}
	if err := stop.wait(ctx); err != nil {
		return Record{}, err
	}
	return p.observed(), nil
}

// StopAll stops all unfinished processes of a user at the same time, with SIGTERM. Even with an
// error, it returns those that it has stopped, in order of creation.
func (m *Manager) StopAll(ctx context.Context, user string) ([]Record, error) {
	var (
		work    sync.WaitGroup
		mu      sync.Mutex
		stopped = []Record{}
		faults  []error
	)
	for _, r := range m.List(user) {
		if r.Finished() {
			continue
		}
		work.Go(func() {
			r, err := m.Stop(ctx, user, r.ID, unix.SIGTERM)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				stopped = append(stopped, r)
			case !errdefs.IsNotFound(err): // otherwise it has been removed
				faults = append(faults, err)
			}
		})
	}
	work.Wait()
	byCreation(stopped)
	return stopped, errors.Join(faults...)
}

// Remove deletes a user's process and its log, after stopping it with SIGTERM if it runs. It blocks
// until that is done; if ctx ends, it is done all the same. After any other error the process is
// still there.
func (m *Manager) Remove(ctx context.Context, user, id string) error {
	p, err := m.find(user, id)
	if err != nil {
		return err
	}
	return p.join(removing, func(ctx context.Context) error {
		if p.gone {
			return notFound(id)
		}
		err := p.halt(ctx, unix.SIGTERM)
		if err == nil {
			err = p.clearLeftovers(ctx)
		}
		if err == nil {
			err = p.remove()
		}
		if err != nil {
			return fmt.Errorf("cannot remove process %s: %w", id, err)
		}
		p.forget(removed)
		return nil
	}).wait(ctx)
}

// remove deletes the log and the record of a process.
func (p *process) remove() error {
	if err := p.of.cfg.Runner.Discard(p.record); err != nil {
		return pathless(err)
	}
	return p.of.store.remove(p.record)
}

// stop is Stop for one process, whose turn is held.
func (p *process) stop(ctx context.Context, sig syscall.Signal) error {
	if p.gone {
		return notFound(p.id)
	}
	return p.halt(ctx, sig)
}

// halt makes a process finish; the turn is held. It records the desired state before it sends
// anything, so that nothing starts the process again, whatever happens in between.
func (p *process) halt(ctx context.Context, sig syscall.Signal) error {
	r := p.record
	if r.Finished() {
		return nil
	}
	r.DesiredState, r.NextRestartAt = Stopped, time.Time{}
	if r.Status != Running {
		r.Status = Stopped
	}
	if err := p.keep(r, ""); err != nil {
		return err
	}
	if r.Status == Stopped {
		p.retire()
		return nil
	}
	p.setSignalled(true)
	err := p.of.signal(ctx, p.instance(), sig, p.of.grace())
	p.setSignalled(false)
	if err != nil {
		return err
	}
	if err := p.concludeEnded(ctx, p.instance()); err != nil {
		p.conclude(ctx, Exit{}, fmt.Sprintf("it was stopped; how it ended is not known: %v",
			err))
	}
	return nil
}

func (p *process) setSignalled(is bool) {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	p.signalled = is
}

// signalAgain calls signal for a caller, and gives up when that caller does.
func (m *Manager) signalAgain(ctx context.Context, i Instance, sig syscall.Signal) error {
	ctx, leave, err := m.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return m.signal(ctx, i, sig, m.grace())
}

func (m *Manager) grace() time.Duration { return m.bounds.Load().StopGrace }

func (m *Manager) signal(ctx context.Context, i Instance, sig syscall.Signal,
	grace time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, grace+callLimit)
	defer cancel()
	if err := m.cfg.Runner.Stop(ctx, i, sig, grace); err != nil {
		return fmt.Errorf("cannot stop process %s: %w", i.Process, err)
	}
	return nil
}

// retire finalizes a process that neither runs nor will run again; the turn is held.
func (p *process) retire() {
	p.finish()
	p.of.cfg.Ports.Close(p.id)
	if err := p.of.store.dropSecrets(p.record); err != nil {
		p.of.log.Warn().Err(err).Str("process", p.id).
			Msg("cannot remove the secrets of a process that has finished")
	}
}
