package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/api/types"
)

// diskOfEtcd has a member of etcd write to a disk that can be filled up. It allocates two files of 64 MiB at once.
func (c *clusterLab) diskOfEtcd(t *testing.T, h *clusterHost) {
	t.Helper()
	mkdir(t, c.etcdAt(h))
	if err := syscall.Mount("etcd", c.etcdAt(h), "tmpfs", 0, "size=256m,mode=700"); err != nil {
		t.Fatal(err)
	}
}

// fill leaves no room there, and returns what makes room again.
func (c *clusterLab) fill(t *testing.T, h *clusterHost) (free func()) {
	t.Helper()
	name := filepath.Join(c.etcdAt(h), "filler")
	file, err := os.Create(name)
	for chunk := make([]byte, 1<<20); err == nil; {
		_, err = file.Write(chunk)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(name); err != nil {
			t.Error(err)
		}
	}
}

// Where the disk of one member of etcd is full, nothing happens to users. Where those of all are, and the majority ends, who is held
// goes on for as long as the leases do and then stops, everything else is refused and told what to do, and nothing is started before
// there is room.
func etcdsDisksAreFull(t *testing.T, c *clusterLab) {
	const user = "full"
	process, file := c.writes(t, user)
	holder := c.holder(t, user)
	holder.sh(t, user, "true") // a container of its calls is warm
	if len(holder.grouped()) == 0 {
		t.Fatalf("nothing of users is seen to run on %s", holder.name)
	}

	free := []func(){c.fill(t, c.hosts[0])}
	c.writeUntilOneEnds(t, c.hosts[0])
	for _, h := range c.hosts {
		h.sh(t, user, "true")
		eventually(t, "a new user is placed", func() bool { return h.places(t, "one-"+h.name) == nil })
	}
	if n := len(runs(t, file)); n != 1 {
		t.Errorf("%d starts", n)
	}

	for _, h := range c.hosts[1:] {
		free = append(free, c.fill(t, h))
	}
	var asking sync.WaitGroup // who asks waits for a while
	var served time.Time      // when the last call of who is held began that succeeded
	var refused error
	asking.Go(func() {
		for ; ; time.Sleep(50 * time.Millisecond) {
			begun := time.Now()
			if _, refused = holder.client.Exec(t.Context(), user, types.Exec{Permissions: workspace, Command: "true"}); refused != nil {
				return
			}
			served = begun
		}
	})
	answered := c.writeUntilOneEnds(t, c.hosts[1:]...) // with which the majority has
	gone := float64(answered.UnixMilli()) / 1000
	// The fence kills a service that does not end in time what it did; the next one says the same.
	answers := func(ask func() error) (err error) {
		for begun := time.Now(); time.Since(begun) < time.Minute; time.Sleep(50 * time.Millisecond) {
			if err = ask(); err == nil || !strings.Contains(err.Error(), "no service answers") && !strings.Contains(err.Error(), "connection") {
				break
			}
		}
		return err
	}
	for _, h := range c.hosts {
		asking.Go(func() {
			if err := answers(func() error { return h.places(t, "all-"+h.name) }); !isKind(err, types.Unavailable) || !strings.Contains(err.Error(), "see that") {
				t.Errorf("a new user at %s: %v", h.name, err)
			}
		})
	}
	for _, h := range c.hosts {
		eventually(t, "nothing of users runs", func() bool { return len(h.grouped()) == 0 })
	}
	for _, h := range c.hosts {
		asking.Go(func() {
			err := answers(func() error {
				_, err := h.client.Exec(t.Context(), user, types.Exec{Permissions: workspace, Command: "true"})
				return err
			})
			if !isKind(err, types.Unavailable) || !strings.Contains(err.Error(), "see that") {
				t.Errorf("who was held, at %s: %v", h.name, err)
			}
		})
	}
	asking.Wait()
	if !served.After(answered) {
		t.Errorf("who is held went on until %s, and etcd until %s: %v", served, answered, refused)
	}
	before := runs(t, file)
	for id, r := range before {
		if went := r.last - gone; len(before) != 1 || went < 1 || went > 10 {
			t.Errorf("%s went on for %.1f s, and should for 4 to 6", id, went)
		} else {
			t.Logf("who is held went on for %.1f s", went)
		}
	}

	for i, h := range c.hosts {
		if free[i](); h.etcd.hasExited() {
			h.startEtcd(t, c, filepath.Join(c.dir, "certificates"))
		}
	}
	begun := time.Now()
	for _, h := range c.hosts {
		c.come(t, h)
		eventually(t, "a new user is placed", func() bool { return h.places(t, "again-"+h.name) == nil })
	}
	anotherWrites(t, file, before, "there is room again")
	t.Logf("it goes on %s after there was room", time.Since(begun).Round(100*time.Millisecond))
	noneOverlap(t, file, 2)
	if _, err := c.hosts[0].client.StopProcess(t.Context(), user, process, ""); err != nil {
		t.Error(err)
	}
}

// places registers a new user's sandbox, which has to be recorded.
func (h *clusterHost) places(t *testing.T, user string) error {
	_, err := h.client.Put(t.Context(), user, types.Registration{UserID: user})
	return err
}

// writeUntilOneEnds has etcd be written to until one of its members has ended, as it does when it cannot write. It returns when
// the last write was answered: the member may have stood still before it ended.
func (c *clusterLab) writeUntilOneEnds(t *testing.T, members ...*clusterHost) (answered time.Time) {
	t.Helper()
	answered = time.Now()
	written := 0
	eventually(t, "a member of etcd has ended", func() bool {
		for range 50 {
			if slices.ContainsFunc(members, func(h *clusterHost) bool { return h.etcd.hasExited() }) {
				return true
			}
			written++
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if _, err := c.hosts[2].client.Put(ctx, "writer", types.Registration{UserID: "writer", Permissions: types.Permissions{WorkingDir: fmt.Sprint("/home/", written)}}); err == nil {
				answered = time.Now()
			}
			cancel()
		}
		return false
	})
	return answered
}
