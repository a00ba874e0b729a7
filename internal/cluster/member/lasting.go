package member

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"fmt"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/cluster"
	"github.com/daycare-run/sandbox/internal/cluster/forward"
	"github.com/daycare-run/sandbox/internal/lasting"
)

// Lasting returns the records of persistent sandboxes that all hosts share. They are sealed, because environments hold
// secrets.
func (m *Membership) Lasting() lasting.Shared { return lastingRecords{m} }

type lastingRecords struct{ *Membership }

func (m *Membership) lastingBox() (cipher.AEAD, error) {
	key, err := m.Derive("records of sandboxes that last")
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
	return held && seat.Epoch == epoch && r.MayStart(id) == nil
}

// Known implements lasting.Shared.
func (r lastingRecords) Known() bool { return r.cluster.Known() }

// applyLasting applies a host's record of a persistent sandbox.
func (m *Member) applyLasting(id string, sealed []byte, revision int64) {
	text := sealed
	if sealed != nil {
		box, err := m.lastingBox()
		if err == nil {
			text, err = box.Open(nil, nil, sealed, []byte(id))
		}
		if err != nil {
			m.log.Error().Err(err).Str("sandbox", id).
				Msg("cannot open the record of a sandbox: it is damaged, or cluster.sealingKeyFile differs between hosts")
			return
		}
	}
	m.parts.Lasting.Apply(id, text, revision)
}

// adoptLasting takes over a persistent sandbox once this host has all that is known of it.
func (m *Member) adoptLasting(user string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := m.cluster.Reached(ctx, 1); err != nil {
		return fmt.Errorf("cannot take over user %q: %w", user, err)
	}
	return m.parts.Lasting.Adopt(user)
}
