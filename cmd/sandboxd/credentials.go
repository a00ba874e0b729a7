package main

import (
	"crypto/x509"
	"path/filepath"

	"github.com/daycare-run/sandbox/config"
	"github.com/daycare-run/sandbox/internal/credential"
	"github.com/daycare-run/sandbox/internal/egress/authority"
	"github.com/daycare-run/sandbox/internal/vault"
)

// openCredentials reads the registered credentials, and opens what containers trust that have some.
func (d *daemon) openCredentials(cfg config.Config) (err error) {
	dir := filepath.Join(cfg.DataDir, "credentials")
	keyFile := filepath.Join(dir, "key")
	if d.membership != nil {
		keyFile = cfg.Cluster.SealingKeyFile
	}
	sealing := vault.New(keyFile)
	if d.credentials, err = credential.Open(dir, sealing, d.log); err != nil {
		return err
	}
	d.authority, err = authority.Open(filepath.Join(cfg.DataDir, "authority"), sealing)
	return err
}

// trustOrigins has the origins that credentials go to verified by the host's authorities, and by those
// of egress.caFile.
func (d *daemon) trustOrigins(house []*x509.Certificate) {
	pool, err := x509.SystemCertPool()
	if err != nil {
		d.log.Warn().Err(err).Msg(
			"cannot read the host's certificates: credentials go only where egress.caFile is trusted")
		pool = x509.NewCertPool()
	}
	for _, certificate := range house {
		pool.AddCert(certificate)
	}
	d.origins.Store(pool)
}
