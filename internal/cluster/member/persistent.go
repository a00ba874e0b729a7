package member

import (
	"crypto/aes"
	"crypto/cipher"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/cluster"
	"github.com/daycare-run/sandbox/internal/cluster/forward"
	"github.com/daycare-run/sandbox/internal/workload/persistent"
)

// Persistent returns the records of persistent sandboxes that all hosts share. They are sealed,
// because environments hold secrets.
func (m *Membership) Persistent() persistent.Shared { return persistentRecords{m} }

type persistentRecords struct{ *Membership }

func (m *Membership) persistentBox() (cipher.AEAD, error) {
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

// Write implements persistent.Shared.
func (r persistentRecords) Write(user, id string, text []byte) (int64, error) {
	if text != nil {
		box, err := r.persistentBox()
		if err != nil {
			return 0, err
		}
		text = box.Seal(nil, nil, text, []byte(id))
	}
	change := cluster.Change{Kind: forward.Persistent, Name: id, Value: text}
	revision, err := r.cluster.Write(r.cluster.Leased(), user, change)
	if cerrdefs.IsUnavailable(err) { // the etcd member may be lost, and a retry goes to another; writing twice is harmless
		revision, err = r.cluster.Write(r.cluster.Leased(), user, change)
	}
	return revision, err
}

// Seat implements persistent.Shared.
func (r persistentRecords) Seat(user string) (host string, epoch int64) {
	if seat, held := r.cluster.Seat(user); held && seat.Host == r.cluster.Host() {
		epoch = seat.Epoch
	}
	return r.cluster.Host(), epoch
}

// Leased implements persistent.Shared.
func (r persistentRecords) Leased(user string, epoch int64) bool {
	seat, held := r.cluster.Seat(user)
	return held && seat.Epoch == epoch && r.MayStart(user) == nil
}

// Known implements persistent.Shared.
func (r persistentRecords) Known() bool { return r.cluster.Known() }

// applyPersistent applies a host's record of a persistent sandbox.
func (m *Member) applyPersistent(id string, sealed []byte, revision int64) {
	text := sealed
	if sealed != nil {
		box, err := m.persistentBox()
		if err == nil {
			text, err = box.Open(nil, nil, sealed, []byte(id))
		}
		if err != nil {
			m.log.Error().Err(err).Str("sandbox", id).
				Msg("cannot open the record of a sandbox: it is damaged, or cluster.sealingKeyFile differs between hosts")
			return
		}
	}
	m.parts.Persistent.Apply(id, text, revision)
}
