package main

import (
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
