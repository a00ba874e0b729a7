package process

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/quota"
)

// Shared keeps the records of a cluster's processes, by names. What is written about a user fails unless this host holds it.
type Shared interface {
	// Write replaces values, all or none; those that are nil go.
	Write(user string, values map[string][]byte) error
	// Read returns a value, nil for none, and List all of a user's.
	Read(user, name string) ([]byte, error)
	List(user string) (map[string][]byte, error)
	// Holds reports whether this host holds a user, or may: it is false of whom another host holds, or none.
	Holds(user string) bool
}

// keeper is where records are: a store on disk, or with the other hosts of a cluster.
type keeper interface {
	load() (records []Record, problems []string, _ error)
	create(r Record, sealed []byte) error
	write(r Record) error
	writeApplied(id string, applied []byte) error
	sealed(r Record) ([]byte, error)
	dropSecrets(r Record) error
	remove(r Record) error
}

// shared is the keeper of a cluster.
type shared struct{ Shared }

// secretsOf is the name of a process's secrets; that of its record is its id.
func secretsOf(r Record) string { return r.ID + "." + secretsFile }

// load finds none: Adopt reads those of a user.
func (s shared) load() ([]Record, []string, error) { return nil, nil, nil }

func (s shared) create(r Record, sealed []byte) error {
	text, err := r.encode()
	if err != nil {
		return err
	}
	values := map[string][]byte{r.ID: text}
	if sealed != nil {
		values[secretsOf(r)] = sealed
	}
	return s.Write(r.UserID, values)
}

func (s shared) write(r Record) error { return s.create(r, nil) }

// writeApplied keeps nothing: the container has it on its labels.
func (s shared) writeApplied(string, []byte) error { return nil }

func (s shared) sealed(r Record) ([]byte, error) {
	sealed, err := s.Read(r.UserID, secretsOf(r))
	if err == nil && sealed == nil {
		err = errNoSecrets
	}
	return sealed, err
}

func (s shared) dropSecrets(r Record) error {
	if !r.HasSecrets {
		return nil
	}
	return s.Write(r.UserID, map[string][]byte{secretsOf(r): nil})
}

func (s shared) remove(r Record) error {
	return s.Write(r.UserID, map[string][]byte{r.ID: nil, secretsOf(r): nil})
}

// Adopt takes over the processes of a user whom this host holds from now on: what ran elsewhere is recorded as ended, and
// what is to be kept alive is started again. It needs Config.Shared.
func (m *Manager) Adopt(user string) error {
	values, err := m.cfg.Shared.List(user)
	if err != nil {
		return fmt.Errorf("cannot read the processes of user %q: %w", user, err)
	}
	taken := selection{ids: map[string]bool{}}
	m.mu.Lock()
	for _, id := range slices.Sorted(maps.Keys(values)) {
		if strings.Contains(id, ".") || m.processes[id] != nil {
			continue
		}
		r, err := decode(id, values[id])
		if err == nil && r.UserID != user {
			err = fmt.Errorf("it is of user %q", r.UserID)
		}
		if err != nil {
			m.log.Error().Err(err).Str("process", id).Str("user", user).Msg("damaged process record")
			continue
		}
		r.NextRestartAt = time.Time{} // by another host's clock
		m.processes[id] = m.restored(r)
		m.processes[id].moved = true
		taken.ids[id] = true
	}
	m.adopted[user] = true
	m.mu.Unlock()
	if len(taken.ids) > 0 {
		m.enqueue(taken)
	}
	return nil
}

// Release ends the processes of a user whom this host is to hold no more, and forgets them. Their records stay as they
// are: another host finds that they do not run. After an error some may run.
func (m *Manager) Release(ctx context.Context, user string) error {
	m.mu.Lock()
	delete(m.adopted, user)
	m.mu.Unlock()
	for _, p := range m.all() {
		if m.shown(p).UserID != user {
			continue
		}
		if err := p.take(ctx); err != nil {
			return err
		}
		err := m.release(ctx, p)
		p.give()
		if err != nil {
			return err
		}
	}
	return nil
}

// release is Release for one process, whose turn is held.
func (m *Manager) release(ctx context.Context, p *process) error {
	if p.gone {
		return nil
	}
	if i := p.instance(); i.Running {
		if err := m.signal(ctx, i, unix.SIGTERM); err != nil {
			return err
		}
		m.discard(ctx, p, i)
	}
	if err := m.clearLeftovers(ctx, p); err != nil {
		return err
	}
	m.forget(p, "")
	return nil
}

// Busy reports whether a user has a process that runs and would not be started again elsewhere.
func (m *Manager) Busy(user string) bool {
	return slices.ContainsFunc(m.all(), func(p *process) bool {
		r := m.shown(p)
		return r.UserID == user && !r.Finished() && !r.KeepAlive
	})
}

// Wanted reports whether a record, as it is kept, is of a process that some host has to run.
func Wanted(name string, text []byte) bool {
	r, err := decode(name, text)
	return err == nil && r.wanted()
}

// restored is a process as it is when this service first knows it.
func (m *Manager) restored(r Record) *process {
	p := newProcess(m.refresh(r))
	account := quota.Account{User: r.UserID, Token: quota.Token{Name: r.Token}}
	p.givePlace = m.cfg.Quotas.Hold(account, quota.Processes, 1)
	p.givePorts = m.cfg.Quotas.Hold(account, quota.ExposedPorts, len(r.Expose))
	if p.record.Finished() {
		p.finish()
	} else {
		m.cfg.Ports.Reopen(p.record.UserID, p.id, p.record.Expose, m.dialer(p))
	}
	return p
}
