package fence

import (
	"slices"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/daycare-run/sandbox/internal/cluster"
	"github.com/daycare-run/sandbox/internal/cluster/etcdtest"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// A member of etcd that is silent costs no host its lease, be it the leader.
func TestASilentMemberCostsNoLease(t *testing.T) {
	t.Parallel()
	asked, endpoints, signal := etcdtest.StartMembers(t, 3)
	etcd, err := cluster.Dial(endpoints, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = etcd.Close() })
	r := lay(t)
	r.fence(t, etcd)
	r.serve(t)
	waittest.Until(t, "the host has a lease", func() bool { return r.member.MayStart() == nil })
	first := r.member.Record().Lease
	for _, leader := range []bool{false, true} {
		silent := slices.IndexFunc(endpoints, func(endpoint string) bool { return leads(t, asked, endpoint) == leader })
		sent := r.member.Record().Sent
		waittest.Until(t, "it is renewed", func() bool { return r.member.Record().Sent > sent })
		sent = r.member.Record().Sent
		waittest.Until(t, "the next renewal is near", func() bool { return now() > sent+Renew-hedge })
		signal(silent, syscall.SIGSTOP)
		least, renewals := Limit, 0
		waittest.Until(t, "it is renewed three times, or lost", func() bool {
			left, rec := r.member.Left(), r.member.Record()
			if rec.Sent > sent {
				sent = rec.Sent
				renewals++
			}
			least = min(least, left)
			return renewals == 3 || left <= 0 || rec.Lease != first
		})
		signal(silent, syscall.SIGCONT)
		t.Logf("the leader: %v, is silent: at least %s of the lease are left", leader, least.Round(time.Millisecond))
		if rec := r.member.Record(); least <= 0 || rec.Lease != first || rec.Fences != 0 {
			t.Fatalf("%s left, lease %d, %+v", least, first, rec)
		}
	}
}

func leads(t *testing.T, asked *clientv3.Client, endpoint string) bool {
	t.Helper()
	status, err := asked.Status(t.Context(), endpoint)
	if err != nil {
		t.Fatal(err)
	}
	return status.Leader == status.Header.MemberId
}
