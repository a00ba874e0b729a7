package access

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/strictjson"
)

const (
	// minToken is the length of 128 bits in hex.
	minToken = 32
	maxToken = 1024
	// MaxTokensFile is the maximum size of a tokens file in bytes, and so bounds the user names of
	// one token together.
	MaxTokensFile = 1 << 20
)

// Tokens are the callers that are identified by a token. It keeps only hashes of the tokens. It is
// safe for concurrent use.
type Tokens struct {
	known atomic.Pointer[[]Caller]

	mu   sync.Mutex
	held map[*holding]bool
}

// holding is a context that lasts for as long as one of the tokens is still the one that it is for.
type holding struct {
	still func(Caller) bool
	end   context.CancelCauseFunc
}

// is reports whether both are the same token with the same rights.
func (c Caller) is(other Caller) bool {
	return c.same(other) && c.Users.Equal(other.Users) && c.Token == other.Token
}

// tokensFile is the format of a tokens file.
type tokensFile struct {
	Tokens []tokenEntry `json:"tokens"`
}

type tokenEntry struct {
	// Name is for logs and messages.
	Name  string `json:"name"`
	Token string `json:"token"`
	// Users are the users for whom its bearer acts. If the key is absent, it acts for everyone.
	// Null and an empty list are refused, so that a list left empty by mistake does not open
	// everything.
	Users []string `json:"users"`
	// Quotas bound this token, by the keys of the setting quotas.perToken. They only lower those.
	Quotas map[string]int `json:"quotas"`
}

// ReadTokens reads a tokens file, which must be a regular file that only its owner can read or
// write. The error names the faulty entry, and never contains a token.
func ReadTokens(path string) (*Tokens, error) {
	text, err := readPrivate(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the tokens: %w", err)
	}
	tokens, err := parseTokens(text)
	if err != nil {
		return nil, fmt.Errorf("cannot use the tokens of %s: %w", path, err)
	}
	return tokens, nil
}

func readPrivate(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|nonblock, 0) // a FIFO would block
	if err != nil {
		return nil, err
	}
	defer file.Close() // nothing was written
	info, err := file.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", path)
	case info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf(
			"users other than its owner may open %s, whose mode is %04o: chmod 600 %s", path,
			info.Mode().Perm(), path)
	case info.Size() > MaxTokensFile:
		return nil, fmt.Errorf("%s has more than %d bytes", path, MaxTokensFile)
	}
	return io.ReadAll(io.LimitReader(file, MaxTokensFile))
}

func parseTokens(text []byte) (*Tokens, error) {
	var file tokensFile
	if faults := strictjson.Decode(text, &file,
		strictjson.Options{Root: "the file", Secret: true}); len(faults) > 0 {
		return nil, faults
	}
	if len(file.Tokens) == 0 {
		return nil, errors.New(
			`the file has none: want {"tokens":[{"name":"engine","token":"…"}]}, or leave tcp.listen empty`)
	}
	var list []Caller
	names := map[string]bool{}
	for i, entry := range file.Tokens {
		c, err := entry.read()
		if err != nil {
			return nil, fmt.Errorf("tokens[%d] (%.64q): %w", i, entry.Name, err)
		}
		if names[entry.Name] {
			return nil, fmt.Errorf("tokens[%d] (%q): the name is given more than once", i,
				entry.Name)
		}
		names[entry.Name] = true
		for _, other := range list {
			if other.Key == c.Key {
				return nil, fmt.Errorf(
					"tokens[%d] (%q): the token is that of %q: give each its own", i, entry.Name,
					other.Name)
			}
		}
		list = append(list, c)
	}
	tokens := &Tokens{}
	tokens.known.Store(&list)
	return tokens, nil
}

var (
	tokenName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)
	// tokenText matches what an Authorization header can hold (RFC 6750).
	tokenText = regexp.MustCompile(`^[A-Za-z0-9._~+/-]+=*$`)
)

func (e tokenEntry) read() (Caller, error) {
	switch {
	case !tokenName.MatchString(e.Name):
		return Caller{},
			errors.New("the name has to be 1 to 64 letters, digits, _, . and -, a letter or digit first")
	case e.Token == "":
		return Caller{}, errors.New("the token is empty")
	case len(e.Token) < minToken:
		return Caller{},
			fmt.Errorf("the token has %d characters, fewer than %d: make one with openssl rand -hex 32",
				len(e.Token), minToken)
	case len(e.Token) > maxToken:
		return Caller{}, fmt.Errorf("the token has %d characters, more than %d", len(e.Token),
			maxToken)
	case !tokenText.MatchString(e.Token):
		return Caller{},
			errors.New("the token has a character that no header takes: want letters, digits, . _ ~ + / and -")
	}
	var own quota.Bounds
	for _, name := range slices.Sorted(maps.Keys(e.Quotas)) {
		if err := own.Set(name, e.Quotas[name]); err != nil {
			return Caller{}, fmt.Errorf("%s: %w", strictjson.Path("quotas", name), err)
		}
	}
	c := Caller{
		Name: e.Name, Users: ids.Everyone(), Token: quota.Token{Name: e.Name, Own: own},
		Key: sha256.Sum256([]byte(e.Token)),
	}
	if e.Users == nil {
		return c, nil
	}
	if len(e.Users) == 0 {
		return Caller{},
			errors.New("users is empty, which is nobody: name the users, or leave the key out for everyone")
	}
	var users []ids.User
	for i, name := range e.Users {
		id, err := ids.ParseUser(name)
		if err != nil {
			return Caller{}, fmt.Errorf("users[%d]: %w", i, err)
		}
		users = append(users, id)
	}
	c.Users, c.Token.Some = ids.OnlyUsers(users...), true
	return c, nil
}

// Use puts the tokens of next into force in place of the present ones, from the next Find on. gone
// are the names of tokens that are no longer in force, and come the names of new ones. The name of
// a replaced token is in both.
func (t *Tokens) Use(next *Tokens) (gone, come []string) {
	now := next.known.Load()
	before := t.known.Swap(now)
	t.endHeld()
	return without(*before, *now), without(*now, *before)
}

// without returns the names of those in list that are not in other.
func without(list, other []Caller) (names []string) {
	for _, c := range list {
		if !slices.ContainsFunc(other, c.is) {
			names = append(names, c.Name)
		}
	}
	return names
}

// Find returns the caller of a token. The time it takes reveals nothing about the token.
func (t *Tokens) Find(token string) (Caller, bool) {
	hash := sha256.Sum256([]byte(token))
	list := *t.known.Load()
	found := -1
	for i := range list {
		if subtle.ConstantTimeCompare(hash[:], list[i].Key[:]) == 1 {
			found = i
		}
	}
	if found < 0 {
		return Caller{}, false
	}
	return list[found], true
}

// Named returns the caller of the token that has this name now.
func (t *Tokens) Named(name string) (Caller, bool) {
	return t.first(func(c Caller) bool { return c.Name == name })
}

// Owner returns the token that has this name now, by which something was made; an empty name means
// callers at the socket, who have no token. t may be nil.
func (t *Tokens) Owner(name string) (quota.Token, bool) {
	if name == "" || t == nil {
		return quota.Token{}, name == ""
	}
	caller, known := t.Named(name)
	return caller.Token, known
}

// Any reports whether holds is true for one of the tokens.
func (t *Tokens) Any(holds func(Caller) bool) bool {
	_, is := t.first(holds)
	return is
}

func (t *Tokens) first(is func(Caller) bool) (Caller, bool) {
	for _, c := range *t.known.Load() {
		if is(c) {
			return c, true
		}
	}
	return Caller{}, false
}

var errGone = errs.Unauthenticated("the token is no longer in force, or not for the same users")

// Hold returns a context that also ends when the caller's token is no longer in force, even if
// another token has its name, or when it acts for other users than before.
func (t *Tokens) Hold(ctx context.Context, c Caller) (context.Context, context.CancelFunc) {
	return t.hold(ctx, func(now Caller) bool { return now.same(c) && now.Users.Equal(c.Users) })
}

// HoldKey is Hold for what is the token's own, for whatever users it acts.
func (t *Tokens) HoldKey(ctx context.Context, c Caller) (context.Context, context.CancelFunc) {
	return t.hold(ctx, c.same)
}

// same reports whether both are the same token, whatever its rights.
func (c Caller) same(other Caller) bool { return c.Name == other.Name && c.Key == other.Key }

func (t *Tokens) hold(ctx context.Context,
	still func(Caller) bool) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancelCause(ctx)
	h := &holding{still, end}
	t.mu.Lock()
	if t.held == nil {
		t.held = map[*holding]bool{}
	}
	t.held[h] = true
	t.mu.Unlock()
	if !t.Any(still) { // it was removed meanwhile
		end(errGone)
	}
	return ctx, func() {
		end(nil)
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.held, h)
	}
}

// endHeld ends the contexts of tokens that are no longer in force.
func (t *Tokens) endHeld() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for h := range t.held {
		if !t.Any(h.still) {
			h.end(errGone)
		}
	}
}

// bearer returns the token of an Authorization header.
func bearer(header string) (string, bool) {
	scheme, token, ok := strings.Cut(header, " ")
	return strings.TrimLeft(token, " "), ok && strings.EqualFold(scheme, "Bearer")
}
