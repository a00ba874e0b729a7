package fence

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/rs/zerolog"
)

// guarded has a guard of this fence's run until ctx ends, and leaves it: it is there for the time in which the fence and the
// service are dead, both of which kill at the deadline, too.
func (f *Fence) guarded(ctx context.Context) {
	for ; ctx.Err() == nil; wait(ctx, time.Second) {
		guard := exec.Command("/proc/self/exe", append(f.cfg.Guard, fmt.Sprint(os.Getpid()))...)
		guard.Stdout, guard.Stderr = os.Stdout, os.Stderr
		guard.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		ended := make(chan error, 1)
		err := guard.Start()
		if err == nil {
			go func() { ended <- guard.Wait() }()
			select {
			case err = <-ended:
			case <-ctx.Done():
				return
			}
		}
		f.cfg.Log.Error().AnErr("failed", err).Msg("the fence's guard has ended; another is started")
	}
}

// Guard kills what runs when the lease is over that a fence has left behind. It needs neither etcd nor Docker, and ends when
// another fence goes on with the lease, which has a guard of its own, or when the folder of the files is gone. With 0 for the
// process of the fence it is the guard of all of them, one after the other.
func Guard(ctx context.Context, fence int, files Files, group Group, log zerolog.Logger) {
	killed := false
	r := files.Read()
	before := r.Fence // the fence's has perhaps said nothing yet
	for ctx.Err() == nil {
		if now := files.Read(); now.Fence != 0 {
			r = now // or what was said last holds: the file may be gone
		}
		_, err := os.Stat(filepath.Dir(files.Base))
		gone := os.IsNotExist(err)
		over := r.Lease != 0 && !r.Fenced && now() >= r.Deadline()
		switch {
		case fence != 0 && r.Fence != before && r.Fence != fence && !gone:
			return
		case over || gone:
			if !killed {
				log.Error().Int("fence", r.Fence).Msg("the fence has let its lease pass: all that this host runs for users is killed")
			}
			killed = true
			if err := group.KillAll(killLimit); err != nil {
				log.Error().Err(err).Msg("cannot kill all that runs")
			}
		default:
			killed = false
		}
		if r.Fence == fence {
			before = fence
		}
		if gone {
			return
		}
		pause := beatEvery
		if left := r.Deadline() - now(); left > 0 && !r.Fenced {
			pause = min(pause, left)
		}
		wait(ctx, pause)
	}
}

func wait(ctx context.Context, long time.Duration) {
	select {
	case <-time.After(long):
	case <-ctx.Done():
	}
}
