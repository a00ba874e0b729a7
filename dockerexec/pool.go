package dockerexec

import (
	"cmp"
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

// poolFolder returns the folder in the pool of a PoolUser's container: it holds what is to be the
// user's, and the spool.
func (h *host) poolFolder(user string) string {
	return filepath.Join(h.cfg.PoolDir, filepath.Base(filepath.Dir(user)))
}

// ErrHomesStay says that the file system of usersDir lacks what a pool needs, and will lack it the
// next time, too.
var ErrHomesStay = errors.New("the file system of usersDir cannot be used for a pool")

// NewPoolUser returns a new PoolUser, if containers may be started now. Its folder's name says
// which service it belongs to: services may share usersDir.
func (w *warm) NewPoolUser() (string, error) {
	random := make([]byte, 8)
	_, _ = rand.Read(random) // never fails
	user := PoolUser(poolPrefix(w.cfg.Host, w.cfg.Instance) + hex.EncodeToString(random))
	return user, w.may(user)
}

// IsOfPool reports whether a PoolUser belongs to this Executor, or to an earlier one with the same
// Config.Host and Instance.
func (w *warm) IsOfPool(user string) bool {
	return strings.HasPrefix(user, poolDir+"/"+poolPrefix(w.cfg.Host, w.cfg.Instance))
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

// Stock makes a container for the pool, for a future user of that class. spec's User is a PoolUser.
// It blocks until the container is ready. The container is made when no call waits for another, or
// in its turn; after an error nothing is left of it.
func (w *warm) Stock(ctx context.Context, class string, spec Spec) error {
	if !spec.IsPooled() || spec.home().Since == 0 {
		return errors.Join(fmt.Errorf(
			"cannot fill the pool: %w: it does not tell when a directory was made", ErrHomesStay),
			w.DropPooled(spec.User))
	}
	var present *Platform
	if spec.Persistent != "" {
		platform, err := w.cfg.Platforms.Current(ctx)
		if err != nil {
			return errors.Join(err, w.DropPooled(spec.User))
		}
		present = &platform
	}
	wanted := make(chan struct{})
	defer time.AfterFunc(stockAnyway, func() { close(wanted) }).Stop()
	done, err := w.cfg.Quotas.SpareTurn(ctx, quota.Account{}, wanted)
	if err != nil {
		return errors.Join(err, w.DropPooled(spec.User))
	}
	defer done()
	give, err := w.cfg.Quotas.Take(quota.Account{}, quota.Containers, 1)
	if err != nil {
		return errors.Join(fmt.Errorf("cannot fill the pool: %w", err), w.DropPooled(spec.User))
	}
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		give()
		return errors.Join(errStopping, w.DropPooled(spec.User))
	}
	c := w.add(spec, spec.Fingerprint())
	c.class, c.pool, c.give, c.stockedOn = class, spec.SpoolDir, give, present
	c.Do(life.Begin, nil)
	w.mu.Unlock()
	w.prepare(c, w.logOf(ctx))
	return c.Now().Why
}

// stockAnyway is how long calls that wait for containers of their own may delay one for the pool.
const stockAnyway = 2 * time.Second

// Stocked returns how many pooled containers there are of each class, and how many of all are ready
// for a user.
func (w *warm) Stocked() (all map[string]int, ready int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all = map[string]int{}
	for _, c := range w.calls {
		if now := c.Now(); c.spec.IsPooled() && now.State <= life.Ready {
			all[c.class]++
			if now.State == life.Ready {
				ready++
			}
		}
	}
	return all, ready
}

// Trim removes the pooled containers of each class that are more than limits allows.
func (w *warm) Trim(limits map[string]int) {
	kept := map[string]int{}
	w.retire(func(c *container, now life.Now) bool {
		if !c.spec.IsPooled() || now.State != life.Ready {
			return false
		}
		kept[c.class]++
		return kept[c.class] > limits[c.class]
	})
}

// ErrNotStocked says that no container of the class waits for the user.
var ErrNotStocked = errors.New("no container of this kind waits for a user")

// Bind gives a user the pooled container of a class that has waited longest, with its home, if at
// least leave others remain. The user must not have a home. Calls find the container by its Spec.
// After an error the user has no container of the pool, and has a home only if it could not be
// taken back.
func (w *warm) Bind(ctx context.Context, class string, leave int, a quota.Account,
	egress Egress) error {
	return w.bindPooled(ctx, class, leave, egress, a.User, func() (give func(), err error) {
		return w.cfg.Quotas.Take(a, quota.Containers, 1)
	}, a.Token)
}

// BindPersistent is Bind for a persistent container, of the sandbox that has its user's name:
// StartPersistent finds it. The caller accounts for its place.
func (w *warm) BindPersistent(ctx context.Context, class string, leave int, user string,
	egress Egress) error {
	return w.bindPooled(ctx, class, leave, egress, user, func() (give func(), err error) {
		return nil, nil
	}, quota.Token{})
}

// bindPooled is Bind. place takes a place for the container that the pooled one becomes.
func (w *warm) bindPooled(ctx context.Context, class string, leave int, egress Egress, user string,
	place func() (func(), error), token quota.Token) error {
	from, to, err := w.claim(class, leave, user, egress, place, token)
	if err != nil {
		return err
	}
	defer w.work.Done()
	if err = w.handOver(from, to); err == nil {
		err = to.mounts.rebind(w.cfg.Mounts, to.spec)
	}
	if err == nil && to.Do(life.Succeed, nil) == life.Refused {
		err = errLost
	}
	if err != nil {
		w.abandon(to, lostError{err})
		return fmt.Errorf("cannot bind a container of the pool to user %q: %w", user, err)
	}
	w.boundNow(to)
	w.tell(ctx, to, Incident{What: "container of the pool bound", ID: to.ID()[:12]})
	return nil
}

// boundNow has a bound container be given up when its session ends, and has Docker rename it. At
// Shutdown it is left to the next service.
func (w *warm) boundNow(c *container) {
	if !c.spec.isDetached() {
		w.publish(c, "idle")
		w.work.Go(func() {
			<-c.sess.Broken()
			w.lose(c)
		})
	}
	w.work.Go(func() { w.rename(c) })
	w.leaveAtShutdown(c)
}

// handOver gives a container's network access, record and home to the user that it is bound to, if
// it may run for that user. That is checked just before the home is the user's, and just after.
func (w *warm) handOver(from, to *container) error {
	err := to.net.Assign(to.spec.candidate(to.spec.Egress))
	if err == nil {
		err = w.writeRecord(to.ID())
	}
	if err == nil {
		err = w.giveHome(from.spec.User, to.spec.User)
	}
	if err == nil {
		err = w.may(to.spec.User) // the file system may have taken long
	}
	return err
}

// giveHome renames a pooled home's folder to be a user's, if containers may be started for that
// user.
func (h *host) giveHome(pooled, user string) error {
	if err := h.may(user); err != nil {
		return err
	}
	return h.cfg.GiveHome(pooled, user)
}

// waiting returns the container of a class that has waited longest; nil if no more than leave wait.
// e.mu is held.
func (w *warm) waiting(class string, leave int) (longest *container) {
	if w.closed {
		return nil
	}
	waits := 0
	for _, c := range w.calls {
		if !c.spec.IsPooled() || c.class != class || !c.is(life.Ready) {
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

// claim takes a container out of the pool. The container that it becomes is in the registry at
// once, so that calls can wait for it.
func (w *warm) claim(class string, leave int, user string, egress Egress,
	place func() (func(), error), token quota.Token) (from, to *container, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if from = w.waiting(class, leave); from == nil {
		return nil, nil, ErrNotStocked
	}
	from.give()
	give, err := place()
	if err != nil || from.Do(life.Bind, nil) == life.Refused {
		if give != nil {
			give()
		}
		from.give = w.cfg.Quotas.Hold(quota.Account{}, quota.Containers, 1)
		return nil, nil, cmp.Or(err, ErrNotStocked)
	}
	from.give = nil
	w.publish(from, "removed") // from the pool: what it becomes has another name
	delete(w.all, from)
	delete(w.calls, from.fingerprint)
	to = w.become(from, from.spec.boundTo(user, egress))
	to.give, to.token = give, token
	w.all[to], w.ids[to.ID()] = true, to
	if !to.spec.isDetached() {
		w.calls[to.fingerprint] = to
		w.publish(to, "starting")
	}
	w.bound[to.ID()] = poolRecord{Version: poolRecordVersion, Container: to.ID(),
		Pooled: from.spec.User, Spec: to.spec}
	w.work.Add(1)
	return from, to, nil
}

// become returns the container with another Spec that a pooled one becomes, with all that it has.
func (w *warm) become(from *container, spec Spec) (to *container) {
	to = w.newContainer(spec, spec.Fingerprint(), "", false)
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
func (h *host) rename(c *container) {
	select {
	case <-time.After(renameAfter):
	case <-h.ctx.Done():
		return // the next service does it
	}
	ctx, cancel := context.WithTimeout(h.ctx, renameLimit)
	defer cancel()
	err := h.engine.Rename(ctx, c.ID(), c.spec.ContainerName())
	if err != nil && !cerrdefs.IsNotFound(err) && h.ctx.Err() == nil {
		h.tell(h.ctx, c, Incident{What: "a container keeps the name that it had in the pool",
			Err: err})
	}
}

// renameFound renames a container that was found and has not been renamed yet.
func (h *host) renameFound(c *container, found engine.Container) {
	if found.Name != c.spec.ContainerName() {
		h.work.Go(func() { h.rename(c) })
	}
}

// renameAfter is how long rename waits, and renameLimit bounds the renaming.
const renameAfter, renameLimit = time.Second, 30 * time.Second

// boundPersistent finds the container that was bound to a Spec's sandbox. One that has ended, or
// whose Spec has changed since, is removed: a sandbox has one container.
func (p *detached) boundPersistent(ctx context.Context,
	spec Spec) (found ProcessContainer, is bool, err error) {
	fingerprint := spec.Fingerprint()
	var others []string
	p.mu.Lock()
	for id, record := range p.bound {
		if record.Spec.Persistent != spec.Persistent {
			continue
		}
		if c := p.ids[id]; c != nil && c.fingerprint == fingerprint &&
			c.is(life.Ready, life.Frozen) {
			found, is = ProcessContainer{ID: id, Spec: spec, Started: c.since, Running: true}, true
		} else {
			others = append(others, id)
		}
	}
	p.mu.Unlock()
	for _, id := range others {
		err = errors.Join(err, p.RemoveProcess(ctx, id))
	}
	if err != nil {
		return ProcessContainer{}, false,
			fmt.Errorf("cannot start the sandbox: cannot remove its earlier pooled container: %w",
				err)
	}
	return found, is, nil
}
