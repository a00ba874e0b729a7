package credential

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/durable"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/internal/vault"
)

// maxCredentials is how many credentials there may be.
const maxCredentials = 1000

// Store keeps credentials, each in a file of its own. It is safe for concurrent use. Values are in
// memory as they are on disk, sealed.
type Store struct {
	files durable.Records
	vault *vault.Vault

	writing sync.Mutex // held while a file is written; locked before mu
	mu      sync.RWMutex
	all     map[string]kept
	changed chan struct{} // closed when all changes
}

// kept is a credential with its value, and what the value is sealed with.
type kept struct {
	Credential
	sealed []byte
	bound  string
}

// Open reads the credentials under dir, which it makes. A record that cannot be read is set aside
// as <name>.json.damaged and logged; the others load. Values are not opened: the vault need not
// have its key yet.
func Open(dir string, v *vault.Vault, log zerolog.Logger) (*Store, error) {
	s := &Store{files: durable.Records{Dir: dir}, vault: v, all: map[string]kept{},
		changed: make(chan struct{})}
	err := s.files.Load(func(name string, text []byte) error {
		c, sealed, err := parse(name, text)
		if err != nil {
			return err
		}
		bound, err := boundOf(c)
		if err == nil {
			s.all[name] = kept{c, sealed, bound}
		}
		return err
	}, func(why error, file, aside string) {
		log.Error().Err(why).Str("file", file).Str("setAside", aside).
			Msg("damaged record of a credential; nobody has the credential until it is set again")
	})
	if err != nil {
		return nil, fmt.Errorf("cannot open the credentials: %w", err)
	}
	return s, nil
}

// Put makes a credential or replaces it, durably, and reports whether it was made. Without a value
// it keeps the one there is, unless that would go to further hosts or to another place: whoever may
// say so could read the value otherwise, and must have it.
func (s *Store) Put(c Credential, value string) (stored Credential, made bool, err error) {
	if err := c.Validate(); err != nil {
		return Credential{}, false, err
	}
	c = c.canonical()
	s.writing.Lock()
	defer s.writing.Unlock()
	old, there, count := s.find(c.Name)
	switch {
	case !there && count >= maxCredentials:
		return Credential{}, false,
			errs.Busy("there are %d credentials, and there can be no more: remove one first", count)
	case value != "":
		err = c.Place.checkValue(value)
	case !there:
		err = errs.Invalid("value is missing: a new credential needs one")
	case !old.sends(c):
		err = errs.Invalid("value is missing: with further hosts or another place it is needed again")
	default:
		value, err = s.open(old)
	}
	if err != nil {
		return Credential{}, false, err
	}
	c.UpdatedAt = time.Now().UTC()
	c.CreatedAt, c.Placeholder = c.UpdatedAt, newPlaceholder()
	if there {
		c.CreatedAt, c.Placeholder = old.CreatedAt, old.Placeholder
	}
	if err := s.write(c, value); err != nil {
		return Credential{}, false, fmt.Errorf("cannot record credential %q: %w", c.Name,
			errs.WithoutPath(err))
	}
	return c, !there, nil
}

// sends reports whether the value goes to the hosts and the place of another credential already.
func (c Credential) sends(other Credential) bool {
	hosts, err := policy.ParseDomains(c.Hosts)
	further, errOther := policy.ParseDomains(other.Hosts)
	return err == nil && errOther == nil && hosts.Covers(further) && c.Place == other.Place
}

// newPlaceholder returns what nobody can guess, and placeholderPattern matches.
func newPlaceholder() string {
	var random [16]byte
	_, _ = rand.Read(random[:]) // never fails
	return "daycare-secret-" + hex.EncodeToString(random[:])
}

// write seals a value and keeps the credential, on disk first; writing is held.
func (s *Store) write(c Credential, value string) error {
	bound, err := boundOf(c)
	if err != nil {
		return err
	}
	sealed, err := s.vault.Seal([]byte(value), bound)
	if err != nil {
		return err
	}
	text, err := json.Marshal(newRecord(c, sealed))
	if err != nil {
		return err
	}
	if err := s.files.Write(c.Name, text); err != nil {
		return err
	}
	s.change(func() { s.all[c.Name] = kept{c, sealed, bound} })
	return nil
}

// change changes all and tells who waits for that.
func (s *Store) change(how func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	how()
	close(s.changed)
	s.changed = make(chan struct{})
}

// Changed returns a channel that is closed at the next change; then ask again.
func (s *Store) Changed() <-chan struct{} {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.changed
}

// Remove removes a credential, durably.
func (s *Store) Remove(name string) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if _, there, _ := s.find(name); !there {
		return notFound(name)
	}
	if err := s.files.Remove(name); err != nil {
		return fmt.Errorf("cannot remove credential %q: %w", name, errs.WithoutPath(err))
	}
	s.change(func() { delete(s.all, name) })
	return nil
}

func notFound(name string) error { return errs.NotFound("there is no credential %.80q", name) }

func (s *Store) find(name string) (k kept, there bool, count int) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	k, there = s.all[name]
	return k, there, len(s.all)
}

// Get returns a credential.
func (s *Store) Get(name string) (Credential, error) {
	k, there, _ := s.find(name)
	if !there {
		return Credential{}, notFound(name)
	}
	return k.Credential, nil
}

// List returns the credentials by name.
func (s *Store) List() []Credential {
	s.mu.RLock()
	list := make([]Credential, 0, len(s.all))
	for k := range maps.Values(s.all) {
		list = append(list, k.Credential)
	}
	s.mu.RUnlock()
	return byName(list)
}

// For returns those of names that a user may have and that are for a host, by name. The host's name
// is in canonical form.
func (s *Store) For(names []string, user, host string) []Credential {
	s.mu.RLock()
	var list []Credential
	for _, name := range names {
		if k, there := s.all[name]; there && k.MayHave(user) && k.Covers(host) {
			list = append(list, k.Credential)
		}
	}
	s.mu.RUnlock()
	return byName(list)
}

// byName sorts credentials, and leaves out repeats.
func byName(list []Credential) []Credential {
	slices.SortFunc(list, func(a, b Credential) int { return strings.Compare(a.Name, b.Name) })
	return slices.CompactFunc(list, func(a, b Credential) bool { return a.Name == b.Name })
}

// Value returns the value of a credential that the Store has returned. If that was changed since,
// but for its value, there is none: a new value may not go where the old one went.
func (s *Store) Value(c Credential) (string, error) {
	k, there, _ := s.find(c.Name)
	if !there {
		return "", notFound(c.Name)
	}
	if bound, err := boundOf(c); err != nil || bound != k.bound {
		return "", errs.Conflict("credential %q was changed meanwhile", c.Name)
	}
	return s.open(k)
}

func (s *Store) open(k kept) (string, error) {
	value, err := s.vault.Open(k.sealed, k.bound)
	switch {
	case errors.Is(err, vault.ErrNoKey):
		return "", errs.Conflict(
			"the value of credential %q cannot be opened: its key is gone; set the value again", k.Name)
	case errors.Is(err, vault.ErrDamaged):
		return "", errs.Conflict(
			"the value of credential %q cannot be opened: its record was changed, or it was sealed with another key; set the value again",
			k.Name)
	case err != nil:
		return "", fmt.Errorf("the value of credential %q cannot be opened: %w", k.Name, err)
	}
	return string(value), nil
}
