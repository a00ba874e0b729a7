package rules

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// settle is how long Keep lets changes gather after it has looked: a host whose firewall is being
// rewritten is not listed for each line of it.
const settle = 20 * time.Millisecond

// Keep checks now, whenever some table of the namespace changes, and at every interval, and repairs what
// differs, with a line in the log. It returns when the context ends, with its error, or when it cannot
// listen for changes.
func (t *Table) Keep(ctx context.Context, interval time.Duration) error {
	if interval <= 0 {
		return fmt.Errorf("cannot keep the egress rules: interval %v", interval)
	}
	changes, stop, err := t.listen()
	if err != nil {
		return fmt.Errorf("cannot keep the egress rules: cannot listen for changes: %w", err)
	}
	defer stop()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for repairs := 0; ; {
		if t.repair(ctx) {
			repairs++
		} else {
			repairs = 0
		}
		// Who repairs the same thing again and again is at odds with another who does so too, and would make
		// that busier with each change: then the ticks have to do.
		heard := changes
		if repairs > 3 {
			heard = nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(settle):
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		case _, open := <-heard:
			if !open { // the listener has failed; the ticks go on
				t.cfg.Log.Warn().Msg("cannot listen for changes of nftables any more: egress rules are checked at intervals only")
				changes = nil
			}
		}
	}
}

// repair says whether there was something to repair.
func (t *Table) repair(ctx context.Context) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.want == nil {
		return false
	}
	drift, err := t.check(ctx)
	if err != nil && ctx.Err() == nil {
		t.cfg.Log.Error().Err(err).Msg("egress rules could not be checked")
	}
	if err != nil || drift == "" {
		return false
	}
	if err := t.replace(t.want); err != nil {
		t.cfg.Log.Error().Err(err).Str("drift", drift).Msg("egress rules were changed by someone else and could not be repaired")
	} else {
		t.cfg.Log.Warn().Str("drift", drift).Msg("egress rules were changed by someone else and have been repaired")
	}
	return true
}

// listen tells of changes to nftables; several may be told as one. The channel is closed when listening
// fails. stop ends it and waits.
func (t *Table) listen() (changes <-chan struct{}, stop func(), err error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: t.cfg.NetNS})
	if err != nil {
		return nil, nil, err
	}
	if err := conn.JoinGroup(unix.NFNLGRP_NFTABLES); err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	told, done := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(done)
		defer close(told)
		for {
			// What does not fit into the socket is lost, but that something was is told.
			if _, err := conn.Receive(); err != nil && !errors.Is(err, unix.ENOBUFS) {
				return
			}
			select {
			case told <- struct{}{}:
			default:
			}
		}
	}()
	return told, func() { _ = conn.Close(); <-done }, nil
}
