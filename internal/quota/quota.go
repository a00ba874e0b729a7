// Package quota bounds what one user, one token and all of them together may have at a time, and
// how often they may ask. All such bounds are kept here: whoever is about to make something takes
// it here first.
//
// quota.go has the bounds and what they apply to, ledger.go counts, turn.go lets cold starts begin,
// with users taking turns, and rate.go bounds requests.
package quota

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
)

// Resource is something of which there is a bounded number at a time.
type Resource int

// The resources. Their names are those of the settings.
const (
	Containers    Resource = iota // for execs, and of persistent sandboxes
	ColdStarts                    // containers that are being made, those of processes included
	Commands                      // that run or wait to
	DetachedExecs                 // with detachOnDisconnect, including those that have ended and are kept
	Processes                     // including those that have ended
	ExposedPorts                  // of processes
	Sandboxes                     // that are registered
	Calls                         // that are being answered
	Requests                      // in a second
	resources
)

var names = [resources]string{
	"containers", "coldStarts", "commands", "detachedExecs", "processes", "exposedPorts",
	"sandboxes", "calls", "requestsPerSecond",
}

// String returns the resource's key in the settings.
func (r Resource) String() string { return names[r] }

// Resources returns all of them.
func Resources() []Resource {
	list := make([]Resource, resources)
	for i := range list {
		list[i] = Resource(i)
	}
	return list
}

// Bounds are the most that there may be of each resource; zero means no bound. Hosts of a cluster
// tell each other the bounds of tokens as JSON, so the names of the fields must stay.
type Bounds struct {
	Containers        int
	ColdStarts        int
	Commands          int
	DetachedExecs     int
	Processes         int
	ExposedPorts      int
	Sandboxes         int
	Calls             int
	RequestsPerSecond int
}

func (b *Bounds) at(r Resource) *int {
	return [resources]*int{
		&b.Containers, &b.ColdStarts, &b.Commands, &b.DetachedExecs, &b.Processes, &b.ExposedPorts,
		&b.Sandboxes, &b.Calls, &b.RequestsPerSecond,
	}[r]
}

func (b Bounds) of(r Resource) int { return *b.at(r) }

// Set sets the bound of the resource that has this key in the settings.
func (b *Bounds) Set(key string, bound int) error {
	r := slices.Index(names[:], key)
	switch {
	case r < 0:
		return fmt.Errorf("unknown key: want one of %s", strings.Join(names[:], ", "))
	case bound < 1:
		return fmt.Errorf("%d is less than 1: to take a token's rights away, remove it", bound)
	}
	*b.at(Resource(r)) = bound
	return nil
}

// Limits are the bounds for each user, for each token that acts only for some users, and for all
// together. A request must be within all that apply to it.
type Limits struct {
	PerUser, PerToken, Total Bounds
	// SpareTurns is how many containers that no call waits for may be made at a time; 0 means one.
	SpareTurns int
}

// Token is the token that a call came with. The zero value is none: the caller came by the socket.
type Token struct {
	Name string
	// Some says that it acts only for some users. A token that acts for all is bounded by Own and
	// the totals.
	Some bool
	// Own are bounds of this token, which lower those of all tokens.
	Own Bounds
}

// Account says on whose behalf something is taken.
type Account struct {
	User  string
	Token Token
}

// Scope says what a bound applies to: a user, a token, or all together.
type Scope int

// The scopes, from the narrowest on.
const (
	User Scope = iota
	OfToken
	Total
	scopes
)

// String returns the scope's name in metrics.
func (s Scope) String() string { return [scopes]string{"user", "token", "total"}[s] }

// Scopes returns all of them.
func Scopes() []Scope { return []Scope{User, OfToken, Total} }

// Exceeded is an error of class ResourceExhausted: a bound is reached.
type Exceeded struct {
	Resource Resource
	Scope    Scope
	// Name is the user, or the name of the token, that has reached it.
	Name  string
	Bound int
	// Setting is the setting that the bound comes from.
	Setting string
	// Retry is after how long another try is worthwhile; RetryAfter reports it.
	Retry time.Duration
}

var nouns = [resources]string{
	"%s has %d containers, all in use",
	"%s has %d containers that are being made",
	"%s has %d commands that run or wait to",
	"%s has %d execs with detachOnDisconnect",
	"%s has %d processes",
	"%s has %d exposed ports",
	"%s has %d sandboxes",
	"%s has %d calls that are being answered",
	"%s has made %d requests in a second",
}

var remedies = [resources]string{
	Processes:    "stop one, or try again when one has ended",
	ExposedPorts: "remove a process that has some, or ask for fewer",
	Sandboxes:    "delete some", Requests: "try again a little later",
}

// Error names the bound, its value and the setting.
func (e *Exceeded) Error() string {
	remedy := remedies[e.Resource]
	if remedy == "" {
		remedy = "try again when one has ended"
	}
	return fmt.Sprintf(nouns[e.Resource], e.whose(), e.Bound) + ", which is the most (" +
		e.Setting + "): " + remedy
}

// IsAbout reports whether what an account has counts towards the bound.
func (e *Exceeded) IsAbout(a Account) bool { return a.name(e.Scope) == e.Name }

func (e *Exceeded) whose() string {
	switch e.Scope {
	case User:
		return fmt.Sprintf("user %q", e.Name)
	case OfToken:
		return fmt.Sprintf("token %q", e.Name)
	}
	return "the service"
}

// Unwrap returns the error's class.
func (*Exceeded) Unwrap() error { return errdefs.ErrResourceExhausted }

// retryAfter returns how long a resource at its bound is likely to stay there.
func (r Resource) retryAfter() time.Duration {
	switch r {
	case Processes, ExposedPorts, Sandboxes:
		return time.Minute // somebody has to remove one
	}
	return time.Second // most commands are over then
}

// RetryAfter returns after how many seconds a refused caller may usefully try again; most commands
// are over in one.
func RetryAfter(err error) string {
	full, is := errors.AsType[*Exceeded](err)
	if !is {
		return "1"
	}
	return strconv.Itoa(max(1, int(math.Ceil(full.Retry.Seconds()))))
}
