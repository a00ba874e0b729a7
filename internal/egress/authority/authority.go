// Package authority issues the certificates with which the egress guard ends TLS in place of the
// hosts that credentials are for. There is one key, sealed on disk, and a certificate of the
// authority for each set of hosts, which is good for names of these hosts alone: a container trusts
// no more than that, even if the key were stolen.
package authority

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/daycare-run/sandbox/internal/durable"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/vault"
)

// maxIssuers is how many issuers are remembered. Others are made again, and are the same.
const maxIssuers = 1024

// Authority has the key. It is safe for concurrent use.
type Authority struct {
	dir   string
	vault *vault.Vault

	mu      sync.Mutex
	own     *identity          // nil until it is needed
	leafKey *ecdsa.PrivateKey  // of all leaves, in memory alone
	issuers map[string]*Issuer // by the hosts, sorted
}

// identity is what certificates are made of, so that they are the same after a restart: containers
// go on that trust them.
type identity struct {
	key    *ecdsa.PrivateKey
	madeAt time.Time
}

// Open returns the authority whose key is in dir, which it makes. The key is read, or made, when it
// is first needed.
func Open(dir string, v *vault.Vault) (*Authority, error) {
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = durable.Sweep(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open the authority of credentials: %w", err)
	}
	return &Authority{dir: dir, vault: v, issuers: map[string]*Issuer{}}, nil
}

// For returns the issuer for a set of hosts, in canonical form: names, or *.name for all names below
// one. The same set has the same certificate, also after a restart, for five years.
func (a *Authority) For(hosts []string) (*Issuer, error) {
	hosts = slices.Compact(slices.Sorted(slices.Values(hosts)))
	set := strings.Join(hosts, " ")
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.ready(); err != nil {
		return nil, fmt.Errorf("cannot issue certificates for %.200s: %w", set, err)
	}
	begins := a.own.begins(time.Now())
	if i := a.issuers[set]; i != nil && i.certificate.NotBefore.Equal(begins) {
		return i, nil
	}
	i, err := newIssuer(hosts, a.own.key, a.leafKey, begins)
	if err != nil {
		return nil, fmt.Errorf("cannot issue certificates for %.200s: %w", set, err)
	}
	makeRoom(a.issuers, maxIssuers)
	a.issuers[set] = i
	return i, nil
}

// makeRoom removes any entry of a map that is full: it is made again when it is needed.
func makeRoom[V any](entries map[string]V, most int) {
	for name := range entries {
		if len(entries) < most {
			return
		}
		delete(entries, name)
	}
}

// ready reads or makes the keys once; mu is held.
func (a *Authority) ready() error {
	if a.own != nil {
		return nil
	}
	own, err := a.read()
	if errors.Is(err, fs.ErrNotExist) {
		own, err = a.makeIdentity()
	}
	if err != nil {
		return err
	}
	leafKey, err := newKey()
	if err != nil {
		return err
	}
	a.own, a.leafKey = own, leafKey
	return nil
}

// sealed is an identity on disk, before it is sealed.
type sealed struct {
	Version int       `json:"version"`
	Key     []byte    `json:"key"` // PKCS #8
	MadeAt  time.Time `json:"madeAt"`
}

const (
	keyVersion = 1
	keyName    = "key"                      // of the file in dir
	bound      = "authority of credentials" // what it is sealed with
)

func (a *Authority) file() string { return filepath.Join(a.dir, keyName) }

// read reads the identity. One that is damaged stays: what trusts it would trust no other, so a
// person has to decide.
func (a *Authority) read() (*identity, error) {
	box, err := os.ReadFile(a.file())
	if err != nil {
		return nil, fmt.Errorf("cannot read the authority's key: %w", errs.WithoutPath(err))
	}
	text, err := a.vault.Open(box, bound)
	if err == nil {
		own, parseErr := parse(text)
		if parseErr == nil {
			return own, nil
		}
		err = parseErr
	}
	return nil, fmt.Errorf(
		"the authority's key cannot be opened: %w; put back what it was sealed with, or remove the file %s of dataDir to have another one made",
		err, filepath.Join(filepath.Base(a.dir), keyName))
}

func parse(text []byte) (*identity, error) {
	var on sealed
	if err := json.Unmarshal(text, &on); err != nil {
		return nil, err
	}
	if on.Version != keyVersion {
		return nil, fmt.Errorf("version %d is not known", on.Version)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(on.Key)
	if err != nil {
		return nil, err
	}
	key, is := parsed.(*ecdsa.PrivateKey)
	if !is {
		return nil, fmt.Errorf("it is a %T", parsed)
	}
	return &identity{key, on.MadeAt}, nil
}

func (a *Authority) makeIdentity() (*identity, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	own := &identity{key, time.Now().UTC().Truncate(time.Second)} // as in certificates
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(sealed{keyVersion, encoded, own.madeAt})
	if err != nil {
		return nil, err
	}
	box, err := a.vault.Seal(text, bound)
	if err == nil {
		err = durable.WriteFile(a.file(), box, 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot keep the authority's key: %w", errs.WithoutPath(err))
	}
	return own, nil
}

func newKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }
