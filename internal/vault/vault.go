// Package vault seals, with AES-256-GCM, what nobody may read from the disk. The key is a file of
// its own, made on first use: a copy of what is sealed alone has no secrets.
package vault

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"github.com/daycare-run/sandbox/internal/durable"
	"github.com/daycare-run/sandbox/internal/errs"
)

// Why Open may fail that has a key of the right size, or finds none.
var (
	ErrNoKey   = errors.New("the key is gone")
	ErrDamaged = errors.New("it is damaged, belongs to something else, or was sealed with another key")
)

const keySize = 32

// Vault seals with the key in a file. It is safe for concurrent use.
type Vault struct {
	keyFile string
	making  sync.Mutex // held while the key is made
}

// New returns the vault whose key is in a file, which is made on first use, in a directory that is
// there. Only one vault may make a file; any number may share one that exists.
func New(keyFile string) *Vault { return &Vault{keyFile: keyFile} }

// Seal encrypts a text, bound to what it belongs to.
func (v *Vault) Seal(text []byte, bound string) ([]byte, error) {
	key, err := v.key()
	if errors.Is(err, ErrNoKey) {
		key, err = v.makeKey()
	}
	if err != nil {
		return nil, err
	}
	box, err := newBox(key)
	if err != nil {
		return nil, err
	}
	return box.Seal(nil, nil, text, []byte(bound)), nil
}

// Open decrypts what Seal has made, with the same bound. The error is ErrNoKey, ErrDamaged, or says
// what is wrong with the key.
func (v *Vault) Open(sealed []byte, bound string) ([]byte, error) {
	key, err := v.key()
	if err != nil {
		return nil, err
	}
	box, err := newBox(key)
	if err != nil {
		return nil, err
	}
	text, err := box.Open(nil, nil, sealed, []byte(bound))
	if err != nil {
		return nil, ErrDamaged
	}
	return text, nil
}

// key reads the key each time, so that a key file that is put back is used.
func (v *Vault) key() ([]byte, error) {
	key, err := os.ReadFile(v.keyFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, ErrNoKey
	case err != nil:
		return nil, fmt.Errorf("cannot read the key of secrets: %w", errs.WithoutPath(err))
	case len(key) != keySize:
		return nil, fmt.Errorf("the key of secrets has %d bytes, not %d: it is damaged", len(key),
			keySize)
	}
	return key, nil
}

func (v *Vault) makeKey() ([]byte, error) {
	v.making.Lock()
	defer v.making.Unlock()
	if key, err := v.key(); !errors.Is(err, ErrNoKey) {
		return key, err // another call has made it
	}
	key := make([]byte, keySize)
	_, _ = rand.Read(key) // never fails
	if err := durable.WriteFile(v.keyFile, key, 0o600); err != nil {
		return nil, fmt.Errorf("cannot make the key of secrets: %w", errs.WithoutPath(err))
	}
	return key, nil
}

func newBox(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}
