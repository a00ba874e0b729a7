package fence

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/cluster/etcdtest"
	"github.com/daycare-run/sandbox/internal/waittest"
)

func (r *rig) guard(t *testing.T, fence int) (ended chan struct{}) {
	ended = make(chan struct{})
	inBackground(t, func(ctx context.Context) {
		defer close(ended)
		Guard(ctx, fence, r.files, r.group, zerolog.New(zerolog.NewTestWriter(t)))
	})
	return ended
}

// Fence and service may both be dead.
func TestTheGuardKillsInTime(t *testing.T) {
	t.Parallel()
	etcd, _ := etcdtest.Start(t)
	r := lay(t)
	stop := r.fence(t, etcd)
	waittest.Until(t, "the host has a lease", func() bool { return r.files.Read().Lease != 0 })
	ended := r.guard(t, os.Getpid())
	tenant := r.group.run(t, "one", "exec sleep 7010")
	stop()
	sent := r.files.Read().Sent
	if err := tenant.Wait(); err == nil {
		t.Error("it has ended by itself")
	}
	if late := now() - sent - Limit; late < 0 || late > TTL-Limit {
		t.Errorf("it was killed %s after the deadline", late)
	}
	// What Docker starts later dies, too, until there is a fence.
	if err := r.group.run(t, "one", "exec sleep 7011").Wait(); err == nil {
		t.Error("it has ended by itself")
	}
	r.fence(t, etcd)
	waittest.Until(t, "the next fence has a lease", func() bool { rec := r.files.Read(); return rec.Lease != 0 && !rec.Fenced })
	waittest.Until(t, "the guard has seen it, and lets things run", func() bool { return r.group.run(t, "one", "true").Wait() == nil })
	select {
	case <-ended:
		t.Error("the guard has left its fence")
	default:
	}
}

func TestTheGuardEnds(t *testing.T) {
	r := lay(t)
	says := func(fence int) {
		if err := r.files.Write(Record{Boot: bootID(), Fence: fence, Lease: 7, Sent: now()}); err != nil {
			t.Fatal(err)
		}
	}
	says(1001)
	ended := r.guard(t, 1001)
	next := 1001
	waittest.Until(t, "it ends when another fence goes on with the lease", func() bool {
		next = 2003 - next
		says(next)
		select {
		case <-ended:
			return true
		default:
			return false
		}
	})
	// That one's guard is there before it has said anything.
	says(1001)
	ended = r.guard(t, 1002)
	in := filepath.Join(t.TempDir(), "in the group")
	tenant := r.group.run(t, "one", "touch '"+in+"'; exec sleep 7012")
	waittest.Until(t, "the process is in the group", func() bool { _, err := os.Stat(in); return err == nil })
	dead := make(chan error, 1)
	go func() { dead <- tenant.Wait() }()
	if err := os.RemoveAll(filepath.Dir(r.files.Base)); err != nil {
		t.Fatal(err)
	}
	<-ended
	select {
	case err := <-dead:
		if err == nil {
			t.Error("it has ended by itself")
		}
	case <-time.After(time.Minute):
		t.Error("it was not killed when the folder was gone")
	}
}

// One in a container of its own stays while fences come and go.
func TestTheGuardOfAllFencesStays(t *testing.T) {
	r := lay(t)
	says := func(fence int, sent time.Duration) {
		if err := r.files.Write(Record{Boot: bootID(), Fence: fence, Lease: 7, Sent: sent}); err != nil {
			t.Fatal(err)
		}
	}
	says(1001, now())
	ended := r.guard(t, 0)
	tenant := r.group.run(t, "one", "exec sleep 7013")
	says(1002, now()-Limit)
	if err := tenant.Wait(); err == nil {
		t.Error("it has ended by itself")
	}
	says(1003, now())
	next := Fence{cfg: Config{Files: r.files}, rec: r.files.Read()}
	if err := errors.Join(next.outlastGuards(t.Context()), r.group.Open(), r.group.run(t, "one", "true").Wait()); err != nil {
		t.Errorf("what runs on the next lease: %v", err)
	}
	says(1004, now()-Limit)
	if err := r.group.run(t, "one", "exec sleep 7014").Wait(); err == nil {
		t.Error("it has ended by itself")
	}
	select {
	case <-ended:
		t.Error("it has ended")
	default:
	}
}

// A guard that is still killing by the last record would kill what runs on the next lease, and leave it frozen.
func TestNoLeaseWhileAGuardKills(t *testing.T) {
	t.Parallel()
	etcd, _ := etcdtest.Start(t)
	r := lay(t)
	release, err := r.files.kills(unix.LOCK_SH)
	if err != nil {
		t.Fatal(err)
	}
	f := New(etcd, Config{Files: r.files, Group: r.group, UsersDir: r.users, Log: zerolog.Nop()})
	f.rec = r.files.Read()
	f.rec.Fence, f.rec.Fenced = os.Getpid(), true
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second) // the homes are looked at before the guards are
	defer cancel()
	if err := f.take(ctx); err == nil || !strings.Contains(err.Error(), "a guard still kills") || r.files.Read().Lease != 0 {
		t.Errorf("%v, %+v", err, r.files.Read())
	}
	release()
	if err := f.take(t.Context()); err != nil || r.files.Read().Lease == 0 {
		t.Errorf("%v, %+v", err, r.files.Read())
	}
	if err := r.group.run(t, "one", "true").Wait(); err != nil {
		t.Error(err)
	}
}
