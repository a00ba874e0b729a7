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

// guarded keeps a guard of this fence running until ctx ends, and then leaves it running. The guard is for when both the fence
// and the service are dead; each of these kills at the deadline, too.
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

// Guard kills everything that runs once a lease that a fence has left behind is over. It needs neither etcd nor Docker. It ends
// when another fence, which has its own guard, goes on with the lease, or when the folder of the files is gone. If fence, the
// process id of the fence, is 0, it guards all fences, one after the other.
func Guard(ctx context.Context, fence int, files Files, group Group, log zerolog.Logger) {
	killed := false
	r := files.Read()
	before := r.Fence // of an earlier fence, if ours has written nothing yet
	for ctx.Err() == nil {
		if now := files.Read(); now.Fence != 0 {
			r = now // otherwise the last record holds: the file may be gone
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
