// Package fence sees to it that a host which can no longer prove that it is one of the cluster runs nothing. It is a
// process of its own (sandboxd fence), which holds the host's lease: so the service may crash or be exchanged and keep its
// users, and a host that is cut off has killed all that it ran, by control group, without asking Docker, before another
// may take its users over.
//
// fence.go has the life of a lease, record.go what fence and service tell each other, cgroup.go kills, member.go is the
// service's side, watchdog.go resets the host if the fence cannot kill.
package fence

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/rs/zerolog"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// The times of a lease. Another host may take over TTL after etcd has last heard of this one, which is not before the
// renewal was sent; this one has begun to kill after Limit, so it has the rest for that.
const (
	TTL   = 12 * time.Second
	Renew = 2 * time.Second
	Limit = 6 * time.Second
	// hedge is how long a renewal may be without an answer before another is sent beside it.
	hedge = Renew / 4
	// ackLimit is how long the service has to say that it does nothing for users any more, before it is killed itself.
	ackLimit = time.Second
	// orphanedStarts is for how long Docker may go on with the starts of a service that has ended.
	orphanedStarts = 15 * time.Second
	// goneLimit is for how long a service that ran may be away: one that is exchanged is back by then.
	goneLimit = time.Minute
)

// Config is what a Fence needs. All must be set but Remount, Killed, Watchdog and Guard.
type Config struct {
	// Files are the record's and the service's beat.
	Files Files
	// Group is the control group below which all our containers are, as a path such as /daycare.slice.
	Group Group
	// UsersDir is looked at before a lease is taken.
	UsersDir string
	// Remount is run before that; empty for nothing.
	Remount []string
	// Killed is told when nothing runs of what ran on a lease, which is given back then; nil for nobody.
	Killed func(ctx context.Context, lease int64) error
	// Watchdog is a device that resets the host unless this is done in time, such as /dev/watchdog, or a named pipe; empty for none.
	Watchdog string
	// Guard is what this program is started with to call Guard, but for the number of the fence's process, which comes last;
	// empty for none.
	Guard []string
	Log   zerolog.Logger
}

// Fence holds a host's lease.
type Fence struct {
	cfg  Config
	etcd *clientv3.Client
	rec  Record
	// orphaned is when the service was found dead, whose starts Docker may go on with.
	orphaned time.Duration
	probing  chan error // the answer of the homes, which is waited for
	watchdog *watchdog  // while it counts
}

// New makes a Fence.
func New(etcd *clientv3.Client, cfg Config) *Fence { return &Fence{cfg: cfg, etcd: etcd} }

// Run holds a lease until ctx ends, which leaves it and what runs alone: the next one goes on with it. Whenever the lease
// cannot be kept, everything is killed first. It fails at once where another Fence has these Files.
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
		f.fence(ctx, "it was started without a lease that it could go on with")
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

// take gets a new lease, once nothing of ours runs and the homes are sound.
func (f *Fence) take(ctx context.Context) error {
	beat, found := f.cfg.Files.Beat(f.rec.Boot)
	lives := found && beat.lives()
	if lives && beat.Unfit != "" {
		return errors.New(beat.Unfit)
	}
	if err := f.cfg.Group.KillAll(killLimit); err != nil {
		return err
	}
	f.disarm()
	// What Docker has still to start for an earlier lease stands still in the group, and dies there: it must not be let go.
	if lives && beat.Starting > 0 {
		return fmt.Errorf("%d containers are still being started by Docker", beat.Starting)
	}
	if f.orphaned != 0 && now()-f.orphaned < orphanedStarts {
		return errors.New("containers may still be started by Docker for a service that has ended")
	}
	if err := f.soundHomes(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, Limit)
	defer cancel()
	sent := now()
	lease, err := f.etcd.Grant(ctx, int64(TTL/time.Second))
	if err != nil {
		return fmt.Errorf("cannot get a lease from etcd: %w", err)
	}
	if err = f.arm(); err == nil { // or the group stays closed
		err = f.cfg.Group.Open()
	}
	if err != nil {
		_, _ = f.etcd.Revoke(ctx, lease.ID)
		return err
	}
	f.rec = Record{Boot: f.rec.Boot, Fence: f.rec.Fence, Count: f.rec.Count + 1, Fences: f.rec.Fences, Lease: int64(lease.ID), Sent: sent, Taken: now()}
	f.cfg.Log.Info().Int64("lease", f.rec.Lease).Msg("this host has a lease")
	return f.cfg.Files.Write(f.rec)
}

// renewal is what etcd has answered to a renewal, and when that was sent.
type renewal struct {
	sent time.Duration
	err  error
}

// keep renews the lease until it cannot be kept, and returns why. While a renewal is not answered others are sent, which go
// to other members of etcd: a member that is cut off is silent, and so is one that waits for a leader that is.
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

// renew sends one renewal, and waits for as long as its answer is of use.
func (f *Fence) renew(ctx context.Context, lease int64, sent time.Duration, answers chan<- renewal) {
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

// renewed records an answer, and returns why the lease is lost if it is.
func (f *Fence) renewed(answer renewal) string {
	switch {
	case leaseGone(answer.err):
		return "its lease has ended at etcd"
	case answer.sent <= f.rec.Sent: // one that was sent later is answered
	case answer.err != nil:
		f.cfg.Log.Warn().Err(answer.err).Dur("left", f.rec.Deadline()-now()).Msg("a renewal of the lease has failed; others are sent")
	default:
		before := f.rec.Deadline()
		f.rec.Sent = answer.sent
		err := f.cfg.Files.Write(f.rec)
		left := before - now()
		if left <= 0 {
			return "its lease was renewed too late" // whoever looked meanwhile has begun to kill
		}
		if left < Limit-2*Renew+hedge {
			f.cfg.Log.Warn().Dur("left", left).Msg("the lease was renewed late: a member of etcd is silent, or there was no leader")
		}
		if err != nil {
			f.cfg.Log.Warn().Err(err).Msg("cannot tell the service that the lease is renewed")
		}
	}
	return ""
}

// unfit says why the service cannot keep its users, although the lease could be kept.
func (f *Fence) unfit() string {
	switch beat, found := f.cfg.Files.Beat(f.rec.Boot); {
	case !found || beat.At < f.rec.Taken:
	case beat.Unfit != "":
		return beat.Unfit
	case now()-beat.At > goneLimit:
		return fmt.Sprintf("the service has been away for %s", goneLimit)
	}
	return ""
}

// fence kills all that runs, has the service stop what it does for users, and gives the lease back.
func (f *Fence) fence(ctx context.Context, reason string) {
	begun := now()
	lease := f.rec.Lease
	level := zerolog.InfoLevel // it has just begun
	if lease != 0 {
		level = zerolog.ErrorLevel
		f.rec.Fences++
	}
	f.rec.Fenced, f.rec.Lease = true, 0
	f.rec.Count++
	f.rec.Boot = bootID()
	// The record is asked for at each start, so it comes first; killing waits for nothing.
	if err := f.cfg.Files.Write(f.rec); err != nil {
		f.cfg.Log.Error().Err(err).Msg("cannot tell the service that this host is fenced off")
	}
	err := f.cfg.Group.KillAll(killLimit)
	f.quiet()
	if err = errors.Join(err, f.cfg.Group.KillAll(killLimit)); err == nil { // what the service has started until then
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
		// Or it ends by itself.
		_, _ = f.etcd.Revoke(ctx, clientv3.LeaseID(lease))
	}
}

// quiet waits until the service has said that it does nothing for users, or kills it.
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
			f.cfg.Log.Error().Int("pid", beat.PID).Msg("the service does not stop what it does for users, so it is killed")
			beat.kill()
			f.orphaned = now()
			return
		}
	}
}

// soundHomes makes sure that the homes can be used: written, renamed and read, within a bound.
func (f *Fence) soundHomes(ctx context.Context) error {
	const limit = 5 * time.Second
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if len(f.cfg.Remount) > 0 {
		if out, err := exec.CommandContext(ctx, f.cfg.Remount[0], f.cfg.Remount[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("cluster.remountCommand failed: %w: %.500s", err, out)
		}
	}
	if f.probing != nil { // an earlier one has not come back yet; each takes a thread
		select {
		case <-f.probing:
			f.probing = nil
		case <-ctx.Done():
			return homesSilent(limit)
		}
	}
	done := make(chan error, 1)
	f.probing = done
	go func() { // it may never come back, if the storage does not
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

func homesSilent(limit time.Duration) error {
	return fmt.Errorf("usersDir does not answer within %s: see to its storage", limit)
}
