package dnsfilter

import (
	"container/list"
	"hash/maphash"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// entry is what is known about a name and a type. It does not change once it is made.
type entry struct {
	key     string
	owner   string // the user that had it looked up
	rcode   int
	records []byte // packed, each with a pointer to the name in the question
	count   int
	addrs   []netip.Addr // those of the records
	struck  bool         // there were addresses, and none is admitted
	failed  bool         // no upstream had a usable answer
	ttl     time.Duration
	expires int64 // as Server.since
}

func (e *entry) name() string { return e.key[keyPrefix:] }

// isOfAddresses reports whether the entry is about the addresses of its name.
func (e *entry) isOfAddresses() bool { return strings.HasPrefix(e.key, "\x00\x01") }

// left returns for how many more seconds the entry is valid, rounded up: no answer says 0.
func (e *entry) left(now int64) uint32 {
	return uint32(max(1, (time.Duration(e.expires-now)+time.Second-1)/time.Second))
}

// answer returns the answer that a valid entry gives.
func (e *entry) answer(now int64) answer {
	a := answer{verdict: Allowed, rcode: e.rcode, records: e.records, count: e.count,
		ttl: e.left(now)}
	switch {
	case e.failed:
		a.verdict, a.reason, a.ede = Failed, reasonUpstream, edeUnreachable
	case e.struck:
		a.verdict, a.reason, a.ede = Denied, reasonPrivate, edeBlocked
	case e.count > 0 || !e.isOfAddresses(): // some programs ask for other records by themselves, and do without
	case e.rcode == dns.RcodeNameError:
		a.verdict, a.reason = Failed, reasonNoName
	default:
		a.verdict, a.reason = Failed, reasonNoAddress
	}
	return a
}

// maxCached bounds the records of an entry that is kept, so that entries bound memory.
const maxCached = 4096

// cache keeps entries. It is divided into shards by a hash that a client cannot know. In a full
// shard the user who had the most entries looked up makes room, with its least recently used one.
// So a user that keeps asking for new names drives out its own entries, and not the few that others
// use.
type cache struct {
	seed   maphash.Seed
	shards []shard
}

type shard struct {
	mu      sync.Mutex
	size    int
	entries map[string]*list.Element // of *entry
	recent  *list.List               // the most recently used first
	owned   map[string]int           // entries by owner
}

const entriesPerShard = 256

func newCache(size int) *cache {
	c := &cache{seed: maphash.MakeSeed(), shards: make([]shard, max(1, size/entriesPerShard))}
	for i := range c.shards {
		c.shards[i] = shard{
			size:    size / len(c.shards),
			entries: map[string]*list.Element{},
			recent:  list.New(),
			owned:   map[string]int{},
		}
	}
	return c
}

// get returns the entry for a key, or nil if there is no valid one. It does not keep the key.
func (c *cache) get(key []byte, now int64) *entry {
	s := &c.shards[maphash.Bytes(c.seed, key)%uint64(len(c.shards))]
	s.mu.Lock()
	defer s.mu.Unlock()
	element := s.entries[string(key)]
	if element == nil {
		return nil
	}
	e := element.Value.(*entry)
	if e.expires <= now {
		s.drop(element)
		return nil
	}
	s.recent.MoveToFront(element)
	return e
}

// put keeps an entry, in place of an earlier one.
func (c *cache) put(e *entry) {
	if len(e.records) > maxCached {
		return
	}
	s := &c.shards[maphash.String(c.seed, e.key)%uint64(len(c.shards))]
	s.mu.Lock()
	defer s.mu.Unlock()
	if before := s.entries[e.key]; before != nil {
		s.drop(before)
	}
	if len(s.entries) >= s.size {
		s.dropOldest(s.largestOwner())
	}
	s.entries[e.key] = s.recent.PushFront(e)
	s.owned[e.owner]++
}

func (s *shard) largestOwner() (owner string) {
	most := 0
	for o, n := range s.owned {
		if n > most {
			owner, most = o, n
		}
	}
	return owner
}

// dropOldest drops the least recently used entry of a user.
func (s *shard) dropOldest(owner string) {
	for element := s.recent.Back(); element != nil; element = element.Prev() {
		if element.Value.(*entry).owner == owner {
			s.drop(element)
			return
		}
	}
}

func (s *shard) drop(element *list.Element) {
	e := s.recent.Remove(element).(*entry)
	delete(s.entries, e.key)
	if s.owned[e.owner]--; s.owned[e.owner] == 0 {
		delete(s.owned, e.owner)
	}
}
