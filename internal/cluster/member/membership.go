package member

import (
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/config"
	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/cluster"
	"github.com/daycare-run/sandbox/internal/cluster/fence"
	"github.com/daycare-run/sandbox/internal/cluster/forward"
	"github.com/daycare-run/sandbox/internal/events"
	"github.com/daycare-run/sandbox/internal/version"
)

// Membership is this host's place in a cluster: its lease, its seats, and the records that all
// hosts share.
type Membership struct {
	settings config.Cluster
	etcd     *cluster.Etcd
	cluster  *cluster.Cluster
	fence    *fence.Member
	certs    forward.Certificates
	sealing  []byte // the key that all hosts share
	log      zerolog.Logger
}

// Dial connects to etcd as configured.
func Dial(cfg config.Cluster) (*cluster.Etcd, forward.Certificates, error) {
	certs, err := forward.ReadCertificates(cfg.CAFile, cfg.CertFile, cfg.KeyFile)
	if err != nil {
		return nil, certs, err
	}
	etcd, err := cluster.Dial(cfg.Etcd, certs.Client(""))
	return etcd, certs, err
}

// FenceGroup returns the control group of a service's containers. The fence has to know it before
// the service has ever run.
func FenceGroup(cfg config.Config) fence.Group {
	sum := sha256.Sum256([]byte(cfg.DataDir))
	return fence.GroupOf(hex.EncodeToString(sum[:6]))
}

// FenceFiles returns the files by which a service and its fence know of each other.
func FenceFiles(cfg config.Config) fence.Files { return fence.Files{Base: cfg.Listen} }

// Open reads this host's certificates and keys, and makes it a member of its cluster. instance is
// the id of its dataDir.
func Open(cfg config.Config, instance string, stream *events.Stream,
	log zerolog.Logger) (*Membership, error) {
	c := cfg.Cluster
	sealing, err := ReadSealingKey(c.SealingKeyFile)
	if err != nil {
		return nil, err
	}
	etcd, certs, err := Dial(c)
	if err != nil {
		return nil, err
	}
	return &Membership{
		settings: c, etcd: etcd, certs: certs, sealing: sealing, log: log,
		cluster: cluster.New(etcd, cluster.Config{
			Host: c.Name, Address: c.Listen, Version: version.String(), Instance: instance,
			Fences: len(c.FenceCommand) > 0, LocalHomes: c.Homes == "local", Events: stream,
			Log: log,
		}),
		fence: fence.NewMember(FenceFiles(cfg), FenceGroup(cfg), log),
	}, nil
}

// Close closes the connection to etcd.
func (m *Membership) Close() { _ = m.etcd.Close() }

// ReadSealingKey reads the key that all hosts share.
func ReadSealingKey(file string) ([]byte, error) {
	text, err := os.ReadFile(file)
	if err != nil || len(text) != secretSize {
		return nil, fmt.Errorf(
			"cannot use cluster.sealingKeyFile: want %d bytes, the same on all hosts: %d, %v",
			secretSize, len(text), err)
	}
	return text, nil
}

// secretSize is the size of keys in bytes.
const secretSize = 32

// Derive returns a key for one purpose, derived from the key that all hosts share.
func (m *Membership) Derive(purpose string) ([]byte, error) {
	return hkdf.Key(sha256.New, m.sealing, nil, purpose, secretSize)
}

// MayRun returns nil while this host has a lease.
func (m *Membership) MayRun() error { return m.fence.MayStart() }

// MayStart returns nil while this host has a lease and the user's seat. Pooled containers belong to
// no user yet and need no seat.
func (m *Membership) MayStart(user string) error {
	if err := m.fence.MayStart(); err != nil || (dockerexec.Spec{User: user}).IsPooled() {
		return err
	}
	return m.cluster.MayStart(user, m.fence.Record().Lease)
}

// Cluster returns what this host knows of the others.
func (m *Membership) Cluster() *cluster.Cluster { return m.cluster }

// Certificates are this host's own, and the authority that it trusts.
func (m *Membership) Certificates() forward.Certificates { return m.certs }
