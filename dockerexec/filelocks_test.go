package dockerexec

import (
	"testing"
	"testing/synctest"
	"time"
)

// Whoever mounts a file that another verifies waits for it, and nobody else does; nor do two wait for each other.
func TestFileLocks(t *testing.T) {
	of := func(inodes ...uint64) (mounts []Mount) {
		for _, ino := range inodes {
			mounts = append(mounts, Mount{ID: FileID{Dev: 1, Ino: ino, Since: int64(ino)}})
		}
		return mounts
	}
	synctest.Test(t, func(t *testing.T) {
		var locks fileLocks
		took := make([]time.Duration, 5)
		begun := time.Now()
		for i, mounts := range [][]Mount{of(1, 2), of(2, 1, 1), of(3), of(4, 3), nil} {
			go func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				unlock := locks.lock(mounts)
				defer unlock()
				took[i] = time.Since(begun).Truncate(time.Second)
				time.Sleep(time.Second)
			}()
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		for i, want := range []time.Duration{0, time.Second, 0, time.Second, 0} {
			if took[i] != want {
				t.Errorf("number %d waited for %v, want %v", i, took[i], want)
			}
		}
		if len(locks.held) != 0 {
			t.Errorf("still held: %v", locks.held)
		}
	})
}
