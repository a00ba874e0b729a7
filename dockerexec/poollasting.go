package dockerexec

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/libp2p/go-yamux/v5"

	"github.com/daycare-run/sandbox/internal/agent/ask"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// A pooled container may be a lasting one. It waits like any other. Once bound, it is among the containers of
// processes, where StartLasting finds it.

// BindLasting is Bind for a lasting container, of the sandbox that has its user's name. The caller accounts for its
// place. After an error nothing is left of the container, and StartLasting makes another one.
func (e *Executor) BindLasting(ctx context.Context, class string, leave int, user string, egress Egress) error {
	from, to, err := e.claimLasting(class, leave, user, egress)
	if err != nil {
		return err
	}
	defer e.work.Done()
	defer from.give()
	last := from // the container that has what is to be given up after an error
	if err = e.handOver(from, to); err == nil {
		last, err = to, e.cfg.Mounts.Rebind(from.spec, to.spec)
	}
	e.mu.Lock()
	if err == nil && to.lost {
		err = errLost
	}
	closed := e.closed
	if err == nil {
		e.stopWatching(to)
		e.processes[to.id] = to
	}
	e.mu.Unlock()
	if err != nil {
		to.asks.close()
		err = errors.Join(err, e.dispose(last))
		e.mu.Lock() // not sooner, or it would be taken for one of an earlier service
		e.stopWatching(to)
		e.mu.Unlock()
		return fmt.Errorf("cannot bind a container of the pool to sandbox %q: %w", user, err)
	}
	if closed { // it is left to the next service
		to.asks.close()
	}
	e.work.Go(func() { e.rename(to) })
	e.tell(ctx, to, Incident{What: "container of the pool bound", ID: to.id[:12]})
	return nil
}

// claimLasting takes a container out of the pool. The container that it becomes is found once it is bound.
func (e *Executor) claimLasting(class string, leave int, user string, egress Egress) (from, to *container, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if from = e.waiting(class, leave); from == nil {
		return nil, nil, ErrNotStocked
	}
	spec := from.spec.boundTo(user, egress)
	to = &container{spec: spec, fingerprint: spec.Fingerprint(), ready: make(chan struct{})}
	e.replace(from, to)
	from.asks.handOver(&to.asks)
	to.lose = func(error) {} // no call waits for Docker
	e.preparing[to.id] = to
	return from, to, nil
}

// boundLasting finds the container that was bound to a Spec's sandbox. One that has ended, or whose Spec has changed
// since, is removed: a sandbox has one container.
func (e *Executor) boundLasting(ctx context.Context, spec Spec) (found ProcessContainer, is bool, err error) {
	fingerprint := spec.Fingerprint()
	var others []string
	e.mu.Lock()
	for id, record := range e.bound {
		if record.Spec.Lasting != spec.Lasting {
			continue
		}
		if c := e.processes[id]; c != nil && c.fingerprint == fingerprint {
			found, is = ProcessContainer{ID: id, Spec: spec, Started: c.since, Running: true}, true
		} else {
			others = append(others, id)
		}
	}
	e.mu.Unlock()
	for _, id := range others {
		err = errors.Join(err, e.RemoveProcess(ctx, id))
	}
	if err != nil {
		return ProcessContainer{}, false, fmt.Errorf("cannot start the sandbox: cannot remove its earlier pooled container: %w", err)
	}
	return found, is, nil
}

// readyLimit is how long an agent may take to say that a shell waits.
const readyLimit = 20 * time.Second

// awaitShell returns when a shell waits for the first command in a lasting container, or when none can; nobody has the container
// yet. The shell is started from the image alone, without anybody's text or home. The first program that starts in a container is
// slow under gVisor, whose kernel has none of the image's files yet, so this helps also if no shell will wait.
func awaitShell(ctx context.Context, mux *yamux.Session) error {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	stream, err := openStream(ctx, mux)
	if err != nil {
		return fmt.Errorf("cannot start a shell that waits: %w", err)
	}
	defer stream.Close() //nolint:errcheck // all has been said
	defer context.AfterFunc(ctx, func() { _ = stream.SetDeadline(time.Unix(1, 0)) })()
	if err = wire.WriteMessage(stream, wire.KindRequest, ask.Request{Do: ask.Ready}); err == nil {
		err = wire.ReadMessage(stream, wire.KindAnswer, &ask.Answer{})
	}
	if err != nil {
		return fmt.Errorf("the agent does not say whether a shell waits: %w", err)
	}
	return nil
}
