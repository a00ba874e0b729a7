package process

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/daycare-run/sandbox/internal/vault"
)

// sealSecrets seals what the process id needs for a start. It cannot be opened for another process.
func sealSecrets(v *vault.Vault, id string, secrets map[string]string) ([]byte, error) {
	text, err := json.Marshal(secrets)
	if err != nil {
		return nil, err
	}
	return v.Seal(text, id)
}

// openSecrets opens what sealSecrets has made. Its errors say why a process cannot be started.
func openSecrets(v *vault.Vault, id string, sealed []byte) (map[string]string, error) {
	text, err := v.Open(sealed, id)
	switch {
	case errors.Is(err, vault.ErrNoKey):
		return nil, errors.New(
			"its secrets cannot be opened: their key is gone; start it again with its secrets")
	case errors.Is(err, vault.ErrDamaged):
		return nil, errors.New(
			"its secrets cannot be opened: they are damaged, or were sealed with another key; start it again with its secrets")
	case err != nil:
		return nil, fmt.Errorf("its secrets cannot be opened: %w", err)
	}
	var secrets map[string]string
	if err := json.Unmarshal(text, &secrets); err != nil {
		return nil, errors.New(
			"its secrets cannot be opened: they are damaged; start it again with its secrets")
	}
	return secrets, nil
}
