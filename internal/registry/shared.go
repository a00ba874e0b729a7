package registry

import (
	"fmt"

	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/quota"
)

// Records keep the records of a cluster's sandboxes, which each host gets through Registry.Apply.
type Records interface {
	// Write replaces the record of a user's sandbox, or removes it if text is nil, and returns its
	// new revision. It fails unless the record has the given revision, 0 for none, and this host
	// holds the user.
	Write(user, id string, text []byte, revision int64) (int64, error)
}

// OpenShared returns a registry of records that are kept elsewhere.
func OpenShared(shared Records, quotas *quota.Ledger) *Registry {
	return &Registry{
		records: &records{
			shared: shared, quotas: quotas, sandboxes: map[ids.Sandbox]Sandbox{},
			apps: appDirs{}, give: map[ids.Sandbox]func(){},
			active: map[ids.Sandbox]*activity{}, commands: map[ids.User]int{},
			closed: map[ids.User]bool{}, revisions: map[ids.Sandbox]int64{},
		},
		scope: ids.Everyone(),
	}
}

// Apply updates a sandbox from its shared record; a nil text means that it was removed. What this
// host has written since wins.
func (r *records) Apply(id string, text []byte, revision int64) error {
	s, err := parseRecord(id, text)
	if parsed, bad := ids.ParseSandbox(id); text == nil {
		s.ID, err = parsed, bad
	}
	if err != nil {
		return fmt.Errorf("the record of sandbox %q is damaged: %w", id, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	last, has := r.revisions[s.ID]
	if revision < last || text != nil && has && revision == last {
		return nil // or a change that is being written would be undone
	}
	old, known := r.sandboxes[s.ID]
	if known && (text == nil || old.User != s.User) {
		r.forget(s.ID)
	}
	if text == nil {
		delete(r.revisions, s.ID)
		return nil
	}
	r.keep(s)
	if r.revisions[s.ID] = revision; r.give[s.ID] == nil {
		r.give[s.ID] = r.quotas.Hold(
			quota.Account{User: s.User.String(), Token: quota.Token{Name: s.Token}},
			quota.Sandboxes, 1)
	}
	return nil
}

// share writes a shared record, or removes it if text is nil.
func (r *records) share(s Sandbox, text []byte) error {
	var before, revision int64
	if _, known := r.sandboxes[s.ID]; known {
		before = r.revisions[s.ID]
	}
	err := r.unlocked(func() (err error) {
		revision, err = r.shared.Write(s.User.String(), s.ID.String(), text, before)
		return err
	})
	if _, pending := r.revisions[s.ID]; err == nil && (text != nil || pending) { // a removal may have been applied already
		r.revisions[s.ID] = max(r.revisions[s.ID], revision)
	}
	return err
}
