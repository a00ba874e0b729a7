package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/daycare-run/sandbox/internal/cluster/etcdtest"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// When a watch has broken, everything is read again, and only what has changed meanwhile is news.
func TestRereadingIsNoNews(t *testing.T) {
	etcd, _ := etcdtest.Start(t)
	h := join(t, etcd, "h1")
	seats := []string{fmt.Sprint("seat alice h1@", h.hold(t, "alice").Epoch)}
	waittest.Until(t, "it is told", func() bool { return slices.Equal(h.told.all("seat"), seats) })
	for range 2 {
		if err := h.load(t.Context(), map[string]bool{}); err != nil {
			t.Fatal(err)
		}
	}
	if got := h.told.all("seat"); !slices.Equal(got, seats) {
		t.Errorf("told %v, not %v", got, seats)
	}
	if err := h.Give(t.Context(), "alice", false); err != nil {
		t.Fatal(err)
	}
	seats = append(seats, fmt.Sprint("seat alice h1@", h.hold(t, "alice").Epoch))
	waittest.Until(t, "the next seat is told", func() bool { return slices.Equal(h.told.all("seat"), seats) })
}

// A watch that is behind gets what it has missed in parts of a thousand revisions. None is reached before its part has come.
func TestAWatchThatIsBehindReachesNothingEarly(t *testing.T) {
	const behind = 1100
	etcd, _ := etcdtest.Start(t)
	c := New(etcd, Config{Host: "h1", Log: zerolog.Nop()})
	ended, end := context.WithCancel(t.Context())
	end()
	following, stop := context.WithCancel(t.Context())
	defer stop()
	told := 0
	c.Keep("sandboxes", func(name string, _ []byte, revision int64) {
		if c.Reached(ended, revision) == nil {
			t.Errorf("revision %d was reached before %s was told", revision, name)
			stop()
		}
		if told++; told == behind {
			stop()
		}
	})
	known := map[string]bool{}
	if err := c.load(t.Context(), known); err != nil {
		t.Fatal(err)
	}
	for i := range behind {
		if _, err := etcd.Put(t.Context(), keyOf("sandboxes", fmt.Sprint(i)), "x"); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.follow(following, known); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// beforeWatch does something before the first watch begins.
type beforeWatch struct {
	clientv3.Watcher
	first sync.Once
	do    func()
}

func (b *beforeWatch) Watch(ctx context.Context, key string, options ...clientv3.OpOption) clientv3.WatchChan {
	b.first.Do(b.do)
	return b.Watcher.Watch(ctx, key, options...)
}

// What etcd has compacted before it could be watched is read.
func TestCompactedRevisionsAreReread(t *testing.T) {
	etcd, _ := etcdtest.Start(t)
	var last int64
	if _, err := etcd.Put(t.Context(), keyOf("sandboxes", "gone"), "1"); err != nil {
		t.Fatal(err)
	}
	etcd.Watcher = &beforeWatch{Watcher: etcd.Watcher, do: func() {
		_, err := etcd.Delete(t.Context(), keyOf("sandboxes", "gone"))
		if err == nil {
			_, err = etcd.Put(t.Context(), keyOf("sandboxes", "kept"), "2")
		}
		if put, failed := etcd.Put(t.Context(), keyOf("sandboxes", "kept"), "3"); err == nil && failed == nil {
			last = put.Header.Revision
			_, err = etcd.Compact(t.Context(), last)
		} else {
			err = errors.Join(err, failed)
		}
		if err != nil {
			t.Error(err)
		}
	}}
	c := New(etcd, Config{Host: "h1", Log: zerolog.Nop()})
	told := ""
	c.Keep("sandboxes", func(name string, value []byte, _ int64) { told += fmt.Sprintf("%s=%s ", name, value) })
	known := map[string]bool{}
	err := c.load(t.Context(), known)
	if err == nil {
		err = c.follow(t.Context(), known)
	}
	if !errors.Is(err, rpctypes.ErrCompacted) {
		t.Fatal(err)
	}
	if err := c.load(t.Context(), known); err != nil || c.Reached(t.Context(), last) != nil {
		t.Fatal(err)
	}
	if told = strings.TrimSpace(told); told != "gone=1 gone= kept=3" {
		t.Errorf("told %q", told)
	}
}

// betweenPages does something after each answer.
type betweenPages struct {
	clientv3.KV
	do func(*clientv3.GetResponse)
}

func (b *betweenPages) Get(ctx context.Context, key string, options ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	answer, err := b.KV.Get(ctx, key, options...)
	if err == nil {
		b.do(answer)
	}
	return answer, err
}

// However many keys there are, they are read in pages, all at one revision: what changes meanwhile is told by the watch.
func TestAllIsReadInPages(t *testing.T) {
	const atOnce, keys = 100, 2*pageKeys + 100
	etcd, _ := etcdtest.Start(t)
	for first := 0; first < keys; first += atOnce {
		var puts []clientv3.Op
		for i := range atOnce {
			puts = append(puts, clientv3.OpPut(keyOf("sandboxes", fmt.Sprintf("%06d", first+i)), "x"))
		}
		if _, err := etcd.Txn(t.Context()).Then(puts...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
	pages := 0
	etcd.KV = &betweenPages{KV: etcd.KV, do: func(page *clientv3.GetResponse) {
		if pages++; len(page.Kvs) > pageKeys {
			t.Errorf("a page of %d keys", len(page.Kvs))
		}
		if _, err := etcd.Put(t.Context(), keyOf("sandboxes", "999999"), "later"); err != nil {
			t.Error(err)
		}
	}}
	c := New(etcd, Config{Host: "h1", Log: zerolog.Nop()})
	told := map[string]bool{}
	c.Keep("sandboxes", func(name string, value []byte, _ int64) { told[name+"="+string(value)] = true })
	if err := c.load(t.Context(), map[string]bool{}); err != nil || pages != 3 {
		t.Fatalf("%d pages, %v", pages, err)
	}
	if len(told) != keys || !told["000000=x"] || !told[fmt.Sprintf("%06d=x", keys-1)] {
		t.Errorf("%d keys were told", len(told))
	}
}

// beforeTxn does something before the next transaction.
type beforeTxn struct {
	clientv3.KV
	do func()
}

func (b *beforeTxn) Txn(ctx context.Context) clientv3.Txn {
	if do := b.do; do != nil {
		b.do = nil
		do()
	}
	return b.KV.Txn(ctx)
}

// A seat that has gone by itself is given up, even if etcd's revision is one at which others have written.
func TestASeatThatIsGoneIsGivenUp(t *testing.T) {
	etcd, _ := etcdtest.Start(t)
	before := &beforeTxn{KV: etcd.KV}
	etcd.KV = before
	h := join(t, etcd, "h1")
	h.hold(t, "alice")
	before.do = func() {
		_, err := before.Delete(t.Context(), keyOf("seats", "alice"))
		if err == nil {
			_, err = before.Put(t.Context(), "others", "x")
		}
		if err != nil {
			t.Error(err)
		}
	}
	if err := h.Give(t.Context(), "alice", false); err != nil {
		t.Error(err)
	}
	if s, held := h.Seat("alice"); held {
		t.Errorf("it is still known: %+v", s)
	}
}

// An etcd that compacts its history is told from one that does not.
func TestAnEtcdThatHoards(t *testing.T) {
	etcd, _ := etcdtest.Start(t)
	c := New(etcd, Config{Host: "h1", Log: zerolog.Nop()})
	var last int64
	for range 10 {
		put, err := etcd.Put(t.Context(), "others", "x")
		if err != nil {
			t.Fatal(err)
		}
		last = put.Header.Revision
	}
	hoards := func(changes int64, want bool) {
		t.Helper()
		if got, err := c.Hoards(t.Context(), changes); got != want || err != nil {
			t.Errorf("more than %d of %d: %t, %v", changes, last, got, err)
		}
	}
	hoards(5, true)
	hoards(100, false)
	if _, err := etcd.Compact(t.Context(), last-3); err != nil {
		t.Fatal(err)
	}
	hoards(5, false)
	hoards(2, true)
}

// The etcd of our deployments compacts its history, by options that etcd knows.
func TestOurEtcdCompacts(t *testing.T) {
	t.Parallel()
	option := regexp.MustCompile(`--(auto-compaction-(?:mode|retention))[ =](\w+)`)
	for _, file := range []string{"../../deploy/sandboxd-etcd.service", "../../docker-compose.cluster.yml"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var options []string
		for _, found := range option.FindAllStringSubmatch(string(text), -1) {
			options = append(options, "--"+found[1], found[2])
		}
		if len(options) != 4 {
			t.Errorf("%s: %v", file, options)
		}
		etcdtest.StartMembers(t, 1, options...)
	}
}
