// Package credential keeps credentials for hosts that commands reach: for which requests a value is,
// how it is put in, and who may have it. The value itself is sealed on disk, and leaves a Store by
// Value alone, for the egress guard. A sandbox has a placeholder, which is worth nothing.
//
// credential.go says what a credential matches, with path.go, and check.go what one may be. store.go
// keeps them, as record.go writes them.
package credential

import (
	"net/http"
	"slices"
	"strings"
	"time"
)

// Credential is what is known of a credential; the value is not in it. Nobody changes the lists of
// one that a Store has returned.
type Credential struct {
	// Name is 1 to 64 lower-case letters, digits and hyphens; it begins and ends with no hyphen.
	Name string
	// Hosts are whom the value is for: names in canonical form, or *.name for all names below one.
	Hosts []string
	Place Place
	// Methods and Paths say for which requests the value is; nil for all. A request for HEAD is as
	// one for GET. A path is a prefix of whole segments: /a is for /a and what is below it, and /a/
	// for what is below alone.
	Methods, Paths []string
	// Users are who may have it; nil for every user.
	Users []string
	// Env is the variable that has the placeholder in a sandbox; empty for none.
	Env string
	// Placeholder is what a sandbox has instead of the value. The Store makes it at the first Put,
	// and it stays.
	Placeholder string

	CreatedAt, UpdatedAt time.Time
}

// Place is where a request has the value. One of Header, Basic and Query is set.
type Place struct {
	// Header is a header's name in canonical form, and Template its text, where Secret stands once
	// for the value.
	Header, Template string
	// Basic is the user name of Basic authentication, whose password is the value.
	Basic string
	// Query is the name of a query parameter.
	Query string
}

// Secret stands for the value in Place.Template.
const Secret = "{secret}"

// Covers reports whether the value is for a host, whose name is in canonical form.
func (c Credential) Covers(host string) bool {
	return slices.ContainsFunc(c.Hosts, func(pattern string) bool {
		if suffix, is := strings.CutPrefix(pattern, "*"); is { // it begins with a dot
			return len(host) > len(suffix) && strings.HasSuffix(host, suffix)
		}
		return host == pattern
	})
}

// Matches reports whether the value is for a request. The path is encoded, as url.URL.EscapedPath
// returns it. CONNECT and TRACE have no credentials: the first is no request to the host, and the
// second is answered with what was sent.
func (c Credential) Matches(method, path string) bool {
	switch {
	case strings.EqualFold(method, http.MethodConnect) || strings.EqualFold(method, http.MethodTrace):
		return false
	case c.Methods != nil && !slices.Contains(c.Methods, method) &&
		(method != http.MethodHead || !slices.Contains(c.Methods, http.MethodGet)):
		return false
	case c.Paths == nil:
		return true
	}
	asked, ok := decoded(path)
	return ok && slices.ContainsFunc(c.Paths, func(prefix string) bool { return below(asked, prefix) })
}

// MayHave reports whether a user may have it.
func (c Credential) MayHave(user string) bool {
	return c.Users == nil || slices.Contains(c.Users, user)
}
