package fence

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"
)

// guarded keeps a guard of this fence running until ctx ends, and then leaves it running. The guard
// is for when both the fence and the service are dead; each of these kills at the deadline, too.
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
		f.cfg.Log.Error().AnErr("failed", err).
			Msg("the fence's guard has ended; another is started")
	}
}

// Guard kills everything that runs once a lease that a fence has left behind is over. It needs
// neither etcd nor Docker. It ends when another fence, which has its own guard, goes on with the
// lease, or when the folder of the files is gone. If fence, the process id of the fence, is 0, it
// guards all fences, one after the other.
func Guard(ctx context.Context, fence int, files Files, group Group, log zerolog.Logger) {
	g := &guard{fence: fence, files: files, group: group, log: log, record: files.Read()}
	g.before = g.record.Fence
	for ctx.Err() == nil && !g.look() {
		pause := beatEvery
		if left := g.record.Deadline() - now(); left > 0 && !g.record.Fenced {
			pause = min(pause, left)
		}
		wait(ctx, pause)
	}
}

type guard struct {
	fence, before int // before is an earlier fence, if ours has written nothing yet
	files         Files
	group         Group
	log           zerolog.Logger
	record        Record // the last one
	killed        bool
}

// look reads the record and kills if it has to. It reports whether the guard is done.
func (g *guard) look() (done bool) {
	switch release, err := g.files.kills(unix.LOCK_SH); {
	case err == nil:
		defer release()
	case errors.Is(err, unix.EWOULDBLOCK):
		return false // a fence is about to open the group, in which nothing is left
	}
	if now := g.files.Read(); now.Fence != 0 {
		g.record = now // otherwise the last record holds: the file may be gone
	}
	r := g.record
	_, err := os.Stat(filepath.Dir(g.files.Base))
	gone := os.IsNotExist(err)
	over := r.Lease != 0 && !r.Fenced && now() >= r.Deadline()
	switch {
	case g.fence != 0 && r.Fence != g.before && r.Fence != g.fence && !gone:
		return true
	case over || gone:
		if !g.killed {
			g.log.Error().Int("fence", r.Fence).
				Msg("the fence has let its lease pass: all that this host runs for users is killed")
		}
		g.killed = true
		if err := g.group.KillAll(killLimit); err != nil {
			g.log.Error().Err(err).Msg("cannot kill all that runs")
		}
	default:
		g.killed = false
	}
	if r.Fence == g.fence {
		g.before = g.fence
	}
	return gone
}

// outlastGuards waits until no guard kills by an earlier record: it would kill what runs on the
// next lease, and leave the group frozen. The record says that nothing may run, so no guard begins
// anew.
func (f *Fence) outlastGuards(ctx context.Context) error {
	if err := f.cfg.Files.Write(f.rec); err != nil {
		return err
	}
	for end := now() + 2*killLimit; ; wait(ctx, 10*time.Millisecond) {
		release, err := f.cfg.Files.kills(unix.LOCK_EX)
		switch {
		case err == nil:
			release()
			return nil
		case !errors.Is(err, unix.EWOULDBLOCK):
			return fmt.Errorf("cannot check whether a guard still kills: %w", err)
		case now() >= end || ctx.Err() != nil:
			return errors.New("a guard still kills what ran on an earlier lease")
		}
	}
}

func wait(ctx context.Context, long time.Duration) {
	select {
	case <-time.After(long):
	case <-ctx.Done():
	}
}
