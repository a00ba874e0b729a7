package process

import (
	"context"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/daycare-run/sandbox/dockerexec"
)

// Under gVisor the locks of a process and those of a call do not know each other. So calls ask which
// databases and locks the user's processes have open. They do not wait for an answer: each process is
// looked at in the background while calls ask, and what is known is told.

const (
	// lookInterval is how old may be what is known before a process is looked at again, and
	// lookAgain the same after a look that has failed.
	lookInterval = 5 * time.Second
	lookAgain    = time.Minute
	// maxLooks is how many of a user's processes one question has looked at, so that those of many
	// are looked at in turn.
	maxLooks = 2
	// maxOpenFiles is how many files are known of a process, and maxSaid of how many is said that
	// one run of it has them open.
	maxOpenFiles = 16
	maxSaid      = 64
)

// OpenFile is a database or a lock in the user's home that a process has open for writing.
type OpenFile struct {
	Name    string // below the home
	Process string // the id or, if that is a plain word, the name
	Sandbox string // that has started it
	of      *openFiles
}

// Say reports whether a sandbox is to be told that the process has the file open: once for each of
// its runs.
func (f OpenFile) Say(sandbox string) bool {
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	if f.of.isSaid(f.Name, sandbox) {
		return false
	}
	f.of.said[saying{f.Name, sandbox}] = true
	return true
}

// isSaid reports whether a sandbox has been told of a file, or is not to be; f.mu is held.
func (f *openFiles) isSaid(name, sandbox string) bool {
	return f.said[saying{name, sandbox}] || len(f.said) >= maxSaid
}

type saying struct{ name, sandbox string }

// openFiles is what is known of one process.
type openFiles struct {
	mu       sync.Mutex
	run      Identity
	at, next time.Time // of the last look, and before the next one
	looking  bool
	names    []string
	said     map[saying]bool
}

// plainName is a name that is the same in all notations.
var plainName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*$`)

// OpenFiles returns the databases and locks that a user's processes have open in containers of their
// own, as far as that was looked up since a time and a sandbox was not told, and has others looked
// up. It does not block.
func (m *Manager) OpenFiles(user, sandbox string, since time.Time) (list []OpenFile) {
	type due struct {
		runningProcess
		since time.Time
	}
	var waiting []due
	for _, p := range m.reached(user, []dockerexec.Reach{{}}) {
		if p.tellsNot {
			continue
		}
		f, now := &p.files, m.now()
		f.mu.Lock()
		if id := p.instance.identity(); !f.run.same(id) {
			f.run, f.said = id, map[saying]bool{}
			f.names, f.at, f.next = nil, time.Time{}, time.Time{}
		}
		if !f.looking && !now.Before(f.next) {
			waiting = append(waiting, due{p, f.next})
		}
		if !f.at.Before(since) {
			file := OpenFile{Process: p.id, Sandbox: p.sandbox, of: f}
			if plainName.MatchString(p.name) {
				file.Process = p.name
			}
			for _, file.Name = range f.names {
				if !f.isSaid(file.Name, sandbox) {
					list = append(list, file)
				}
			}
		}
		f.mu.Unlock()
	}
	slices.SortStableFunc(waiting, func(a, b due) int { return a.since.Compare(b.since) })
	for _, p := range waiting[:min(len(waiting), maxLooks)] {
		m.beginLook(p.runningProcess)
	}
	return list
}

// beginLook has a process looked at in the background.
func (m *Manager) beginLook(p runningProcess) {
	f := &p.files
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looking = f.looking || m.background(func(ctx context.Context) { m.look(ctx, p) })
}

// look looks up what a process has open.
func (m *Manager) look(ctx context.Context, p runningProcess) {
	names, err := m.cfg.Runner.OpenFiles(ctx, p.instance, p.sandbox)
	f, now := &p.files, m.now()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looking = false
	if !f.run.same(p.instance.identity()) {
		return
	}
	f.names, f.at, f.next = slices.Clone(names[:min(len(names), maxOpenFiles)]), now, now.Add(lookInterval)
	if err != nil {
		f.next = now.Add(lookAgain)
		m.log.Debug().Err(err).Str("process", p.id).
			Msg("a process does not tell which databases it has open")
	}
}
