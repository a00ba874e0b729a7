package process

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/quota"
)

// maxName is the maximum length of a process's name, in characters.
const maxName = 80

// Start creates a process and starts it. It blocks until the command runs. token is the one by
// which it is asked for. The secrets are passed to the Runner at each start; the manager keeps them
// sealed, and only if there may be another start. planned is what the process runs in at its first
// start; later ones are planned anew, and so is the first if it is nil. The notices say what was
// changed in the request. After an error there is no such process; errdefs.ErrResourceExhausted
// says that there are too many.
func (m *Manager) Start(ctx context.Context, n Intent, token quota.Token, secrets map[string]string,
	planned *plan.Plan) (_ Record, notices []string, _ error) {
	n, notices, err := n.checked()
	if err != nil {
		return Record{}, nil, err
	}
	if err := m.cfg.Ports.Check(n.Expose); err != nil {
		return Record{}, nil, fmt.Errorf("cannot start the process: %w", err)
	}
	ctx, leave, err := m.enter(ctx)
	if err != nil {
		return Record{}, nil, err
	}
	defer leave()
	now := m.now()
	r := Record{
		ID: "p-" + strings.ToLower(rand.Text()[:12]), Intent: n, Token: token.Name,
		HasSecrets: len(secrets) > 0, DesiredState: Running, Status: Stopped, CreatedAt: now,
		UpdatedAt: now,
	}
	p, err := m.admit(ctx, r, quota.Account{User: n.UserID, Token: token})
	if err != nil {
		return Record{}, nil, err
	}
	defer p.give()
	err = p.expose()
	if err == nil {
		err = p.begin(ctx, secrets, planned)
	}
	if err != nil {
		p.forget("")
		return Record{}, nil, fmt.Errorf("cannot start the process: %w", err)
	}
	return p.observed(), notices, nil
}

// checked returns the intent as it is kept, or what is wrong with it.
func (n Intent) checked() (_ Intent, notices []string, _ error) {
	switch {
	case n.UserID == "":
		return n, nil, errs.Invalid("userId is empty")
	case n.Command != "" && len(n.Argv) > 0:
		return n, nil, errs.Invalid("command and argv exclude each other")
	case len(n.Argv) > 0 && n.Argv[0] == "":
		return n, nil, errs.Invalid("argv[0] is empty: it must be a program")
	case len(n.Argv) == 0 && strings.TrimSpace(n.Command) == "":
		return n, nil, errs.Invalid("command is empty")
	}
	if n.Ready != nil {
		ready, err := checkReady(*n.Ready)
		if err != nil {
			return n, nil, err
		}
		n.Ready = &ready
	}
	if letters := []rune(n.Name); len(letters) > maxName {
		n.Name = string(letters[:maxName])
		notices = append(notices,
			fmt.Sprintf("name has %d characters and was cut to the first %d: %s", len(letters),
				maxName, n.Name))
	}
	n.Grants = append([]string{}, n.Grants...)
	return n, notices, nil
}

// admit takes a new process's quotas and registers it. The caller gets its turn.
func (m *Manager) admit(ctx context.Context, r Record, account quota.Account) (*process, error) {
	r.LogPath = m.logPath(r)
	m.mu.Lock()
	err := m.isFree(r)
	m.mu.Unlock()
	if err != nil {
		return nil, err // before another process makes room for nothing
	}
	givePlace, err := m.makeRoom(ctx, account)
	if err != nil {
		return nil, fmt.Errorf("cannot start the process: %w", err)
	}
	givePorts, err := m.cfg.Quotas.Take(account, quota.ExposedPorts, len(r.Expose))
	if err != nil {
		givePlace()
		return nil, fmt.Errorf("cannot start the process: %w", err)
	}
	p := m.newProcess(r)
	p.givePlace, p.givePorts = givePlace, givePorts
	p.turn <- struct{}{}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.isFree(r); err != nil {
		givePlace()
		givePorts()
		return nil, err
	}
	m.put(p)
	return p, nil
}

// isFree returns an error if a process of the user's that has not ended has the name of a new one;
// m.mu is held.
func (m *Manager) isFree(r Record) error {
	for _, p := range m.ofUsers[r.UserID] {
		if r.Name != "" && p.record.Name == r.Name && !p.record.Finished() {
			return errs.Conflict(
				"cannot start the process: process %s has the name %q and has not ended; stop it, or give another name",
				p.id, r.Name)
		}
	}
	return nil
}

// makeRoom takes a place for a new process. If there is none, the user's oldest process that has
// ended is removed with its log. Other users' are left alone.
func (m *Manager) makeRoom(ctx context.Context, account quota.Account) (give func(), err error) {
	for {
		give, err := m.cfg.Quotas.Take(account, quota.Processes, 1)
		full, is := errors.AsType[*quota.Exceeded](err)
		if !is {
			return give, err
		}
		oldest, there := m.oldestEnded(account.User, full)
		if !there {
			return nil, err
		}
		if removed := m.Remove(ctx, account.User, oldest.ID); removed != nil &&
			!errdefs.IsNotFound(removed) {
			return nil, fmt.Errorf("%w; process %s, which has ended, cannot make room: %v", err,
				oldest.ID, removed)
		}
	}
}

// oldestEnded returns the user's process that ended first of those that count towards a bound.
func (m *Manager) oldestEnded(user string, full *quota.Exceeded) (oldest Record, there bool) {
	for _, r := range m.List(user) {
		counts := r.Finished() &&
			full.IsAbout(quota.Account{User: r.UserID, Token: quota.Token{Name: r.Token}})
		if counts && (!there || r.LastExitedAt.Before(oldest.LastExitedAt)) {
			oldest, there = r, true
		}
	}
	return oldest, there
}

// begin records a new process and starts it; the turn is held. After an error nothing is left of
// it.
func (p *process) begin(ctx context.Context, secrets map[string]string,
	planned *plan.Plan) error {
	var sealed []byte
	if p.record.KeepAlive && len(secrets) > 0 { // others are not started again
		var err error
		if sealed, err = sealSecrets(p.of.vault, p.id, secrets); err != nil {
			return err
		}
	}
	if err := p.of.store.fits(p.record, sealed); err != nil {
		return err
	}
	err := p.of.store.create(p.record, sealed)
	if err == nil {
		err = p.launch(ctx, secrets, planned)
	} else {
		err = fmt.Errorf("cannot record it: %w", err) // it may be recorded all the same
	}
	if err != nil {
		// Without its record in any case, which a later service would find.
		if failed := errors.Join(pathless(p.of.cfg.Runner.Discard(p.record)),
			p.of.store.remove(p.record)); failed != nil {
			p.of.log.Error().Err(failed).Str("process", p.id).
				Msg("cannot remove what is left of a process that did not start")
		}
	}
	return err
}

// launch starts a process and records that it runs; the turn is held. After an error nothing runs.
func (p *process) launch(ctx context.Context, secrets map[string]string,
	planned *plan.Plan) error {
	i, err := p.of.cfg.Runner.Start(ctx, p.record, secrets, planned)
	if err != nil {
		return err
	}
	r := p.record
	r.Status, r.Paused, r.Reason, r.Notice, r.Held = Running, false, "", i.Notice, i.Held
	r.Instance, r.BootID, r.PID = i.identity(), p.of.cfg.BootID, i.PID
	r.LastStartedAt = i.Started
	if i.Started.IsZero() {
		r.LastStartedAt = p.of.now()
	}
	if err = p.of.store.writeApplied(p.id, i.Applied); err == nil {
		what := started
		if r.RestartCount > 0 {
			what = startedAgain
		}
		err = p.keep(r, what)
	}
	if err != nil {
		p.discard(ctx, i)
	}
	return err
}

// discard removes an instance of a process; the turn is held. What cannot be removed now is removed
// before the next start.
func (p *process) discard(ctx context.Context, i Instance) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
	defer cancel()
	if err := p.of.cfg.Runner.Remove(ctx, i); err != nil {
		p.of.log.Warn().Err(err).Str("process", p.id).Str("container", i.Container).
			Msg("cannot remove the container of a process")
		p.leftovers = append(p.leftovers, i)
	}
}

// clearLeftovers tries again to remove what discard could not; the turn is held.
func (p *process) clearLeftovers(ctx context.Context) error {
	left := p.leftovers
	p.leftovers = nil
	for _, i := range left {
		p.discard(ctx, i)
	}
	if len(p.leftovers) > 0 {
		return errors.New("an earlier container of the process cannot be removed")
	}
	return nil
}
