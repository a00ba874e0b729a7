package dockerexec

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/pathmap"
)

// A pooled container is like any other, except that its user is still to come. Its home lies in a
// folder like a user's, which lies in a folder of the container's own that belongs to root. The
// container may reach nothing, and runs nothing for anybody before it is bound: then the folder
// with the home is renamed to be the user's, and from then on it is a container with the user's
// Spec. It is bound once.

// poolDir is the folder of the pool in usersDir. No user can have that name.
const poolDir = ".pool"

// PoolUser returns the User of a pooled container's Spec: the path in usersDir of the folder that
// becomes the user's.
func PoolUser(id string) string { return poolDir + "/" + id + "/user" }

// ErrHomesStay says that the file system of usersDir lacks what a pool needs, and will lack it the
// next time, too.
var ErrHomesStay = errors.New("the file system of usersDir cannot be used for a pool")

// poolFolder returns the folder in the pool of a PoolUser's container: it holds what is to be the
// user's, and the spool.
func (e *Executor) poolFolder(user string) string {
	return filepath.Join(e.cfg.PoolDir, filepath.Base(filepath.Dir(user)))
}

// NewPoolUser returns a new PoolUser, if containers may be started now. Its folder's name says
// which service it belongs to: services may share usersDir.
func (e *Executor) NewPoolUser() (string, error) {
	random := make([]byte, 8)
	_, _ = rand.Read(random) // never fails
	user := PoolUser(poolPrefix(e.cfg.Host, e.cfg.Instance) + hex.EncodeToString(random))
	return user, e.may(user)
}

// IsOfPool reports whether a PoolUser belongs to this Executor, or to an earlier one with the same
// Config.Host and Instance.
func (e *Executor) IsOfPool(user string) bool {
	return strings.HasPrefix(user, poolDir+"/"+poolPrefix(e.cfg.Host, e.cfg.Instance))
}

// poolPrefix returns the prefix of the names of a service's folders in the pool. Hosts that share
// usersDir have different names, even if the dataDir of one is a copy of another's.
func poolPrefix(host, instance string) string {
	if host != "" {
		instance = host + "." + instance
	}
	return instance + "-"
}

// IsPooled reports whether the Spec is that of a container whose user is still to come.
func (s Spec) IsPooled() bool { return strings.HasPrefix(s.User, poolDir+"/") }

// movedTo returns what a path in a pooled Spec's home becomes when the home is a user's; other
// paths stay.
func movedTo(s Spec, user string) func(name string) string {
	usersDir := filepath.Dir(filepath.Dir(s.SpoolDir))
	from, to := filepath.Join(usersDir, s.User), filepath.Join(usersDir, user)
	return func(name string) string {
		if rest, ok := pathmap.CutDir(name, from); ok {
			return filepath.Join(to, rest)
		}
		return name
	}
}

// boundTo returns a pooled container's Spec with a user's home in place of its own.
func (s Spec) boundTo(user string, egress Egress) Spec {
	moved := movedTo(s, user)
	s.User, s.SpoolDir, s.Egress = user,
		filepath.Join(filepath.Dir(filepath.Dir(s.SpoolDir)), user), egress
	if s.Persistent != "" {
		s.Persistent = user
	}
	s.Mounts, s.Masks, s.Pins = append([]Mount(nil), s.Mounts...), append([]Mask(nil), s.Masks...),
		append([]Pin(nil), s.Pins...)
	for i := range s.Mounts {
		s.Mounts[i].Source = moved(s.Mounts[i].Source)
	}
	for i := range s.Masks {
		s.Masks[i].Place = moved(s.Masks[i].Place)
	}
	for i := range s.Pins {
		s.Pins[i].Place = moved(s.Pins[i].Place)
	}
	return s
}

// Bind gives a user a pooled container, with its home. The user must not have a home. Calls find
// the container by its Spec, and StartPersistent finds one of a persistent sandbox, which has its
// user's name; the caller accounts for the place of that one. After an error the user has no
// container of the pool, but may have its home: one that was given stays, because what the user has
// there since is the user's. The error is life.ErrLeft if the container does not wait any more.
func (e *Executor) Bind(ctx context.Context, from *Container, a quota.Account,
	egress Egress) error {
	to, err := e.claim(from, a, egress)
	if err != nil {
		return err
	}
	defer e.work.Done()
	if err = e.handOver(from, to); err == nil {
		err = to.mounts.rebind(e.cfg.Mounts, to.spec)
	}
	if err == nil && to.Do(life.Succeed, nil) == life.Refused {
		err = ErrLost
	}
	if err != nil {
		e.abandon(to, lostError{err})
		return fmt.Errorf("cannot bind a container of the pool to user %q: %w", a.User, err)
	}
	e.boundNow(to)
	e.Tell(ctx, to, Incident{What: "container of the pool bound", ID: to.ID()[:12]})
	return nil
}

// claim takes a container out of the pool. The container that it becomes is in the registry at
// once, so that calls can wait for it.
func (e *Executor) claim(from *Container, a quota.Account,
	egress Egress) (to *Container, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || !from.is(life.Ready) {
		return nil, life.ErrLeft
	}
	spec := from.spec.boundTo(a.User, egress)
	from.givePlace()
	give := func() {}
	if !spec.isDetached() {
		give, err = e.cfg.Quotas.Take(a, quota.Containers, 1)
	}
	if err == nil && from.Do(life.Bind, nil) == life.Refused {
		give()
		err = life.ErrLeft
	}
	if err != nil {
		from.SetPlace(e.cfg.Quotas.Hold(quota.Account{}, quota.Containers, 1))
		return nil, err
	}
	e.publish(from, "removed") // from the pool: what it becomes has another name
	e.strike(from)
	delete(e.calls, from.fingerprint)
	to = e.become(from, spec)
	to.token = a.Token
	e.enlist(to)
	e.ids[to.ID()] = to
	if !spec.isDetached() {
		to.SetPlace(give)
		e.calls[to.fingerprint] = to
		e.publish(to, "starting")
	}
	e.bound[to.ID()] = poolRecord{
		Version: poolRecordVersion, Container: to.ID(), Pooled: from.spec.User, Spec: to.spec,
	}
	e.work.Add(1)
	return to, nil
}

// boundNow has a bound container be given up when its session ends, what was removed meanwhile be
// looked up, and Docker rename it. At Shutdown it is left to the next service.
func (e *Executor) boundNow(c *Container) {
	if !c.spec.isDetached() {
		e.publish(c, "idle")
		e.work.Go(func() {
			<-c.sess.Broken()
			e.Lose(c)
		})
	}
	e.work.Go(func() { e.rename(c) })
	e.lookUpSoon(c)
	e.leaveAtShutdown(c)
}

// handOver gives a container's network access, record and home to the user that it is bound to, if
// it may run for that user. That is checked just before the home is the user's, and just after.
func (e *Executor) handOver(from, to *Container) error {
	err := to.net.Assign(to.spec.candidate(to.spec.Egress))
	if err == nil {
		err = e.writeRecord(to.ID())
	}
	if err == nil {
		err = e.giveHome(from.spec.User, to.spec.User)
	}
	if err == nil {
		err = e.may(to.spec.User) // the file system may have taken long
	}
	return err
}

// giveHome renames a pooled home's folder to be a user's, if containers may be started for that
// user.
func (e *Executor) giveHome(pooled, user string) error {
	if err := e.may(user); err != nil {
		return err
	}
	return e.cfg.GiveHome(pooled, user)
}

// become returns the container with another Spec that a pooled one becomes, with all that it has.
func (e *Executor) become(from *Container, spec Spec) (to *Container) {
	to = e.newContainer(spec, spec.Fingerprint(), "", false)
	to.Do(life.Begin, nil)
	to.Name(from.ID())
	to.resources, to.sess, to.since = from.resources, from.sess, from.since
	from.asks.HandOver(&to.asks)
	moved := movedTo(from.spec, spec.User)
	to.writes = nil
	for _, dir := range from.writes {
		to.writes = append(to.writes, moved(dir))
	}
	return to
}

// rename gives a bound container the name that any other with its Spec has. Nothing depends on it,
// so it does not compete with the first command.
func (e *Executor) rename(c *Container) {
	select {
	case <-time.After(renameAfter):
	case <-e.ctx.Done():
		return // the next service does it
	}
	ctx, cancel := context.WithTimeout(e.ctx, renameLimit)
	defer cancel()
	err := e.engine.Rename(ctx, c.ID(), c.spec.ContainerName())
	if err != nil && !cerrdefs.IsNotFound(err) && e.ctx.Err() == nil {
		e.Tell(e.ctx, c, Incident{What: "a container keeps the name that it had in the pool",
			Err: err})
	}
}

// renameFound renames a container that was found and has not been renamed yet.
func (e *Executor) renameFound(c *Container, found engine.Container) {
	if found.Name != c.spec.ContainerName() {
		e.work.Go(func() { e.rename(c) })
	}
}

// renameAfter is how long rename waits, and renameLimit bounds the renaming.
const renameAfter, renameLimit = time.Second, 30 * time.Second

// boundPersistent finds the container that was bound to a Spec's sandbox. One that has ended, or
// whose Spec has changed since, is removed: a sandbox has one container.
func (e *Executor) boundPersistent(ctx context.Context,
	spec Spec) (found ProcessContainer, is bool, err error) {
	fingerprint := spec.Fingerprint()
	var others []string
	e.mu.Lock()
	for id, record := range e.bound {
		if record.Spec.Persistent != spec.Persistent {
			continue
		}
		if c := e.ids[id]; c != nil && c.fingerprint == fingerprint &&
			c.is(life.Ready, life.Frozen) {
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
		return ProcessContainer{}, false,
			fmt.Errorf("cannot start the sandbox: cannot remove its earlier pooled container: %w",
				err)
	}
	return found, is, nil
}
