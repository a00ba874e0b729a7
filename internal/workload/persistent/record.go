package persistent

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/durable"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/quota"
)

// recordVersion is the version of a record's form on disk. That of a registered sandbox has
// registeredVersion, because a service that knows only the first would take it for a client's.
const recordVersion, registeredVersion = 1, 2

// record is a sandbox on disk. It may hold secrets, in Env and Note.
type record struct {
	Version  int               `json:"version"`
	ID       string            `json:"id"`
	Owner    string            `json:"owner"` // a token's name; empty for callers at the socket
	Template string            `json:"template"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Note     json.RawMessage   `json:"note,omitempty"`
	// Env is the whole environment of commands, except for what is their own.
	Env     map[string]string `json:"env"`
	Started time.Time         `json:"started"`
	// Deadline is zero for none, and Length how far ahead it was when it was last set.
	Deadline   time.Time     `json:"deadline,omitzero"`
	Length     time.Duration `json:"lengthNs,omitempty"`
	OnDeadline OnDeadline    `json:"onDeadline"`
	AutoResume bool          `json:"autoResume,omitempty"`
	Root       bool          `json:"root,omitempty"` // commands may run as root
	Paused     bool          `json:"paused,omitempty"`
	Network    Network       `json:"network"`
	// Reach is Network as the container has it; nil means that it reaches nothing.
	Reach  *dockerexec.Egress `json:"reach,omitempty"`
	CPUs   float64            `json:"cpus"`
	Memory int64              `json:"memory"`
	// Made says that the creation was completed, and Removing that the sandbox is to go: what is
	// left is removed.
	Made     bool `json:"made"`
	Removing bool `json:"removing,omitempty"`

	// From is what to create the container from again, and Moved is about the last time that this
	// happened. Lost says that it is to happen, and why, in the words for whoever used the
	// container, which is gone.
	From  *Template `json:"from,omitempty"`
	Moved *Moved    `json:"moved,omitempty"`
	Lost  *string   `json:"outOfMemory,omitempty"`

	// Of is the registered sandbox whose container this is; nil for a sandbox of a client, which has
	// made its user and its registration.
	Of *registered `json:"of,omitempty"`

	// For a cluster: the host that created the container, and the epoch of its seat then.
	Host  string `json:"host,omitempty"`
	Epoch int64  `json:"epoch,omitempty"`
}

// gone reports whether the sandbox is gone for callers: what is left of it is to be removed.
func (r record) gone() bool { return !r.Made || r.Removing }

// account is what the sandbox counts against when its owner's bounds are not asked.
func (r record) account() quota.Account {
	return quota.Account{User: r.user(), Token: quota.Token{Name: r.Owner}}
}

// user returns the user whose home the sandbox has.
func (r record) user() string {
	if r.Of != nil {
		return r.Of.User
	}
	return r.ID
}

// box returns the id of the registered sandbox.
func (r record) box() string {
	if r.Of != nil {
		return r.Of.ID
	}
	return r.ID
}

// idPattern matches what NewID returns.
var idPattern = regexp.MustCompile(`^[a-z][a-z0-9]{19}$`)

func (r record) validate() error {
	switch {
	case r.Version != recordVersion && (r.Version != registeredVersion || r.Of == nil):
		return fmt.Errorf("version %d is not known", r.Version)
	case !idPattern.MatchString(r.ID):
		return fmt.Errorf("%q is not the id of a sandbox", r.ID)
	case r.OnDeadline != Kill && r.OnDeadline != Pause:
		return fmt.Errorf("onDeadline %d is not known", r.OnDeadline)
	}
	return nil
}

// readRecords reads the records on disk. Start removes the container of a damaged one.
func readRecords(from durable.Records, log zerolog.Logger) (records []record, err error) {
	err = from.Load(func(id string, text []byte) error {
		r, err := parse(id, text)
		if err == nil {
			records = append(records, r)
		}
		return err
	}, func(why error, file, aside string) {
		log.Error().Err(why).Str("file", file).Str("setAside", aside).
			Msg("damaged record of a persistent sandbox; its container is removed, and its files stay")
	})
	return records, err
}

// parse reads a record, from disk or from the other hosts.
func parse(id string, text []byte) (r record, err error) {
	if err := json.Unmarshal(text, &r); err != nil {
		return record{}, err
	}
	if r.ID != id {
		return record{}, fmt.Errorf("it is about %q", r.ID)
	}
	return r, r.validate()
}

func (e *entry) write(r record) error {
	text, err := json.Marshal(r)
	if err == nil && e.of.cfg.Shared != nil {
		err = e.share(r.user(), text)
	} else if err == nil {
		err = e.of.records().Write(r.ID, text)
	}
	if err != nil {
		return fmt.Errorf("cannot record the sandbox: %w", errs.WithoutPath(err))
	}
	return nil
}

// change changes a sandbox's record, on disk first. entry.changing is held.
func (e *entry) change(how func(*record)) error {
	r := e.recorded()
	r.Metadata, r.Env = maps.Clone(r.Metadata), maps.Clone(r.Env)
	how(&r)
	if err := e.write(r); err != nil {
		return err
	}
	e.mu.Lock()
	e.record = r
	e.mu.Unlock()
	e.of.rouse()
	return nil
}

// must changes a sandbox's record even if it cannot be written, as on a full disk: what is to end
// ends all the same. It is written with the next change; until then a service that starts reads the
// old record.
func (e *entry) must(how func(*record)) {
	err := e.change(how)
	if err == nil {
		return
	}
	e.of.cfg.Log.Error().Err(err).Str("sandbox", e.id).
		Msg("cannot write the record of a sandbox; going on without")
	e.mu.Lock()
	how(&e.record)
	e.mu.Unlock()
	e.of.rouse()
}

// forget removes a sandbox's record.
func (s *Sandboxes) forget(r record) error {
	if err := s.removeRecord(r); err != nil {
		return fmt.Errorf("cannot remove the record of a sandbox: %w", errs.WithoutPath(err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, r.ID)
	if s.cfg.Shared != nil && r.Of == nil {
		s.leaving[r.ID] = true
	}
	return nil
}

func (s *Sandboxes) removeRecord(r record) error {
	if s.cfg.Shared != nil {
		_, err := s.cfg.Shared.Write(r.user(), r.ID, nil)
		return err
	}
	return s.records().Remove(r.ID)
}

func (s *Sandboxes) records() durable.Records { return durable.Records{Dir: s.cfg.Dir} }
