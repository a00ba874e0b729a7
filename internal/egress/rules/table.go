package rules

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// A Table is our rules in one network namespace and the connection to change them. It is safe for
// concurrent use. Apply comes first: until then Add, Bind, Remove and ForgetStrangers return
// errors.
type Table struct {
	cfg Config

	mu   sync.Mutex // guards the fields below, and orders what is sent to the kernel
	wire *wire
	want *wanted // nil before Apply
	// verified is the kernel's generation when its rules were last known to be as wanted. Zero:
	// unknown.
	verified uint32
}

// wanted is what was last sent to the kernel.
type wanted struct {
	members  map[netip.Addr]struct{}
	bound    map[netip.Addr]Binding
	excluded []netip.Prefix // by Exclude
}

// New connects to nftables. It changes nothing: rules that an earlier process left stay in force
// until Apply.
func New(cfg Config) (*Table, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("cannot use the configuration of the egress rules: %w", err)
	}
	w, err := dial(cfg.NetNS)
	if err == nil {
		if _, err = w.generation(); err == nil {
			return &Table{cfg: cfg, wire: w}, nil
		}
		w.close()
	}
	return nil, fmt.Errorf("cannot use nftables: %w%s", err, remedy(err))
}

func remedy(err error) string {
	switch {
	case errors.Is(err, os.ErrPermission):
		return ": run as root, or with CAP_NET_ADMIN in the namespace of the host's network"
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EOPNOTSUPP),
		errors.Is(err, unix.EAFNOSUPPORT),
		errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINVAL):
		return ": the kernel needs nf_tables with the families inet, bridge and arp, and nf_conntrack, nft_ct, " +
			"nft_limit, nft_connlimit, nft_reject_inet (Linux 5.10 or newer; try modprobe nf_tables)"
	default:
		return ""
	}
}

// Apply makes the kernel's rules those of the state, whatever was there, in one transaction: at no
// moment are there no rules. What was open before and is not in the state is closed.
func (t *Table) Apply(ctx context.Context, state State) error {
	if err := state.validate(t.cfg); err != nil {
		return fmt.Errorf("cannot apply egress rules: %w", err)
	}
	next := &wanted{members: map[netip.Addr]struct{}{}, bound: map[netip.Addr]Binding{}}
	for _, addr := range state.Containers {
		next.members[addr] = struct{}{}
	}
	for _, item := range state.Bindings {
		next.bound[item.Addr] = cloned(item)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if t.want != nil {
		next.excluded = t.want.excluded
	}
	if err := t.replace(next); err != nil {
		return fmt.Errorf("cannot apply egress rules: %w%s", err, remedy(err))
	}
	return nil
}

// replace replaces the kernel's rules. It needs mu.
func (t *Table) replace(next *wanted) error {
	t.verified = 0
	if err := t.send(replacement(render(t.cfg, next.elements(t.cfg)))); err != nil {
		return err
	}
	t.want = next
	for _, b := range t.cfg.Bridges {
		// A bridge that does not exist yet gets the option with the first binding.
		if err := t.wire.refuseLinkLocalLearning(b.Name); err != nil &&
			!errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("bridge %q: %w", b.Name, err)
		}
	}
	return nil
}

func (w *wanted) elements(c Config) elements {
	e := elements{excluded: w.excluded}
	for addr := range w.members {
		e.addContainer(c, addr)
	}
	for _, item := range w.bound {
		e.addBinding(item)
	}
	return e
}

func cloned(b Binding) Binding {
	b.MAC = slices.Clone(b.MAC)
	return b
}

// send commits a batch. After a fault the connection is recreated, since answers may be left in it.
func (t *Table) send(b *batch) error {
	if t.wire == nil {
		return errors.New("the table is closed")
	}
	generations, err := t.wire.commit(b)
	if err == nil {
		if t.verified != 0 {
			t.verified += generations
		}
		return nil
	}
	t.verified = 0
	return errors.Join(err, t.redial())
}

func (t *Table) redial() error {
	fresh, err := dial(t.cfg.NetNS)
	if err != nil {
		return fmt.Errorf("cannot connect to nftables again: %w", err)
	}
	t.wire.close()
	t.wire = fresh
	return nil
}

// Close ends the connection and leaves the rules in force.
func (t *Table) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.wire != nil {
		t.wire.close()
		t.wire = nil
	}
}
