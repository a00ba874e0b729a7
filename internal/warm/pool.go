package warm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/internal/quota"
)

// Stock makes a container for the pool, for a future user of that class. plan plans it for a
// PoolUser, with a home that is made for it. It blocks until the container is ready. The container
// is made when no call waits for another, or in its turn; after an error nothing is left of it.
func (r *Runner) Stock(
	ctx context.Context, class string, plan func(user string) (dockerexec.Spec, error),
) error {
	user, err := r.executor.NewPoolUser()
	if err != nil {
		return err
	}
	spec, err := plan(user)
	if err == nil && spec.Home().Since == 0 {
		err = fmt.Errorf("cannot fill the pool: %w: it does not tell when a directory was made",
			dockerexec.ErrHomesStay)
	}
	var c *dockerexec.Container
	if err == nil {
		c, err = r.stock(ctx, class, spec)
	}
	if err != nil {
		return errors.Join(err, r.executor.DropPooled(user))
	}
	return c.Now().Why
}

// stock is Stock for a Spec. After an error no container has existed.
func (r *Runner) stock(
	ctx context.Context, class string, spec dockerexec.Spec,
) (*dockerexec.Container, error) {
	on := spec.Platform
	if spec.Persistent != "" { // it has its template's, and is stale without that of now
		var err error
		if on, err = r.executor.Platform(ctx); err != nil {
			return nil, err
		}
	}
	wanted := make(chan struct{})
	defer time.AfterFunc(stockAnyway, func() { close(wanted) }).Stop()
	done, err := r.cfg.Quotas.SpareTurn(ctx, quota.Account{}, wanted)
	if err != nil {
		return nil, err
	}
	defer done()
	give, err := r.cfg.Quotas.Take(quota.Account{}, quota.Containers, 1)
	if err != nil {
		return nil, fmt.Errorf("cannot fill the pool: %w", err)
	}
	c, _, err := r.executor.Add(spec, on, quota.Token{})
	if err != nil {
		give()
		return nil, err
	}
	c.SetPlace(give)
	r.mu.Lock()
	r.stocked[c] = class
	r.mu.Unlock()
	r.executor.Make(ctx, c)
	return c, nil
}

// stockAnyway is how long calls that wait for containers of their own may delay one for the pool.
const stockAnyway = 2 * time.Second

// pooled returns the pooled containers that there are, with their classes.
func (r *Runner) pooled() map[*dockerexec.Container]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.stocked, func(c *dockerexec.Container, _ string) bool {
		return c.Now().State > life.Ready
	})
	return maps.Clone(r.stocked)
}

// Stocked returns how many pooled containers there are of each class, and how many of all are ready
// for a user.
func (r *Runner) Stocked() (all map[string]int, ready int) {
	all = map[string]int{}
	for c, class := range r.pooled() {
		all[class]++
		if c.Now().State == life.Ready {
			ready++
		}
	}
	return all, ready
}

// Trim removes the pooled containers of each class that are more than limits allows.
func (r *Runner) Trim(limits map[string]int) {
	pooled, kept := r.pooled(), map[string]int{}
	r.executor.Retire(func(c *dockerexec.Container, now life.Now) bool {
		class, is := pooled[c]
		if !is || now.State != life.Ready {
			return false
		}
		kept[class]++
		return kept[class] > limits[class]
	})
}

// ErrNotStocked says that no container of the class waits for the user.
var ErrNotStocked = errors.New("no container of this kind waits for a user")

// Bind gives a user the pooled container of a class that has waited longest, with its home, if at
// least leave others remain; otherwise the error is ErrNotStocked. See Executor.Bind.
func (r *Runner) Bind(
	ctx context.Context, class string, leave int, a quota.Account, egress dockerexec.Egress,
) error {
	for _, c := range r.waiting(class, leave) {
		err := r.executor.Bind(ctx, c, a, egress)
		if !errors.Is(err, life.ErrLeft) {
			return err
		}
	}
	return ErrNotStocked
}

// waiting returns the containers of a class that wait for a user, the longest first, without the
// last ones, which it leaves.
func (r *Runner) waiting(class string, leave int) (list []*dockerexec.Container) {
	for c, of := range r.pooled() {
		if of == class && c.Now().State == life.Ready {
			list = append(list, c)
		}
	}
	slices.SortFunc(list, func(a, b *dockerexec.Container) int {
		return a.Since().Compare(b.Since())
	})
	return list[:max(len(list)-leave, 0)]
}
