package rules

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// tellEvery bounds the lines in the log about repairs: a program that fights over the rules would
// cause thousands.
const tellEvery = 10 * time.Second

// Keep checks now, whenever some table of the namespace changes, and at every interval, and repairs
// what differs, with a line in the log. It returns when the context ends, with its error, or when
// it cannot listen for changes.
//
// Between two checks it waits for as long as the last one took, and no longer, whatever else
// changes rules and however often: so it takes half a processor at most.
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
	var told repairs
	for {
		begun := time.Now()
		t.repair(ctx, &told)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Since(begun)):
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		case _, open := <-changes:
			if !open { // the listener has failed; the caller begins again
				return errors.New(
					"cannot keep the egress rules: cannot listen for changes of nftables any more")
			}
		}
	}
}

// repairs is what has been done since the last log entry.
type repairs struct {
	count int
	last  time.Time
}

// repair puts back what was changed from outside.
func (t *Table) repair(ctx context.Context, told *repairs) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.want == nil {
		return
	}
	drift, err := t.check(ctx)
	if err != nil && ctx.Err() == nil {
		t.cfg.Log.Error().Err(err).Msg("egress rules could not be checked")
	}
	if err != nil || drift == "" {
		return
	}
	if err := t.replace(t.want); err != nil {
		t.cfg.Log.Error().Err(err).Str("drift", drift).
			Msg("egress rules were changed by someone else and could not be repaired")
		return
	}
	told.count++
	if time.Since(told.last) >= tellEvery {
		t.cfg.Log.Warn().Str("drift", drift).Int("times", told.count).
			Msg("egress rules were changed by someone else and have been repaired")
		*told = repairs{last: time.Now()}
	}
}

// listen reports changes to nftables; several may come as one. The channel is closed when listening
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
			// What does not fit into the socket is lost, but the loss is reported.
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
