package sandbox

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/durable"
)

// First calls vote for the classes that are kept: each user has one vote, that of the latest call,
// and the classes with the most votes are kept. When there are too many votes, the token that has
// the most loses its oldest one. So no user chooses for others, and neither do the users of one
// token. Settings could not say what the classes are: a class has the working directory, the
// directories and the tags that a caller registers and asks for.

const (
	// maxClasses is how many classes are kept.
	maxClasses = 8
	// maxVotes is how many votes count.
	maxVotes = 64
)

// vote is a user's first call. caller is the name of the token that was used for it.
type vote struct {
	class        keyedClass
	user, caller string
}

// poolClasses are the classes of the latest first calls. They are also kept in a file.
type poolClasses struct {
	file string

	mu      sync.Mutex
	votes   []vote // the oldest first
	isNew   bool   // what is kept has changed since it was saved
	unsaved bool   // it could not be saved
}

// note counts a vote.
func (p *poolClasses) note(v vote) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := keys(p.kept())
	p.votes = append(slices.DeleteFunc(p.votes, func(other vote) bool {
		return other.user == v.user
	}), v)
	if len(p.votes) > maxVotes {
		has := map[string]int{}
		for _, v := range p.votes {
			has[v.caller]++
		}
		most := slices.MaxFunc(p.votes, func(a, b vote) int {
			return cmp.Compare(has[a.caller], has[b.caller])
		}).caller
		oldest := slices.IndexFunc(p.votes, func(v vote) bool { return v.caller == most })
		p.votes = slices.Delete(p.votes, oldest, oldest+1)
	}
	p.isNew = p.isNew || !slices.Equal(before, keys(p.kept()))
}

// ranked returns all classes, those with most votes first, and among equals the latest; p.mu is
// held.
func (p *poolClasses) ranked() (list []keyedClass) {
	votes, latest := map[string]int{}, map[string]int{}
	for i, v := range p.votes {
		if votes[v.class.key]++; votes[v.class.key] == 1 {
			list = append(list, v.class)
		}
		latest[v.class.key] = i
	}
	slices.SortFunc(list, func(a, b keyedClass) int {
		return cmp.Or(cmp.Compare(votes[b.key], votes[a.key]),
			cmp.Compare(latest[b.key], latest[a.key]))
	})
	return list
}

// kept returns the classes that are kept; p.mu is held.
func (p *poolClasses) kept() []keyedClass {
	list := p.ranked()
	return list[:min(len(list), maxClasses)]
}

func keys(list []keyedClass) (all []string) {
	for _, class := range list {
		all = append(all, class.key)
	}
	return all
}

// list returns the classes that are kept.
func (p *poolClasses) list() []keyedClass {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.kept()
}

// all returns the classes that have votes.
func (p *poolClasses) all() []keyedClass {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ranked()
}

// drop forgets a class.
func (p *poolClasses) drop(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.votes = slices.DeleteFunc(p.votes, func(v vote) bool { return v.class.key == key })
	p.isNew = true
}

// rekey gives a class another key.
func (p *poolClasses) rekey(old, key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.votes {
		if v := &p.votes[i].class; v.key == old {
			v.key = key
		}
	}
	p.isNew = true
}

// hasOther reports whether users of other tokens have come for a class lately.
func (p *poolClasses) hasOther(h share) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.votes, func(v vote) bool {
		return v.class.key == h.class && v.caller != h.caller
	})
}

// classesVersion is the version of the file's format.
const classesVersion = 2

type classesRecord struct {
	Version int                  `json:"version"`
	Votes   []voteRecord         `json:"votes"`
	Classes map[string]poolClass `json:"classes"` // of the votes, by key
}

type voteRecord struct {
	Key    string `json:"key"`
	User   string `json:"user"`
	Caller string `json:"caller,omitempty"`
}

// readClasses reads the classes from a file. If that fails, it starts without any, and first calls
// bring them back.
func readClasses(file string, log zerolog.Logger) *poolClasses {
	p := &poolClasses{file: file}
	text, err := os.ReadFile(file)
	var on classesRecord
	if err == nil {
		err = json.Unmarshal(text, &on)
	}
	if err == nil && on.Version != classesVersion {
		err = fmt.Errorf("version %d is not known", on.Version)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn().Err(err).Str("file", file).
			Msg("cannot read which kinds of containers the pool had; new users' first calls decide again")
		return p
	}
	for _, v := range on.Votes {
		if class, known := on.Classes[v.Key]; known {
			p.note(vote{keyedClass{class, v.Key}, v.User, v.Caller})
		}
	}
	p.isNew = false
	return p
}

// save writes the classes to the file if what is kept has changed.
func (p *poolClasses) save(log zerolog.Logger) {
	p.mu.Lock()
	if !p.isNew {
		p.mu.Unlock()
		return
	}
	p.isNew = false
	on := classesRecord{Version: classesVersion, Votes: []voteRecord{},
		Classes: map[string]poolClass{}}
	for _, v := range p.votes {
		on.Votes = append(on.Votes, voteRecord{v.class.key, v.user, v.caller})
		on.Classes[v.class.key] = v.class.poolClass
	}
	p.mu.Unlock()
	text, err := json.Marshal(on)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(p.file), 0o700)
	}
	if err == nil {
		err = durable.WriteFile(p.file, text, 0o600)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil && !p.unsaved {
		log.Warn().Err(err).Msg("cannot save which kinds of containers the pool has; trying again")
	}
	p.unsaved = err != nil
	p.isNew = p.isNew || p.unsaved
}
