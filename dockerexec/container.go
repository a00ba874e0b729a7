package dockerexec

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/network"
)

// creationLimit bounds making a container, from the first question to the agent's greeting.
const creationLimit = 2 * time.Minute

// removalLimit bounds removing one; it goes on when the service is shutting down.
const removalLimit = 30 * time.Second

// establish sets w's id, spool and session.
func (e *Executor) establish(ctx context.Context, w *warm) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, e.removeWarm(w))
		}
	}()
	if !w.laid && w.layErr == nil {
		w.ground, w.layErr = e.cfg.Grounds.Lay(w.spec)
		w.laid = w.layErr == nil
	}
	if w.layErr != nil {
		return w.layErr
	}
	if w.id == "" {
		if err := e.start(ctx, w); err != nil {
			return err
		}
	}
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
		if err := e.create(ctx, w, connection); err != nil {
			return err
		}
		err = e.docker.ContainerStart(ctx, w.id, container.StartOptions{})
		if err == nil {
			return nil
		}
		// A container that is not ours may have been put on our network, at the address that was next.
		if connection == nil || try == addressTries || !strings.Contains(err.Error(), "Address already in use") {
			return fmt.Errorf("cannot start: %w", err)
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

// create makes the container and its spool. A name that is taken by one of ours belongs to a
// container that was given up, so that one has to go first.
func (e *Executor) create(ctx context.Context, w *warm, connection *network.NetworkingConfig) error {
	if err := w.spec.makeMasks(); err != nil {
		return err
	}
	spool := ""
	if w.spec.Process.ID == "" {
		var err error
		if spool, err = makeSpool(w.spec); err != nil {
			return err
		}
	}
	name := w.spec.ContainerName()
	for {
		created, err := e.docker.ContainerCreate(ctx, w.spec.containerConfig(), w.spec.hostConfig(spool, w.ground, e.wiring(w)), connection, nil, name)
		if err == nil {
			w.id, w.spool = created.ID, spool
			return nil
		}
		if !cerrdefs.IsConflict(err) {
			return errors.Join(fmt.Errorf("cannot create: %w", err), removeSpool(spool))
		}
		if err := e.clearName(ctx, name); err != nil {
			return errors.Join(err, removeSpool(spool))
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
	var faults []error
	if w.id != "" {
		faults = append(faults, e.remove(w.id, w.spool))
	}
	e.leave(w)
	if w.laid {
		e.cfg.Grounds.Clear(w.spec)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(e.ctx), removalLimit)
	defer cancel()
	return errors.Join(append(faults, e.removeTmp(ctx, w.spec.tmpName()))...)
}

// remove takes a container away with its spool and all that runs in it, and is content when it is
// gone already. It blocks until the engine has done it.
func (e *Executor) remove(id, spool string) error {
	return errors.Join(e.removeContainer(id), removeSpool(spool))
}

func (e *Executor) removeContainer(id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(e.ctx), removalLimit)
	defer cancel()
	removed := e.awaited(ctx, id, container.WaitConditionRemoved)
	err := e.docker.ContainerRemove(ctx, id, container.RemoveOptions{Force: true, RemoveVolumes: true})
	switch {
	case err == nil || cerrdefs.IsNotFound(err):
		return nil
	case cerrdefs.IsConflict(err) && strings.Contains(err.Error(), "already in progress"):
	default:
		return fmt.Errorf("cannot remove container %.12s: %w", id, err)
	}
	if err := <-removed; err != nil && !cerrdefs.IsNotFound(err) {
		return fmt.Errorf("cannot wait for the removal of container %.12s: %w", id, err)
	}
	return nil
}

// awaited tells when a container is as the condition says, or why that cannot be known. It listens from when
// it returns until ctx ends.
func (e *Executor) awaited(ctx context.Context, id string, condition container.WaitCondition) <-chan error {
	reached, failed := e.docker.ContainerWait(ctx, id, condition)
	told := make(chan error, 1)
	go func() { // that of the client would wait for a reader for ever
		select {
		case <-reached:
			told <- nil
		case err := <-failed:
			told <- err
		}
	}()
	return told
}
