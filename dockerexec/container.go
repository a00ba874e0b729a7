package dockerexec

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/network"
)

// creationLimit bounds making a container, from the first question to the agent's greeting.
const creationLimit = 2 * time.Minute

// establish sets w's id, spool and session. After an error nothing is left of the container, but at Shutdown; the error is errLost
// where the container has ended by itself or by somebody's hand.
func (e *Executor) establish(ctx context.Context, w *warm) (err error) {
	adopted := w.id != ""
	defer func() {
		if err != nil && (!adopted || e.ctx.Err() == nil) { // else it is the next service's
			err = errors.Join(err, e.removeWarm(w))
		}
	}()
	if !w.isPrepared && w.prepareErr == nil {
		w.prepared, w.prepareErr = e.cfg.Mounts.Prepare(w.spec)
		w.isPrepared = w.prepareErr == nil
	}
	if w.prepareErr != nil {
		return w.prepareErr
	}
	if w.id == "" {
		if err := e.start(ctx, w); err != nil {
			return err
		}
	}
	attending := e.attend(ctx, w)
	done, err := e.pauses.use(attending, w.id)
	if err != nil {
		return err
	}
	defer done()
	if err := e.connect(attending, w); err != nil {
		// Of one that was found, the agent of the service before may not have ended yet, which ends all that begins.
		if adopted || e.isLost(attending, w) {
			return fmt.Errorf("%w (%v)", errLost, err)
		}
		return err
	}
	return nil
}

// connect opens the way and the session of a container that runs.
func (e *Executor) connect(ctx context.Context, w *warm) error {
	if err := e.bind(ctx, w); err != nil {
		return err
	}
	spool, err := openSpool(w.spool)
	if err != nil {
		return err
	}
	sess, err := openSession(ctx, e.docker, w.id, spool)
	if err != nil {
		spool.close()
		return err
	}
	w.sess = sess
	if err := e.verify(w, func(argv []string) ([]string, error) { return witness(ctx, sess, argv) }); err != nil {
		sess.close()
		spool.close()
		return err
	}
	return nil
}

// start makes the container and starts it.
func (e *Executor) start(ctx context.Context, w *warm) error {
	for try := 1; ; try++ {
		connection, err := e.join(ctx, w)
		if err != nil {
			return err
		}
		mounts, err := e.create(ctx, w, connection)
		if err != nil {
			return err
		}
		err = e.startUndisturbed(ctx, w, mounts)
		if err == nil {
			return nil
		}
		if cerrdefs.IsNotFound(err) || cerrdefs.IsConflict(err) { // somebody has removed it, or is about to
			return fmt.Errorf("%w (cannot start: %v)", errLost, err)
		}
		// A container that is not ours may have been put on our network, at the address that was next.
		if connection == nil || try == addressTries || !strings.Contains(err.Error(), "Address already in use") {
			return err
		}
		if err := e.remove(w.id, w.spool); err != nil {
			return err
		}
		e.leave(w)
		w.id = ""
	}
}

// addressTries is how many addresses are tried that someone else may have.
const addressTries = 5

// create makes the container and its spool, and returns its mounts. A name that is taken by one of ours belongs to a
// container that was given up, so that one has to go first.
func (e *Executor) create(ctx context.Context, w *warm, connection *network.NetworkingConfig) ([]mount.Mount, error) {
	if err := w.spec.makeMasks(); err != nil {
		return nil, err
	}
	spool := ""
	if w.spec.Process.ID == "" {
		var err error
		if spool, err = makeSpool(w.spec); err != nil {
			return nil, err
		}
	}
	name, host := w.spec.ContainerName(), w.spec.hostConfig(spool, w.prepared, e.wiring(w))
	for {
		created, err := e.docker.ContainerCreate(ctx, w.spec.containerConfig(), host, connection, nil, name)
		if err == nil {
			w.id, w.spool = created.ID, spool
			return host.Mounts, nil
		}
		if !cerrdefs.IsConflict(err) {
			return nil, errors.Join(fmt.Errorf("cannot create: %w", err), removeSpool(spool))
		}
		if err := e.clearName(ctx, name); err != nil {
			return nil, errors.Join(err, removeSpool(spool))
		}
	}
}

func (e *Executor) clearName(ctx context.Context, name string) error {
	found, err := e.docker.ContainerInspect(ctx, name)
	if cerrdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot inspect %s: %w", name, err)
	}
	if found.Config.Labels[labelInstance] != e.cfg.Instance {
		return fmt.Errorf("the name %s is taken by a container that is not this service's: rename or remove it", name)
	}
	if err := e.remove(found.ID, spoolOf(found.Mounts)); err != nil {
		return err
	}
	return ctx.Err()
}

// removeWarm takes a container away with all that it had on the host. It is called once for each.
func (e *Executor) removeWarm(w *warm) error {
	e.mu.Lock()
	e.attended(w)
	e.mu.Unlock()
	var faults []error
	if w.id != "" {
		faults = append(faults, e.remove(w.id, w.spool))
	}
	e.leave(w)
	if w.isPrepared {
		e.cfg.Mounts.Release(w.spec)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(e.ctx), removalLimit)
	defer cancel()
	return errors.Join(append(faults, e.removeTmp(ctx, w.spec.tmpName()))...)
}
