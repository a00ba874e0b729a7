package mounts

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/daycare-run/sandbox/internal/waittest"
)

// A container waits if another one verifies a file that it mounts, and only then; no two wait for each other.
func TestFileLocks(t *testing.T) {
	of := func(inodes ...uint64) (mounts []Mount) {
		for _, ino := range inodes {
			mounts = append(mounts, Mount{File: File{Dev: 1, Ino: ino}})
		}
		return mounts
	}
	synctest.Test(t, func(t *testing.T) {
		var all fileLocks
		took := make([]time.Duration, 6)
		begun := time.Now()
		for i, mounts := range [][]Mount{of(1, 2), of(2, 1, 1), of(3), of(4, 3), nil, of(0, 1)} {
			go func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
				defer cancel()
				unlock, err := all.lock(ctx, mounts)
				if err != nil { // the last, which comes after number 1
					took[i] = -1
					return
				}
				defer unlock()
				took[i] = time.Since(begun).Truncate(time.Second)
				time.Sleep(time.Second)
			}()
		}
		waittest.Pass(time.Minute)
		for i, want := range []time.Duration{0, time.Second, 0, time.Second, 0, -1} {
			if took[i] != want {
				t.Errorf("number %d waited for %v, want %v", i, took[i], want)
			}
		}
		if len(all.held) != 0 {
			t.Errorf("still held: %v", all.held)
		}
	})
}
