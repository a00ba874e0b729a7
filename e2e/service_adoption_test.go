package e2e

import (
	"sync"
	"syscall"
	"testing"
)

// After a restart with many containers those that calls wait for are taken over before the others, which are at most a
// few at a time.
func TestAwaitedContainersAreAdoptedFirst(t *testing.T) {
	const many, calls = 24, 4
	l := newLab(t, "runc", "SANDBOXD_QUOTAS_PER_USER_CONTAINERS=100", "SANDBOXD_QUOTAS_PER_USER_COLD_STARTS=4")
	l.register(t, "adopted")
	inParallel := func(first, n int) {
		var work sync.WaitGroup
		for i := range n {
			work.Go(func() {
				if out, err := l.client.Exec(t.Context(), "adopted", differently(first+i, "true")); err != nil || out.Failed {
					t.Errorf("%+v, %v", out, err)
				}
			})
		}
		work.Wait()
	}
	inParallel(0, calls)
	inParallel(calls, many-calls)
	before := len(l.containersOf(t, "adopted"))
	now, waiting := 0, 0
	for try := 0; try < 5 && waiting == 0; try++ { // a busy machine may have taken over all before the calls came
		l.stop(syscall.SIGKILL)
		if err := l.start(); err != nil {
			t.Fatal(err)
		}
		inParallel(0, calls) // made first, so the last in Docker's list
		list, err := l.client.Containers(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		now = len(list)
		for _, c := range list {
			if c.State == "starting" {
				waiting++
			}
		}
		t.Logf("%d of %d containers are not taken over yet when %d calls have ended", waiting, now, calls)
	}
	if before != many || now != many || waiting == 0 {
		t.Errorf("%d containers before, %d now, of which %d wait", before, now, waiting)
	}
	eventually(t, "all are taken over", func() bool { return l.warm("adopted") == many })
	if now := len(l.containersOf(t, "adopted")); now != many {
		t.Errorf("there are %d containers", now)
	}
}
