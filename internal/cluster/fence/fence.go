// Package fence makes sure that a host runs nothing once it can no longer prove its membership of
// the cluster. The fence is a process of its own (sandboxd fence) that holds the host's lease. So
// the service keeps its users if it crashes or is replaced, and a host that is cut off has killed
// everything it ran before another host may take its users over. The fence kills by control group,
// without asking Docker.
//
// fence.go has the life of a lease, record.go has what the fence and the service tell each other,
// cgroup.go kills, member.go is the service's side, guard.go stands in for a fence that has died,
// and watchdog.go resets the host if the fence cannot kill.
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
	clientv3 "go.etcd.io/etcd/client/v3"
)

// The times of a lease. Another host may take over TTL after etcd last heard from this one, which
// is not before the last answered renewal was sent. This host begins to kill Limit after that
// renewal was sent, so it has the rest of TTL for killing.
const (
	TTL   = 12 * time.Second
	Renew = 2 * time.Second
	Limit = 6 * time.Second
	// hedge is how long a renewal may remain unanswered before another is sent beside it.
	hedge = Renew / 4
	// ackLimit is how long the service has to report that it does nothing for users any more,
	// before it is killed itself.
	ackLimit = time.Second
	// orphanedStarts is how long Docker may go on starting containers for a service that has ended.
	orphanedStarts = 15 * time.Second
	// goneLimit is how long a service that took calls may be away: a service that is replaced is
	// back by then.
	goneLimit = time.Minute
)

// Config configures a Fence. All fields must be set except Remount, Killed, Watchdog and Guard.
type Config struct {
	// Files are the files of the record and of the service's beat.
	Files Files
	// Group is the control group that all our containers are below, as a path such as
	// /daycare.slice.
	Group Group
	// UsersDir is checked before a lease is taken.
	UsersDir string
	// Remount is the command to run before that check; empty for none.
	Remount []string
	// Killed is called when everything that ran on a lease is killed, before the lease is given
	// back; nil for nothing. It is a function, because the fence writes no keys: what they mean is
	// the cluster's.
	Killed func(ctx context.Context, lease int64) error
	// Watchdog is a device, such as /dev/watchdog, or a named pipe, that resets the host unless it
	// is fed in time; empty for none.
	Watchdog string
	// Guard has the arguments with which this program calls Guard, without the last one, the
	// fence's process id; empty for no guard.
	Guard []string
	Log   zerolog.Logger
}

// Fence holds a host's lease.
type Fence struct {
	cfg  Config
	etcd *clientv3.Client
	rec  Record
	// orphaned is when the service was found dead; Docker may still be starting containers for it.
	orphaned time.Duration
	// starter is a service for which Docker was starting containers when take last looked.
	starter  Beat
	probing  chan error // result of a probe of the homes that has not returned
	watchdog *watchdog  // while it is armed
}

// New returns a Fence.
func New(etcd *clientv3.Client, cfg Config) *Fence { return &Fence{cfg: cfg, etcd: etcd} }

// Run holds a lease until ctx ends. It then leaves the lease and everything that runs alone: the
// next Fence goes on with them. Whenever the lease cannot be kept, everything is killed first. Run
// fails at once if another Fence has these Files.
func (f *Fence) Run(ctx context.Context) error {
	release, err := f.cfg.Files.hold(f.cfg.Log)
	if err != nil {
		return err
	}
	defer release()
	f.rec = f.cfg.Files.Read()
	f.rec.Fence = os.Getpid()
	if len(f.cfg.Guard) > 0 {
		go f.guarded(ctx)
	}
	if f.rec.Lease == 0 || f.rec.Fenced || f.overdue() {
		f.fence(ctx, "it was started without a lease that it could keep")
	} else if err := f.arm(); err != nil {
		f.fence(ctx, err.Error())
	}
	defer f.disarm()
	for ctx.Err() == nil {
		if f.rec.Fenced {
			if err := f.take(ctx); err != nil {
				f.cfg.Log.Error().Err(err).Msg("this host takes no users yet")
				wait(ctx, Renew)
				continue
			}
		}
		if reason := f.keep(ctx); ctx.Err() == nil {
			f.fence(ctx, reason)
		}
	}
	return nil
}

func (f *Fence) overdue() bool { return now() >= f.rec.Deadline() }

// take gets a new lease once nothing of ours runs and the homes are usable.
func (f *Fence) take(ctx context.Context) error {
	beat, found := f.cfg.Files.Beat(f.rec.Boot)
	lives := found && beat.lives()
	if f.starter.PID != 0 && !f.starter.lives() {
		f.orphaned, f.starter = now(), Beat{}
	}
	if lives {
		f.starter = Beat{}
		if beat.Starting > 0 {
			f.starter = beat
		}
	}
	if lives && beat.Unfit != "" {
		return errors.New(beat.Unfit)
	}
	if err := f.cfg.Group.KillAll(killLimit); err != nil {
		return err
	}
	f.disarm()
	// Containers that Docker still starts for an earlier lease are frozen in the group and die
	// there: they must not be thawed.
	if lives && beat.Starting > 0 {
		return fmt.Errorf("%d containers are still being started by Docker", beat.Starting)
	}
	if f.orphaned != 0 && now()-f.orphaned < orphanedStarts {
		return errors.New("containers may still be started by Docker for a service that has ended")
	}
	if err := f.soundHomes(ctx); err != nil {
		return err
	}
	if err := f.outlastGuards(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, Limit)
	defer cancel()
	sent := now()
	lease, err := f.etcd.Grant(ctx, int64(TTL/time.Second))
	if err != nil {
		return fmt.Errorf("cannot get a lease from etcd: %w", err)
	}
	if err = f.arm(); err == nil { // otherwise the group stays frozen
		err = f.cfg.Group.Open()
	}
	if err != nil {
		_, _ = f.etcd.Revoke(ctx, lease.ID)
		return err
	}
	f.rec = Record{Boot: f.rec.Boot, Fence: f.rec.Fence, Count: f.rec.Count + 1,
		Fences: f.rec.Fences, Lease: int64(lease.ID), Sent: sent, Taken: now()}
	f.cfg.Log.Info().Int64("lease", f.rec.Lease).Msg("this host has a lease")
	return f.cfg.Files.Write(f.rec)
}

// renewal is etcd's answer to a renewal, and when the renewal was sent.
type renewal struct {
	sent time.Duration
	err  error
}

// keep renews the lease until it cannot be kept, and returns why. While a renewal is unanswered,
// others are sent to other members of etcd: a member that is cut off is silent, and so is a member
// that waits for a leader that is cut off.
func (f *Fence) keep(ctx context.Context) string {
	ctx, end := context.WithCancel(ctx)
	defer end()
	answers := make(chan renewal)
	var asked time.Duration
	for ctx.Err() == nil {
		f.feed()
		next := max(f.rec.Sent+Renew, asked+hedge)
		if at := now(); at >= next {
			asked, next = at, at+hedge
			go f.renew(ctx, f.rec.Lease, at, answers)
		}
		select {
		case answer := <-answers:
			if reason := f.renewed(answer); reason != "" {
				return reason
			}
		case <-time.After(max(min(f.rec.Deadline()-now(), next-now(), Renew/10), 0)):
		case <-ctx.Done():
			return ""
		}
		if f.overdue() {
			return fmt.Sprintf("its lease could not be renewed for %s", Limit)
		}
		if reason := f.unfit(); reason != "" {
			return reason
		}
	}
	return ""
}

// renew sends one renewal and waits as long as its answer is useful.
func (f *Fence) renew(ctx context.Context, lease int64, sent time.Duration,
	answers chan<- renewal) {
	limited, cancel := context.WithTimeout(ctx, Limit)
	defer cancel()
	answer, err := f.etcd.KeepAliveOnce(limited, clientv3.LeaseID(lease))
	if err == nil && answer.TTL <= 0 {
		err = errLeaseGone
	}
	select {
	case answers <- renewal{sent, err}:
	case <-ctx.Done():
	}
}

// renewed records an answer. If the lease is lost, it returns why.
func (f *Fence) renewed(answer renewal) string {
	switch {
	case leaseGone(answer.err):
		return "its lease has ended at etcd"
	case answer.sent <= f.rec.Sent: // a later renewal has been answered
	case answer.err != nil:
		f.cfg.Log.Warn().Err(answer.err).Dur("left", f.rec.Deadline()-now()).
			Msg("a renewal of the lease has failed; others are sent")
	default:
		before := f.rec.Deadline()
		f.rec.Sent = answer.sent
		err := f.cfg.Files.Write(f.rec)
		left := before - now()
		if left <= 0 {
			return "its lease was renewed too late" // service and guard may have begun to kill
		}
		if left < Limit-2*Renew+hedge {
			f.cfg.Log.Warn().Dur("left", left).
				Msg("the lease was renewed late: a member of etcd is silent, or there was no leader")
		}
		if err != nil {
			f.cfg.Log.Warn().Err(err).Msg("cannot tell the service that the lease is renewed")
		}
	}
	return ""
}

// unfit returns why the service cannot keep its users although the lease could be kept; empty if it
// can.
func (f *Fence) unfit() string {
	beat, found := f.cfg.Files.Beat(f.rec.Boot)
	at := beat.At
	if beat.lives() { // a start may take long, and counts for nothing once it has failed
		at = max(at, beat.Alive)
	}
	switch {
	case !found || at < f.rec.Taken:
	case beat.Unfit != "":
		return beat.Unfit
	case now()-at > goneLimit:
		return fmt.Sprintf("the service has been away for %s", goneLimit)
	}
	return ""
}

// fence kills everything that runs, makes the service stop its work for users, and gives the lease
// back.
func (f *Fence) fence(ctx context.Context, reason string) {
	begun := now()
	lease := f.rec.Lease
	level := zerolog.InfoLevel // the fence has just started
	if lease != 0 {
		level = zerolog.ErrorLevel
		f.rec.Fences++
	}
	f.rec.Fenced, f.rec.Lease = true, 0
	f.rec.Count++
	f.rec.Boot = bootID()
	// The record comes first, because it is read at each start; killing must not wait for anything
	// else.
	if err := f.cfg.Files.Write(f.rec); err != nil {
		f.cfg.Log.Error().Err(err).Msg("cannot tell the service that this host is fenced off")
	}
	err := f.cfg.Group.KillAll(killLimit)
	f.quiet()
	if err = errors.Join(err, f.cfg.Group.KillAll(killLimit)); err == nil { // including what the service has started since
		f.disarm()
	}
	f.cfg.Log.WithLevel(level).AnErr("failed", err).Str("reason", reason).Dur("took", now()-begun).
		Msg("this host is fenced off: all that it ran for users is killed, and others may take them over")
	if err == nil && lease != 0 {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if f.cfg.Killed != nil {
			err = f.cfg.Killed(ctx, lease)
		}
		if err != nil {
			f.cfg.Log.Warn().Err(err).Msg("cannot tell the other hosts that nothing runs here")
		}
		// If this fails, the lease expires by itself.
		_, _ = f.etcd.Revoke(ctx, clientv3.LeaseID(lease))
	}
}

// quiet waits until the service has reported that it does nothing for users, or kills it.
func (f *Fence) quiet() {
	for end := now() + ackLimit; ; time.Sleep(10 * time.Millisecond) {
		beat, found := f.cfg.Files.Beat(f.rec.Boot)
		if !found || beat.Quiet == f.rec.Count {
			return
		}
		if !beat.lives() {
			f.orphaned = now()
			return
		}
		if now() >= end {
			f.cfg.Log.Error().Int("pid", beat.PID).
				Msg("the service does not stop what it does for users, so it is killed")
			beat.kill()
			f.orphaned = now()
			return
		}
	}
}

// soundHomes makes sure that files in the homes' folder can be written, renamed and read within a
// time limit.
func (f *Fence) soundHomes(ctx context.Context) error {
	const limit = 5 * time.Second
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if len(f.cfg.Remount) > 0 {
		if err := remount(ctx, f.cfg.Remount); err != nil {
			return err
		}
	}
	if f.probing != nil { // an earlier probe has not returned yet, and each takes a thread
		select {
		case <-f.probing:
			f.probing = nil
		case <-ctx.Done():
			return homesSilent(limit)
		}
	}
	done := make(chan error, 1)
	f.probing = done
	go func() { // it may never return if the storage does not answer
		name := filepath.Join(f.cfg.UsersDir, fmt.Sprintf(".probe-%d", os.Getpid()))
		defer os.Remove(name)
		err := os.WriteFile(name+".new", []byte("sound"), 0o600)
		if err == nil {
			err = os.Rename(name+".new", name)
		}
		if err == nil {
			_, err = os.ReadFile(name)
		}
		done <- err
	}()
	select {
	case err := <-done:
		f.probing = nil
		if err != nil {
			return fmt.Errorf("usersDir is not sound: %w", err)
		}
		return nil
	case <-ctx.Done():
		return homesSilent(limit)
	}
}

// remount runs cluster.remountCommand. When ctx ends, it kills the command and its children. What
// a command that exits with 0 leaves behind goes on: that may be what serves the filesystem.
func remount(ctx context.Context, argv []string) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err == nil || errors.Is(err, exec.ErrWaitDelay) { // a child of it has its output
		return nil
	}
	return fmt.Errorf("cluster.remountCommand failed: %w: %.500s", err, out)
}

func homesSilent(limit time.Duration) error {
	return fmt.Errorf("usersDir does not answer within %s: see to its storage", limit)
}
