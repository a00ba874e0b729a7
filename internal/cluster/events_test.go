package cluster

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/daycare-run/sandbox/internal/cluster/changes"
	"github.com/daycare-run/sandbox/internal/events"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// told is what a host's stream was told, a line each.
type told struct {
	mu   sync.Mutex
	list []string
}

func (l *told) add(e *events.Event) {
	line := ""
	switch d := e.Detail.(type) {
	case changes.Node:
		line = "node " + d.Name + " " + d.State
	case changes.Seat:
		line = fmt.Sprintf("seat %s %s@%d", e.User, d.Host, d.Epoch)
		if d.From != "" {
			line += fmt.Sprintf(" from %s@%d", d.From, d.FromEpoch)
		}
	case changes.FenceCommand:
		line = "command ok"
		if d.Err != nil {
			line = "command failed"
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, line)
}

// all are those that begin so.
func (l *told) all(prefix string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.list), func(s string) bool { return !strings.HasPrefix(s, prefix) })
}

// Each host's stream says what becomes of all of them, and who holds a user now; what there was before it looked is no event.
func TestHostAndSeatChangesAreTold(t *testing.T) {
	etcd, hosts := three(t)
	ctx, lost, other := t.Context(), hosts[0], hosts[2]
	before := lost.hold(t, "alice")
	late := join(t, etcd, "h4")
	if _, err := etcd.Revoke(ctx, lost.lease); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the seat has gone", func() bool { _, held := other.Seat("alice"); return !held })
	now := other.hold(t, "alice")
	lease, err := etcd.Grant(ctx, 60)
	if err == nil {
		err = lost.Join(ctx, int64(lease.ID))
	}
	if err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "it is back", func() bool { _, lives := other.Node("h1"); return lives })
	for _, draining := range []bool{true, false} {
		if err := other.SetDraining(ctx, "h1", draining); err != nil {
			t.Fatal(err)
		}
	}
	lost.Fenced()
	if err := Left(ctx, etcd, "h1", int64(lease.ID)); err != nil {
		t.Fatal(err)
	}
	if _, err := etcd.Revoke(ctx, lease.ID); err != nil {
		t.Fatal(err)
	}
	nodes := []string{"node h1 lost", "node h1 up", "node h1 draining", "node h1 up", "node h1 away"}
	seats := []string{fmt.Sprintf("seat alice h1@%d", before.Epoch), fmt.Sprintf("seat alice %s@%d from h1@%d", now.Host, now.Epoch, before.Epoch)}
	for h, known := range map[*host]int{other: 0, late: 1} { // the later one has read the first seat
		waittest.Until(t, fmt.Sprint(h.Host(), " is told ", nodes, seats[known:]), func() bool {
			return slices.Equal(h.told.all("node h1"), nodes) && slices.Equal(h.told.all("seat alice"), seats[known:])
		})
	}
	if got := lost.told.all("node h1 fenced"); len(got) != 1 {
		t.Errorf("this host is told: %v", lost.told.list)
	}
}
