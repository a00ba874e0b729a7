package credential

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/textproto"
	"regexp"
	"slices"
	"time"

	"github.com/daycare-run/sandbox/internal/policy"
)

// recordVersion is the version of a record's form on disk.
const recordVersion = 1

// record is a credential on disk.
type record struct {
	Version     int      `json:"version"`
	Name        string   `json:"name"`
	Hosts       []string `json:"hosts"`
	Header      string   `json:"header,omitempty"`
	Template    string   `json:"template,omitempty"`
	Basic       string   `json:"basic,omitempty"`
	Query       string   `json:"query,omitempty"`
	Methods     []string `json:"methods,omitempty"`
	Paths       []string `json:"paths,omitempty"`
	Users       []string `json:"users,omitempty"`
	Env         string   `json:"env,omitempty"`
	Placeholder string   `json:"placeholder"`

	CreatedAt time.Time `json:"createdAt,omitzero"`
	UpdatedAt time.Time `json:"updatedAt,omitzero"`
	// Sealed is the value, bound to all of the above but the times.
	Sealed []byte `json:"sealed,omitempty"`
}

func newRecord(c Credential, sealed []byte) record {
	return record{
		Version: recordVersion, Name: c.Name, Hosts: c.Hosts, Header: c.Place.Header,
		Template: c.Place.Template, Basic: c.Place.Basic, Query: c.Place.Query, Methods: c.Methods,
		Paths: c.Paths, Users: c.Users, Env: c.Env, Placeholder: c.Placeholder,
		CreatedAt: c.CreatedAt, UpdatedAt: c.UpdatedAt, Sealed: sealed,
	}
}

// boundOf returns what a credential's value is sealed with: whoever can write the record cannot have
// the value sent elsewhere.
func boundOf(c Credential) (string, error) {
	c.CreatedAt, c.UpdatedAt = time.Time{}, time.Time{}
	text, err := json.Marshal(newRecord(c, nil))
	return "credential " + string(text), err
}

var placeholderPattern = regexp.MustCompile(`^daycare-secret-[0-9a-f]{32}$`)

// parse parses a record like untrusted input: a writer of the file can write anything.
func parse(name string, text []byte) (c Credential, sealed []byte, err error) {
	var on record
	if err := json.Unmarshal(text, &on); err != nil {
		return Credential{}, nil, err
	}
	switch {
	case on.Version != recordVersion:
		return Credential{}, nil, fmt.Errorf("version %d is not known", on.Version)
	case on.Name != name:
		return Credential{}, nil, fmt.Errorf("it is about %q", on.Name)
	case !placeholderPattern.MatchString(on.Placeholder):
		return Credential{}, nil, fmt.Errorf("%q is no placeholder", on.Placeholder)
	case len(on.Sealed) == 0:
		return Credential{}, nil, errors.New("it has no value")
	}
	c = Credential{
		Name: on.Name, Hosts: on.Hosts, Methods: on.Methods, Paths: on.Paths, Users: on.Users,
		Place: Place{Header: on.Header, Template: on.Template, Basic: on.Basic, Query: on.Query},
		Env:   on.Env, Placeholder: on.Placeholder,
		CreatedAt: on.CreatedAt, UpdatedAt: on.UpdatedAt,
	}
	if err := c.Validate(); err != nil {
		return Credential{}, nil, err
	}
	return c.canonical(), on.Sealed, nil
}

// canonical returns a credential that is valid in the one form in which it is kept.
func (c Credential) canonical() Credential {
	hosts := make([]string, len(c.Hosts))
	for i, host := range c.Hosts {
		domain, _ := policy.ParseDomain(host) // Validate has parsed it
		hosts[i] = domain.String()
	}
	c.Hosts, c.Methods, c.Paths, c.Users = set(hosts), set(c.Methods), set(c.Paths), set(c.Users)
	c.Place.Header = textproto.CanonicalMIMEHeaderKey(c.Place.Header)
	return c
}

// set returns a sorted copy of a list, without repeats; nil for nil.
func set(list []string) []string {
	list = slices.Clone(list)
	slices.Sort(list)
	return slices.Compact(list)
}
