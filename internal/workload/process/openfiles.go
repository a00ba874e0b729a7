package process

import (
	"context"
	"regexp"
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

// Say reports whether it is to be said that the process has the file open: once for each of its runs.
func (f OpenFile) Say() bool {
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	if f.of.said[f.Name] || len(f.of.said) >= maxSaid {
		return false
	}
	f.of.said[f.Name] = true
	return true
}

// openFiles is what is known of one process.
type openFiles struct {
	mu       sync.Mutex
	run      Identity
	at, next time.Time // of the last look, and before the next one
	looking  bool
	names    []string
	said     map[string]bool
}

// plainName is a name that is the same in all notations.
var plainName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*$`)

// OpenFiles returns the databases and locks that a user's processes have open in containers of their
// own, as far as that was looked up since a time, and has others looked up. It does not block.
func (m *Manager) OpenFiles(user string, since time.Time) (list []OpenFile) {
	looks := 0
	for _, p := range m.reached(user, []dockerexec.Reach{{}}) {
		if p.tellsNot {
			continue
		}
		f, now := &p.files, m.now()
		f.mu.Lock()
		if id := p.instance.identity(); !f.run.same(id) {
			f.run, f.said = id, map[string]bool{}
			f.names, f.at, f.next = nil, time.Time{}, time.Time{}
		}
		if !f.looking && looks < maxLooks && !now.Before(f.next) {
			looks++
			f.looking = m.background(func(ctx context.Context) { m.look(ctx, p) })
		}
		if !f.at.Before(since) {
			file := OpenFile{Process: p.id, Sandbox: p.sandbox, of: f}
			if plainName.MatchString(p.name) {
				file.Process = p.name
			}
			for _, file.Name = range f.names {
				list = append(list, file)
			}
		}
		f.mu.Unlock()
	}
	return list
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
	f.names, f.at, f.next = names[:min(len(names), maxOpenFiles)], now, now.Add(lookInterval)
	if err != nil {
		f.next = now.Add(lookAgain)
		m.log.Debug().Err(err).Str("process", p.id).
			Msg("a process does not tell which databases it has open")
	}
}
