package main

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"github.com/daycare-run/sandbox/internal/cluster"
	"github.com/daycare-run/sandbox/internal/cluster/forward"
	"github.com/daycare-run/sandbox/internal/lasting"
)

// derive returns a key for one purpose, derived from the key that all hosts share.
func (m *member) derive(purpose string) ([]byte, error) {
	return hkdf.Key(sha256.New, m.sealing, nil, purpose, secretSize)
}

// lastingRecords are the records of lasting sandboxes that all hosts share. They are sealed, because environments hold
// secrets.
type lastingRecords struct{ *member }

var _ lasting.Shared = lastingRecords{}

func (m *member) lastingBox() (cipher.AEAD, error) {
	key, err := m.derive("records of sandboxes that last")
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// Write implements lasting.Shared.
func (r lastingRecords) Write(id string, text []byte) (int64, error) {
	if text != nil {
		box, err := r.lastingBox()
		if err != nil {
			return 0, err
		}
		text = box.Seal(nil, nil, text, []byte(id))
	}
	change := cluster.Change{Kind: forward.Lasting, Name: id, Value: text}
	revision, err := r.cluster.Write(r.cluster.Leased(), id, change)
	if cerrdefs.IsUnavailable(err) { // the etcd member may be lost, and a retry goes to another; writing twice is harmless
		revision, err = r.cluster.Write(r.cluster.Leased(), id, change)
	}
	return revision, err
}

// Seat implements lasting.Shared.
func (r lastingRecords) Seat(id string) (host string, epoch int64) {
	if seat, held := r.cluster.Seat(id); held && seat.Host == r.cluster.Host() {
		epoch = seat.Epoch
	}
	return r.cluster.Host(), epoch
}

// Leased implements lasting.Shared.
func (r lastingRecords) Leased(id string, epoch int64) bool {
	seat, held := r.cluster.Seat(id)
	return held && seat.Epoch == epoch && r.mayStart(id) == nil
}

// Known implements lasting.Shared.
func (r lastingRecords) Known() bool { return r.cluster.Known() }

// toldOfLasting applies a host's record of a lasting sandbox.
func (m *member) toldOfLasting(id string, sealed []byte, revision int64) {
	text := sealed
	if sealed != nil {
		box, err := m.lastingBox()
		if err == nil {
			text, err = box.Open(nil, nil, sealed, []byte(id))
		}
		if err != nil {
			m.d.log.Error().Err(err).Str("sandbox", id).Msg("cannot open the record of a sandbox: it is damaged, or cluster.sealingKeyFile differs between hosts")
			return
		}
	}
	m.d.lasting.Apply(id, text, revision)
}

// adoptLasting takes over a lasting sandbox once this host has all that is known of it.
func (m *member) adoptLasting(user string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := m.cluster.Reached(ctx, 1); err != nil {
		return fmt.Errorf("cannot take over user %q: %w", user, err)
	}
	return m.d.lasting.Adopt(user)
}

// dropEnded gives up the seats of sandboxes that no longer exist, until ctx ends.
func (m *member) dropEnded(ctx context.Context) {
	var turns errgroup.Group
	turns.SetLimit(givenAtOnce)
	defer func() { _ = turns.Wait() }()
	for ; ctx.Err() == nil; cluster.Wait(ctx, tendEvery) {
		m.d.lasting.Leave(turns.Go, func(id string) error {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			if err := m.router.Drop(ctx, id, func() bool { return m.d.service.HasSandbox(id) }); err != nil {
				return err
			}
			if m.cluster.Holds(id) {
				return errors.New("it is being handed over") // which may yet fail
			}
			return nil
		})
	}
}
