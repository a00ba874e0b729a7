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

	"github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/pathmap"
)

// A pooled container is like any other, except that its user is still to come. Its home lies in a folder like a
// user's, which lies in a folder of the container's own that belongs to root. The container may reach nothing, and
// runs nothing for anybody before it is bound: then the folder with the home is renamed to be the user's, and from
// then on it is a container with the user's Spec. It is bound once.

// poolDir is the folder of the pool in usersDir. No user can have that name.
const poolDir = ".pool"

// PoolUser returns the User of a pooled container's Spec: the path in usersDir of the folder that becomes the user's.
func PoolUser(id string) string { return poolDir + "/" + id + "/user" }

// poolFolder returns the folder in the pool of a PoolUser's container: it holds what is to be the user's, and the spool.
func (e *Executor) poolFolder(user string) string {
	return filepath.Join(e.cfg.PoolDir, filepath.Base(filepath.Dir(user)))
}

// ErrHomesStay says that the file system of usersDir lacks what a pool needs, and will lack it the next time, too.
var ErrHomesStay = errors.New("the file system of usersDir cannot be used for a pool")

// NewPoolUser returns a new PoolUser, if containers may be started now. Its folder's name says which service it
// belongs to: services may share usersDir.
func (e *Executor) NewPoolUser() (string, error) {
	random := make([]byte, 8)
	_, _ = rand.Read(random) // never fails
	user := PoolUser(poolPrefix(e.cfg.Host, e.cfg.Instance) + hex.EncodeToString(random))
	return user, e.mayStart(user)
}

// IsOfPool reports whether a PoolUser belongs to this Executor, or to an earlier one with the same Config.Host and Instance.
func (e *Executor) IsOfPool(user string) bool {
	return strings.HasPrefix(user, poolDir+"/"+poolPrefix(e.cfg.Host, e.cfg.Instance))
}

// poolPrefix returns the prefix of the names of a service's folders in the pool. Hosts that share usersDir have
// different names, even if the dataDir of one is a copy of another's.
func poolPrefix(host, instance string) string {
	if host != "" {
		instance = host + "." + instance
	}
	return instance + "-"
}

// IsPooled reports whether the Spec is that of a container whose user is still to come.
func (s Spec) IsPooled() bool { return strings.HasPrefix(s.User, poolDir+"/") }

// boundTo returns a pooled container's Spec with a user's home in place of its own.
func (s Spec) boundTo(user string, egress Egress) Spec {
	usersDir := filepath.Dir(filepath.Dir(s.SpoolDir))
	from, to := filepath.Join(usersDir, s.User), filepath.Join(usersDir, user)
	moved := func(name string) string {
		if rest, ok := pathmap.CutDir(name, from); ok {
			return filepath.Join(to, rest)
		}
		return name
	}
	s.User, s.SpoolDir, s.Egress = user, to, egress
	if s.Lasting != "" {
		s.Lasting = user
	}
	s.Mounts, s.Masks, s.Pins = append([]Mount(nil), s.Mounts...), append([]Mask(nil), s.Masks...), append([]Pin(nil), s.Pins...)
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

// Stock makes a container for the pool, for a future user of that class. spec's User is a PoolUser. It blocks until
// the container is ready. The container is made when no call waits for another, or in its turn; after an error nothing
// is left of it.
func (e *Executor) Stock(ctx context.Context, class string, spec Spec) error {
	if !spec.IsPooled() || spec.home().Since == 0 {
		return errors.Join(fmt.Errorf("cannot fill the pool: %w: it does not tell when a directory was made", ErrHomesStay), e.DropPooled(spec.User))
	}
	var present *Platform
	if spec.Lasting != "" {
		platform, err := e.cfg.Platform(ctx)
		if err != nil {
			return errors.Join(err, e.DropPooled(spec.User))
		}
		present = &platform
	}
	wanted := make(chan struct{})
	defer time.AfterFunc(stockAnyway, func() { close(wanted) }).Stop()
	done, err := e.cfg.Quotas.SpareTurn(ctx, quota.Account{}, wanted)
	if err != nil {
		return errors.Join(err, e.DropPooled(spec.User))
	}
	defer done()
	give, err := e.cfg.Quotas.Take(quota.Account{}, quota.Containers, 1)
	if err != nil {
		return errors.Join(fmt.Errorf("cannot fill the pool: %w", err), e.DropPooled(spec.User))
	}
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		give()
		return errors.Join(errStopping, e.DropPooled(spec.User))
	}
	c := e.add(spec, spec.Fingerprint())
	c.class, c.pool, c.begun, c.give, c.stockedOn = class, spec.SpoolDir, true, give, present
	e.work.Go(func() { e.prepare(c, e.logOf(ctx)) })
	e.mu.Unlock()
	<-c.ready
	return c.err
}

// stockAnyway is how long calls that wait for containers of their own may delay one for the pool.
const stockAnyway = 2 * time.Second

// Stocked returns how many pooled containers there are of each class, and how many of all are ready for a user.
func (e *Executor) Stocked() (all map[string]int, ready int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	all = map[string]int{}
	for _, c := range e.containers {
		if c.spec.IsPooled() {
			all[c.class]++
			if c.isReady() {
				ready++
			}
		}
	}
	return all, ready
}

// Trim removes the pooled containers of each class that are more than most allows.
func (e *Executor) Trim(most map[string]int) {
	kept := map[string]int{}
	e.retire(func(c *container) bool {
		if !c.spec.IsPooled() {
			return false
		}
		kept[c.class]++
		return kept[c.class] > most[c.class]
	})
}

// ErrNotStocked says that no container of the class waits for the user.
var ErrNotStocked = errors.New("no container of this kind waits for a user")

// Bind gives a user the pooled container of a class that has waited longest, with its home, if at least leave others
// remain. The user must not have a home. Calls find the container by its Spec. After an error the user has no
// container of the pool, and has a home only if it could not be taken back.
func (e *Executor) Bind(ctx context.Context, class string, leave int, a quota.Account, egress Egress) error {
	from, to, err := e.claim(class, leave, a, egress)
	if err != nil {
		return err
	}
	defer e.work.Done()
	if err = e.handOver(from, to); err != nil {
		e.abandon(from, to)
		return fmt.Errorf("cannot bind a container of the pool to user %q: %w", a.User, err)
	}
	err = e.cfg.Mounts.Rebind(from.spec, to.spec)
	e.mu.Lock()
	if err == nil && to.lost {
		err = errLost
	}
	if err != nil {
		to.err = lostError{err}
		e.drop(to)
	}
	close(to.ready)
	e.publish(to, "idle")
	closed := e.closed
	e.mu.Unlock()
	if err != nil {
		e.discard(to)
		return fmt.Errorf("cannot bind a container of the pool to user %q: %w", a.User, err)
	}
	e.attachTo(to)
	if closed { // it is left to the next service
		to.sess.close()
	}
	e.tell(ctx, to, Incident{What: "container of the pool bound", ID: to.id[:12]})
	return nil
}

// handOver gives a container's network access, record and home to the user that it is bound to, if it may run for that
// user. That is checked just before the home is the user's, and just after.
func (e *Executor) handOver(from, to *container) error {
	err := e.assign(from, to)
	if err == nil {
		err = e.writeRecord(to.id)
	}
	if err == nil {
		err = e.giveHome(from.spec.User, to.spec.User)
	}
	if err == nil {
		err = e.mayStart(to.spec.User) // the file system may have taken long
	}
	return err
}

// giveHome renames a pooled home's folder to be a user's, if containers may be started for that user.
func (e *Executor) giveHome(pooled, user string) error {
	if err := e.mayStart(user); err != nil {
		return err
	}
	return e.cfg.GiveHome(pooled, user)
}

// waiting returns the container of a class that has waited longest; nil if no more than leave wait. e.mu is held.
func (e *Executor) waiting(class string, leave int) (longest *container) {
	if e.closed {
		return nil
	}
	waits := 0
	for _, c := range e.containers {
		if !c.spec.IsPooled() || c.class != class || !c.isReady() || c.retired {
			continue
		}
		waits++
		if longest == nil || c.since.Before(longest.since) {
			longest = c
		}
	}
	if waits <= leave {
		return nil
	}
	return longest
}

// claim takes a container out of the pool. The container that it becomes takes its place at once, so that calls can wait for it.
func (e *Executor) claim(class string, leave int, a quota.Account, egress Egress) (from, to *container, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if from = e.waiting(class, leave); from == nil {
		return nil, nil, ErrNotStocked
	}
	from.give()
	give, err := e.cfg.Quotas.Take(a, quota.Containers, 1)
	if err != nil {
		from.give = e.cfg.Quotas.Hold(quota.Account{}, quota.Containers, 1)
		return nil, nil, err
	}
	spec := from.spec.boundTo(a.User, egress)
	to = e.add(spec, spec.Fingerprint())
	e.replace(from, to)
	to.token, to.begun, to.give, to.sess = a.Token, true, give, from.sess
	return from, to, nil
}

// replace puts a bound container in the place of the pooled one; e.mu is held.
func (e *Executor) replace(from, to *container) {
	delete(e.containers, from.fingerprint)
	e.publish(from, "removed") // from the pool: what it becomes has another name
	from.unwanted(nil)
	e.work.Add(1)
	to.id, to.spool, to.tmp, to.pool = from.id, from.spool, from.tmp, from.pool
	to.isPrepared, to.prepared = true, from.prepared
	to.holder, to.gateway, to.since = from.holder, from.gateway, from.since
	e.bound[to.id] = poolRecord{Version: poolRecordVersion, Container: to.id, Pooled: from.spec.User, Spec: to.spec}
}

// abandon removes a container that could not be bound. Its home is its own, or the user's, who has not used it.
func (e *Executor) abandon(from, to *container) {
	e.mu.Lock()
	delete(e.containers, to.fingerprint)
	from.give, e.leaving[from] = to.give, true
	to.err = lostError{errLost}
	to.unwanted(nil)
	close(to.ready)
	close(to.gone)
	e.mu.Unlock()
	e.discard(from)
}

// attachTo gives a bound container up when its session ends, and has Docker rename it.
func (e *Executor) attachTo(c *container) {
	e.work.Go(func() {
		<-c.sess.broken()
		e.forget(c)
	})
	e.work.Go(func() { e.rename(c) })
}

// rename gives a bound container the name that any other with its Spec has. Nothing depends on it, so it does not
// compete with the first command.
func (e *Executor) rename(c *container) {
	select {
	case <-time.After(renameAfter):
	case <-e.ctx.Done():
		return // the next service does it
	}
	ctx, cancel := context.WithTimeout(e.ctx, renameLimit)
	defer cancel()
	err := e.engine.Rename(ctx, c.id, c.spec.ContainerName())
	if err != nil && !cerrdefs.IsNotFound(err) && e.ctx.Err() == nil {
		e.tell(e.ctx, c, Incident{What: "a container keeps the name that it had in the pool", Err: err})
	}
}

// renameFound renames a container that was found and has not been renamed yet.
func (e *Executor) renameFound(c *container, found engine.Container) {
	if found.Name != c.spec.ContainerName() {
		e.work.Go(func() { e.rename(c) })
	}
}

// renameAfter is how long rename waits, and renameLimit bounds the renaming.
const renameAfter, renameLimit = time.Second, 30 * time.Second
