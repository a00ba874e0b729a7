package process

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/quota"
)

// Shared keeps the records of a cluster's processes, by name. Writing for a user fails unless this
// host holds the user.
type Shared interface {
	// Write replaces values, all or none; a nil value is removed.
	Write(user string, values map[string][]byte) error
	// Read returns a value, nil if there is none; List returns all of a user's.
	Read(user, name string) ([]byte, error)
	List(user string) (map[string][]byte, error)
	// Holds reports whether this host holds a user, or may hold it. It is false if another host
	// does, or none.
	Holds(user string) bool
}

// keeper stores records: on disk, or shared with the other hosts of a cluster.
type keeper interface {
	load() (records []Record, problems []string, _ error)
	// fits returns an error if a new process is too large to be kept.
	fits(r Record, sealed []byte) error
	create(r Record, sealed []byte) error
	write(r Record) error
	writeApplied(id string, applied []byte) error
	sealed(r Record) ([]byte, error)
	dropSecrets(r Record) error
	remove(r Record) error
}

// shared is the keeper of a cluster.
type shared struct{ Shared }

// secretsOf returns the name of a process's secrets; the name of its record is its id.
func secretsOf(r Record) string { return r.ID + "." + secretsFile }

// load returns nothing: Adopt reads the records of a user.
func (s shared) load() ([]Record, []string, error) { return nil, nil, nil }

// maxShared bounds what a cluster keeps of a process, in bytes: its record as it is written, and
// its secrets. Each change writes the record anew, and etcd keeps the earlier ones for a while.
// What a process becomes adds little, and etcd takes 1.5 MiB at once.
const maxShared = 64 << 10

func (s shared) fits(r Record, sealed []byte) error {
	text, err := r.encode()
	if n := len(text) + len(sealed); err == nil && n > maxShared {
		err = errs.Invalid(
			"its command, environment and secrets, with what is recorded beside them, have %d bytes, more than the %d that a cluster keeps of a process; pass what is large in a file",
			n, maxShared)
	}
	return err
}

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

// writeApplied does nothing: the container's labels have it.
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

// Adopt takes over the processes of a user that this host holds from now on: what ran elsewhere is
// recorded as ended, and what is to be kept alive is started again. It needs Config.Shared.
func (m *Manager) Adopt(user string) error {
	m.mu.Lock()
	again := m.adopted[user]
	m.mu.Unlock()
	if !again { // or it might be of a start on this host
		if err := m.cfg.Runner.DropUnread(user); err != nil {
			return err
		}
	}
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
			m.log.Error().Err(err).Str("process", id).Str("user", user).
				Msg("damaged process record")
			continue
		}
		r.NextRestartAt = time.Time{} // by another host's clock
		p := m.restored(r)
		p.moved = true
		m.put(p)
		taken.ids[id] = true
	}
	m.adopted[user] = true
	m.mu.Unlock()
	if len(taken.ids) > 0 {
		m.enqueue(taken)
	}
	return nil
}

// releasedAtOnce is how many processes of a user are released at a time. Each may take its whole
// grace to end, and a host that gives the user up waits for all of them.
const releasedAtOnce = 32

// killRoom is how long before a release has to be done SIGKILL is sent to what has not ended.
const killRoom = 5 * time.Second

// Release ends the processes of a user that this host will no longer hold, and forgets them. They
// have their grace, or less if ctx ends before. Their records stay as they are: another host finds
// that they do not run. After an error some may still run.
func (m *Manager) Release(ctx context.Context, user string) error {
	var releasing errgroup.Group
	releasing.SetLimit(releasedAtOnce)
	for _, p := range m.all() {
		if p.shown().UserID != user {
			continue
		}
		releasing.Go(func() error { return p.release(ctx) })
	}
	if err := releasing.Wait(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.adopted, user)
	return nil
}

// release is Release for one process.
func (p *process) release(ctx context.Context) error {
	end := func(i Instance) error {
		grace := p.of.grace()
		if last, has := ctx.Deadline(); has {
			grace = max(0, min(grace, time.Until(last)-killRoom))
		}
		return p.of.signal(ctx, i, unix.SIGTERM, grace)
	}
	p.of.mu.Lock()
	i, signalled := p.instance(), p.signalled
	p.of.mu.Unlock()
	if signalled { // by the turn's holder, who waits for its end, maybe for longer
		if err := end(i); err != nil {
			return err
		}
	}
	if err := p.take(ctx); err != nil {
		return err
	}
	defer p.give()
	if p.gone {
		return nil
	}
	if i := p.instance(); i.Running {
		if err := end(i); err != nil {
			return err
		}
		p.discard(ctx, i)
	}
	if err := p.clearLeftovers(ctx); err != nil {
		return err
	}
	p.forget("")
	return nil
}

// Busy reports whether a user has a process that runs and would not be started again elsewhere.
func (m *Manager) Busy(user string) bool {
	return slices.ContainsFunc(m.all(), func(p *process) bool {
		r := p.shown()
		return r.UserID == user && !r.Finished() && !r.KeepAlive
	})
}

// Apply tells of a record in Config.Shared, on whichever host its process is: name is the user's
// and the record's, and text is nil where it was removed.
func (m *Manager) Apply(name string, text []byte, _ int64) {
	user, id, _ := strings.Cut(name, "/")
	r, err := decode(id, text)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil && r.wanted() {
		if m.wanted[user] == nil {
			m.wanted[user] = map[string]bool{}
		}
		m.wanted[user][id] = true
	} else if delete(m.wanted[user], id); len(m.wanted[user]) == 0 {
		delete(m.wanted, user)
	}
}

// Due returns the users of whom some host has to run a process, this one or another.
func (m *Manager) Due() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.wanted))
}

// restored returns the process of a record that this service has just read.
func (m *Manager) restored(r Record) *process {
	p := m.newProcess(m.refresh(r))
	account := quota.Account{User: r.UserID, Token: quota.Token{Name: r.Token}}
	p.givePlace = m.cfg.Quotas.Hold(account, quota.Processes, 1)
	p.givePorts = m.cfg.Quotas.Hold(account, quota.ExposedPorts, len(r.Expose))
	if p.record.Finished() {
		p.finish()
	} else {
		m.cfg.Ports.Reopen(p.record.UserID, p.id, p.record.Expose, p.dialer())
	}
	return p
}
