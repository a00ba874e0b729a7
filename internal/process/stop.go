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
	stop := m.join(p, stopping, func(ctx context.Context) error { return m.stop(ctx, p, signal) })
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
	return m.observed(p), nil
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
	return m.join(p, removing, func(ctx context.Context) error {
		if p.gone {
			return notFound(id)
		}
		err := m.halt(ctx, p, unix.SIGTERM)
		if err == nil {
			err = m.clearLeftovers(ctx, p)
		}
		if err == nil {
			err = m.remove(p)
		}
		if err != nil {
			return fmt.Errorf("cannot remove process %s: %w", id, err)
		}
		m.forget(p, removed)
		return nil
	}).wait(ctx)
}

// remove deletes the log and the record of a process.
func (m *Manager) remove(p *process) error {
	if err := m.cfg.Runner.Discard(p.record); err != nil {
		return pathless(err)
	}
	return m.store.remove(p.record)
}

// stop is Stop for one process, whose turn is held.
func (m *Manager) stop(ctx context.Context, p *process, sig syscall.Signal) error {
	if p.gone {
		return notFound(p.id)
	}
	return m.halt(ctx, p, sig)
}

// halt makes a process finish; the turn is held. It records the desired state before it sends
// anything, so that nothing starts the process again, whatever happens in between.
func (m *Manager) halt(ctx context.Context, p *process, sig syscall.Signal) error {
	r := p.record
	if r.Finished() {
		return nil
	}
	r.DesiredState, r.NextRestartAt = Stopped, time.Time{}
	if r.Status != Running {
		r.Status = Stopped
	}
	if err := m.keep(p, r, ""); err != nil {
		return err
	}
	if r.Status == Stopped {
		m.retire(p)
		return nil
	}
	m.setSignalled(p, true)
	err := m.signal(ctx, p.instance(), sig, m.grace())
	m.setSignalled(p, false)
	if err != nil {
		return err
	}
	if err := m.concludeEnded(ctx, p, p.instance()); err != nil {
		m.conclude(ctx, p, Exit{}, fmt.Sprintf("it was stopped; how it ended is not known: %v",
			err))
	}
	return nil
}

func (m *Manager) setSignalled(p *process, is bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
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
func (m *Manager) retire(p *process) {
	p.finish()
	m.cfg.Ports.Close(p.id)
	if err := m.store.dropSecrets(p.record); err != nil {
		m.log.Warn().Err(err).Str("process", p.id).
			Msg("cannot remove the secrets of a process that has finished")
	}
}
