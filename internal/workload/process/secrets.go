package process

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"github.com/daycare-run/sandbox/internal/durable"
)

// vault seals, with AES-256-GCM, what processes need for a start and nobody may read from the disk.
// The key is a file of its own, made on first use: a copy of the records alone has no secrets.
type vault struct {
	keyFile string
	mu      sync.Mutex // held while the key is made
}

const keySize = 32

// seal encrypts secrets for the process id. They cannot be opened for another process.
func (v *vault) seal(id string, secrets map[string]string) ([]byte, error) {
	box, err := v.box(true)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(secrets)
	if err != nil {
		return nil, err
	}
	return box.Seal(nil, nil, text, []byte(id)), nil
}

// open decrypts what seal has made. Its errors say why a process cannot be started.
func (v *vault) open(id string, sealed []byte) (map[string]string, error) {
	box, err := v.box(false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errors.New(
			"its secrets cannot be opened: their key is gone; start it again with its secrets")
	}
	if err != nil {
		return nil, fmt.Errorf("its secrets cannot be opened: %w", err)
	}
	text, err := box.Open(nil, nil, sealed, []byte(id))
	if err != nil {
		return nil, errors.New(
			"its secrets cannot be opened: they are damaged, or were sealed with another key; start it again with its secrets")
	}
	var secrets map[string]string
	if err := json.Unmarshal(text, &secrets); err != nil {
		return nil, errors.New(
			"its secrets cannot be opened: they are damaged; start it again with its secrets")
	}
	return secrets, nil
}

// box reads the key each time, so that a key file that is put back is used.
func (v *vault) box(mayMake bool) (cipher.AEAD, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	key, err := os.ReadFile(v.keyFile)
	if errors.Is(err, fs.ErrNotExist) && mayMake {
		key = make([]byte, keySize)
		_, _ = rand.Read(key) // never fails
		err = durable.WriteFile(v.keyFile, key, 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the key of secrets: %w", pathless(err))
	}
	if len(key) != keySize {
		return nil, fmt.Errorf("the key of secrets has %d bytes, not %d: it is damaged", len(key),
			keySize)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}
