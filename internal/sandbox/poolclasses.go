package sandbox

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/durable"
)

// First calls vote for the classes that are kept: each user has one vote, that of the latest call, and the
// classes with the most votes are kept. When there are too many votes, the token that has the most loses its
// oldest one. So no user chooses for others, and neither do the users of one token.

const (
	// maxClasses is how many classes are kept.
	maxClasses = 8
	// maxVotes is how many votes count.
	maxVotes = 64
)

// vote is a user's first call. Caller is the name of the token that was used for it.
type vote struct {
	Key    string `json:"key"`
	User   string `json:"user"`
	Caller string `json:"caller,omitempty"`
}

// keyedClass is a class with its key.
type keyedClass struct {
	poolClass
	key string
}

// poolClasses are the classes of the latest first calls. They are also kept in a file.
type poolClasses struct {
	file string

	mu      sync.Mutex
	votes   []vote               // the oldest first
	classes map[string]poolClass // of the votes, by key
	isNew   bool                 // what is kept has changed since it was saved
}

// classesVersion is the version of the file's format.
const classesVersion = 2

type classesRecord struct {
	Version int                  `json:"version"`
	Votes   []vote               `json:"votes"`
	Classes map[string]poolClass `json:"classes"`
}

// readClasses reads the classes from a file. If that fails, it starts without any, and first calls bring them back.
func readClasses(file string, log zerolog.Logger) *poolClasses {
	p := &poolClasses{file: file, classes: map[string]poolClass{}}
	text, err := os.ReadFile(file)
	var on classesRecord
	if err == nil {
		err = json.Unmarshal(text, &on)
	}
	if err == nil && on.Version != classesVersion {
		err = fmt.Errorf("version %d is not known", on.Version)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn().Err(err).Str("file", file).Msg("cannot read which kinds of containers the pool had; new users' first calls decide again")
		return p
	}
	for _, v := range on.Votes {
		if class, known := on.Classes[v.Key]; known {
			p.note(v, class)
		}
	}
	p.isNew = false
	return p
}

// note counts a vote.
func (p *poolClasses) note(v vote, class poolClass) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.kept()
	p.votes = append(slices.DeleteFunc(p.votes, func(other vote) bool { return other.User == v.User }), v)
	p.classes[v.Key] = class
	if len(p.votes) > maxVotes {
		has := map[string]int{}
		for _, v := range p.votes {
			has[v.Caller]++
		}
		most := slices.MaxFunc(p.votes, func(a, b vote) int { return cmp.Compare(has[a.Caller], has[b.Caller]) }).Caller
		oldest := slices.IndexFunc(p.votes, func(v vote) bool { return v.Caller == most })
		p.votes = slices.Delete(p.votes, oldest, oldest+1)
	}
	p.forget()
	p.isNew = p.isNew || !slices.Equal(before, p.kept())
}

// forget forgets the classes without a vote; p.mu is held.
func (p *poolClasses) forget() {
	maps.DeleteFunc(p.classes, func(key string, _ poolClass) bool {
		return !slices.ContainsFunc(p.votes, func(v vote) bool { return v.Key == key })
	})
}

// kept returns the keys of the classes that are kept, those with most votes first, and among equals the latest; p.mu is held.
func (p *poolClasses) kept() []string {
	votes, latest := map[string]int{}, map[string]int{}
	for i, v := range p.votes {
		votes[v.Key]++
		latest[v.Key] = i
	}
	keys := slices.SortedFunc(maps.Keys(votes), func(a, b string) int {
		return cmp.Or(cmp.Compare(votes[b], votes[a]), cmp.Compare(latest[b], latest[a]))
	})
	return keys[:min(len(keys), maxClasses)]
}

func (p *poolClasses) list() (list []keyedClass) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, key := range p.kept() {
		list = append(list, keyedClass{p.classes[key], key})
	}
	return list
}

// drop forgets a class.
func (p *poolClasses) drop(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.votes = slices.DeleteFunc(p.votes, func(v vote) bool { return v.Key == key })
	p.forget()
	p.isNew = true
}

// rekey gives a class another key.
func (p *poolClasses) rekey(old, key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.votes {
		if p.votes[i].Key == old {
			p.votes[i].Key = key
		}
	}
	p.classes[key] = p.classes[old]
	p.forget()
	p.isNew = true
}

// hasOther reports whether users of other tokens have come for a class lately.
func (p *poolClasses) hasOther(h share) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.votes, func(v vote) bool { return v.Key == h.class && v.Caller != h.caller })
}

// lasting returns the classes of sandboxes that last, by key.
func (p *poolClasses) lasting() map[string]poolClass {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := maps.Clone(p.classes)
	maps.DeleteFunc(list, func(_ string, class poolClass) bool { return !class.Lasts })
	return list
}

// save writes the classes to the file if what is kept has changed.
func (p *poolClasses) save(log zerolog.Logger) {
	p.mu.Lock()
	if !p.isNew {
		p.mu.Unlock()
		return
	}
	p.isNew = false
	text, err := json.Marshal(classesRecord{classesVersion, p.votes, p.classes})
	p.mu.Unlock()
	if err == nil {
		err = os.MkdirAll(filepath.Dir(p.file), 0o700)
	}
	if err == nil {
		err = durable.WriteFile(p.file, text, 0o600)
	}
	if err != nil {
		log.Warn().Err(err).Msg("cannot save which kinds of containers the pool has")
	}
}
