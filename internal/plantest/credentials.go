package plantest

import (
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/credential"
	"github.com/daycare-run/sandbox/internal/egress/authority"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/vault"
)

// AddCredentials has these credentials registered for a planner that uses the Config.
func AddCredentials(t testing.TB, cfg *plan.Config, list ...credential.Credential) {
	t.Helper()
	dir := t.TempDir()
	sealing := vault.New(filepath.Join(dir, "key"))
	var err error
	if cfg.Credentials, err = credential.Open(filepath.Join(dir, "credentials"), sealing,
		zerolog.Nop()); err != nil {
		t.Fatal(err)
	}
	if cfg.Authority, err = authority.Open(filepath.Join(dir, "authority"), sealing); err != nil {
		t.Fatal(err)
	}
	for _, c := range list {
		if _, _, err := cfg.Credentials.Put(c, "the value of "+c.Name); err != nil {
			t.Fatal(err)
		}
	}
}
