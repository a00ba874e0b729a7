package fence

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/rs/zerolog"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/daycare-run/sandbox/internal/cluster/etcdtest"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// group is a control group of the test's own, which only root can make.
func group(t *testing.T) Group {
	t.Helper()
	g := GroupOf(fmt.Sprintf("test%d", os.Getpid()) + strconv.Itoa(int(now()%1e9)))
	t.Cleanup(func() {
		if err := g.KillAll(10 * time.Second); err != nil {
			t.Error(err)
		}
		_ = g.Open()
		dirs, _ := g.dirs()
		for _, dir := range dirs {
			_ = filepath.WalkDir(dir, func(name string, entry os.DirEntry, err error) error {
				if err == nil && entry.IsDir() {
					defer os.Remove(name)
				}
				return nil
			})
			for _, inner := range []string{"one", ""} {
				_ = os.Remove(filepath.Join(dir, inner))
			}
		}
	})
	return g
}

// run starts a program in a group below; it must end by itself or be killed.
func (g Group) run(t *testing.T, inner, script string) *exec.Cmd {
	t.Helper()
	dirs, err := g.dirs()
	if err != nil {
		t.Fatal(err)
	}
	join := ""
	for _, dir := range dirs {
		if err := os.MkdirAll(filepath.Join(dir, inner), 0o755); err != nil {
			t.Fatalf("this test needs root and the host's control groups: %v", err)
		}
		join += "echo $$ > " + filepath.Join(dir, inner, "cgroup.procs") + "; "
	}
	cmd := exec.Command("sh", "-c", join+script)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Open(); _ = cmd.Process.Kill(); _ = cmd.Wait() }) // who is in a frozen group does not end
	return cmd
}

func TestNothingInTheGroupIsLeft(t *testing.T) {
	g, said := group(t), filepath.Join(t.TempDir(), "said")
	running := g.run(t, "one", `trap '' TERM; (while :; do sleep 7001; done) & touch `+said+`; while :; do sh -c 'sleep 7002'; done`)
	frozen := g.run(t, "one/frozen", "touch "+said+"2; sleep 7003; touch "+said+"3")
	waittest.Until(t, "both run", func() bool {
		_, err := os.Stat(said)
		_, err2 := os.Stat(said + "2")
		return err == nil && err2 == nil
	})
	dirs, _ := g.dirs()
	for _, dir := range dirs {
		if err := set(filepath.Join(dir, "one/frozen"), true); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.KillAll(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	for _, cmd := range []*exec.Cmd{running, frozen} {
		if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
			t.Errorf("%v", err)
		}
	}
	// What comes late stands still, and dies without having done anything.
	late := g.run(t, "one", "touch "+said+"4")
	waittest.Until(t, "it is in the group", func() bool {
		return slices.ContainsFunc(dirs, func(dir string) bool {
			members, _ := os.ReadFile(filepath.Join(dir, "one/cgroup.procs"))
			return slices.Contains(strings.Fields(string(members)), strconv.Itoa(late.Process.Pid))
		})
	})
	if err := exec.Command("sh", "-c", strings.Repeat("sh -c true; ", 20)).Run(); err != nil { // it has as much time as this takes
		t.Fatal(err)
	}
	if _, err := os.Stat(said + "4"); err == nil {
		t.Error("what was started after it had been killed ran")
	}
	if err := g.KillAll(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	_ = late.Wait()
	if err := g.Open(); err != nil {
		t.Fatal(err)
	}
	if err := g.run(t, "one", "touch "+said+"5").Wait(); err != nil {
		t.Errorf("after it was opened: %v", err)
	}
}

// rig is a fence and a service's side of it.
type rig struct {
	files    Files
	group    Group
	member   *Member
	joined   atomic.Int64
	fenced   atomic.Int64
	stopped  atomic.Int64
	starting atomic.Int64
	killed   atomic.Int64 // the lease of which nothing runs
	remount  []string
	watchdog string
	users    string
}

func lay(t *testing.T) *rig {
	r := &rig{files: Files{filepath.Join(t.TempDir(), "s")}, group: group(t)}
	r.member = NewMember(r.files, r.group, zerolog.Nop())
	// On a busy machine the service may take too long for the fence, and is killed: that is not to be the test.
	stand := exec.Command("sleep", "7009")
	if err := stand.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stand.Process.Kill(); _ = stand.Wait() })
	r.member.pid = stand.Process.Pid
	r.users = t.TempDir()
	return r
}

func (r *rig) fence(t *testing.T, etcd *clientv3.Client) (stop func()) {
	f := New(etcd, Config{
		Files: r.files, Group: r.group, UsersDir: r.users, Remount: r.remount, Watchdog: r.watchdog, Log: zerolog.New(zerolog.NewTestWriter(t)),
		Killed: func(_ context.Context, lease int64) error { r.killed.Store(lease); return nil },
	})
	return inBackground(t, func(ctx context.Context) { _ = f.Run(ctx) })
}

func (r *rig) serve(t *testing.T) (stop func()) {
	r.member.SetServing()
	return inBackground(t, func(ctx context.Context) { r.member.Run(ctx, served{r}) })
}

// served is a service that counts what it is told.
type served struct{ *rig }

func (s served) Fenced()              { s.fenced.Add(1) }
func (s served) Joined(lease int64)   { s.joined.Store(lease) }
func (s served) Stop(context.Context) { s.stopped.Add(1) }
func (s served) Starting() int        { return int(s.starting.Load()) }

func inBackground(t *testing.T, f func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { f(ctx) })
	stop = func() { cancel(); running.Wait() }
	t.Cleanup(stop)
	return stop
}

func TestHostWithoutLeaseRunsNothing(t *testing.T) {
	t.Parallel()
	etcd, _ := etcdtest.Start(t)
	r := lay(t)
	if err := r.member.MayStart(); !cerrdefs.IsUnavailable(err) {
		t.Errorf("without a fence: %v", err)
	}
	stop := r.fence(t, etcd)
	r.serve(t)
	waittest.Until(t, "the host has a lease", func() bool { return r.joined.Load() != 0 && r.member.MayStart() == nil })
	first := r.joined.Load()
	tenant := r.group.run(t, "one", "sleep 7004")

	// The next fence goes on with the lease.
	stop()
	r.fence(t, etcd)
	sent := r.member.Record().Sent
	waittest.Until(t, "the lease is renewed by the next fence", func() bool { return r.member.Record().Sent > sent })
	if now := r.member.Record(); now.Lease != first || now.Fences != 0 || r.stopped.Load() != 0 {
		t.Fatalf("%+v", now)
	}

	// Somebody takes it away.
	if _, err := etcd.Revoke(t.Context(), clientv3.LeaseID(first)); err != nil {
		t.Fatal(err)
	}
	if err := tenant.Wait(); err == nil {
		t.Error("it has ended by itself")
	}
	waittest.Until(t, "the service has stopped and the host has another lease", func() bool {
		return r.fenced.Load() == 1 && r.stopped.Load() == 1 && r.joined.Load() != first && r.member.MayStart() == nil
	})

	// The service says that Docker is gone.
	second := r.joined.Load()
	r.member.SetUnfit("Docker does not answer")
	waittest.Until(t, "the lease is given back", func() bool { return r.member.Record().Lease == 0 && r.stopped.Load() == 2 })
	waittest.Until(t, "it is said that nothing of it runs", func() bool { return r.killed.Load() == second })
	waittest.Until(t, "etcd has no lease", func() bool {
		all, err := etcd.Leases(t.Context())
		return err == nil && len(all.Leases) == 0
	})
	// What Docker is still starting for those times dies before there is a lease that would let it go on.
	r.starting.Store(1)
	waittest.Until(t, "the fence knows it", func() bool { beat, _ := r.files.Beat(bootID()); return beat.Starting == 1 })
	late := r.group.run(t, "one", "touch "+filepath.Join(t.TempDir(), "late")+"; sleep 7007")
	r.member.SetUnfit("")
	if err := late.Wait(); err == nil || r.member.MayStart() == nil {
		t.Errorf("it ran: %v", err)
	}
	r.starting.Store(0)
	waittest.Until(t, "the host is back", func() bool { return r.member.MayStart() == nil })
}

// What Docker was starting for a service that has been restarted is waited for.
func TestStartsOfAServiceThatIsRestarted(t *testing.T) {
	t.Parallel()
	r := lay(t)
	f := New(nil, Config{Files: r.files, Group: r.group, UsersDir: r.users, Log: zerolog.Nop()})
	f.rec.Boot = bootID()
	refused := func(by Beat, why string) {
		t.Helper()
		by.Boot, by.Started = f.rec.Boot, startOf(by.PID)
		if err := r.files.WriteBeat(by); err != nil {
			t.Fatal(err)
		}
		if err := f.take(t.Context()); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%v, not %q", err, why)
		}
	}
	before := exec.Command("sleep", "7019")
	if err := before.Start(); err != nil {
		t.Fatal(err)
	}
	refused(Beat{PID: before.Process.Pid, Starting: 1, Unfit: "Docker hangs"}, "Docker hangs")
	_ = before.Process.Kill()
	_ = before.Wait()
	for range 2 {
		refused(Beat{PID: os.Getpid()}, "for a service that has ended")
	}
}

// A host takes nobody before its homes can be used.
func TestNoLeaseWithoutHomes(t *testing.T) {
	t.Parallel()
	etcd, _ := etcdtest.Start(t)
	r := lay(t)
	mounted := filepath.Join(r.users, "mounted")
	r.users = filepath.Join(r.users, "storage")
	r.remount = []string{"sh", "-c", "echo $0 >> " + mounted + "; [ -e " + mounted + ".may ] && mkdir " + r.users + " || [ -e " + mounted + ".runs ]"}
	r.fence(t, etcd)
	tries := func() int {
		text, _ := os.ReadFile(mounted)
		return strings.Count(string(text), "\n")
	}
	waittest.Until(t, "the command is run", func() bool { return tries() > 0 })
	if err := os.WriteFile(mounted+".runs", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	failed := tries()
	waittest.Until(t, "the homes were looked at", func() bool { return tries() > failed+1 })
	if lease := r.files.Read().Lease; lease != 0 {
		t.Errorf("lease %d without homes", lease)
	}
	if err := os.WriteFile(mounted+".may", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the host has a lease", func() bool { return r.files.Read().Lease != 0 })
}

// A command that leaves something behind that has its output, such as what serves the filesystem, has ended.
func TestARemountCommandMayLeaveAProcess(t *testing.T) {
	t.Parallel()
	etcd, _ := etcdtest.Start(t)
	r := lay(t)
	said := filepath.Join(t.TempDir(), "said")
	r.remount = []string{"sh", "-c", "sleep 7017 & echo $! > " + said}
	r.fence(t, etcd)
	t.Cleanup(func() {
		if child := childOf(t, said); isDead(child) {
			t.Error("what it has left is dead")
		} else if err := syscall.Kill(child, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	})
	waittest.Until(t, "the host has a lease", func() bool { return r.files.Read().Lease != 0 })
}

// A command that does not end in time is killed, with its children.
func TestARemountCommandIsKilled(t *testing.T) {
	said := filepath.Join(t.TempDir(), "said")
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		waittest.Comes(func() bool { text, _ := os.ReadFile(said); return strings.HasSuffix(string(text), "\n") })
	}()
	if err := remount(ctx, []string{"sh", "-c", "sleep 7018 & echo $! > " + said + "; wait"}); err == nil || !strings.Contains(err.Error(), "cluster.remountCommand failed") {
		t.Errorf("%v", err)
	}
	waittest.Until(t, "its child is dead", func() bool { return isDead(childOf(t, said)) })
}

// childOf returns the process id that a script has written to a file.
func childOf(t *testing.T, file string) int {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// isDead reports whether a process has ended, whether or not its parent knows.
func isDead(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

// The service kills, too, because the fence may be dead.
func TestAServiceWithoutAFenceKillsInTime(t *testing.T) {
	t.Parallel()
	etcd, _ := etcdtest.Start(t)
	r := lay(t)
	stop := r.fence(t, etcd)
	r.serve(t)
	waittest.Until(t, "the host has a lease", func() bool { return r.member.MayStart() == nil })
	tenant := r.group.run(t, "one", "sleep 7005")
	stop()
	sent := r.member.Record().Sent
	if err := tenant.Wait(); err == nil {
		t.Error("it has ended by itself")
	}
	if late := now() - sent - Limit; late < 0 || late > TTL-Limit {
		t.Errorf("it was killed %s after the deadline", late)
	}
	waittest.Until(t, "the service has stopped", func() bool { return r.stopped.Load() == 1 })
}

// A service that stays away for longer than it takes to exchange it loses its users; one that was never there has none.
func TestAServiceThatStaysAwayLosesItsUsers(t *testing.T) {
	f := New(nil, Config{Files: Files{t.TempDir() + "/s"}})
	f.rec = Record{Boot: bootID(), Taken: now() - 2*goneLimit}
	for _, c := range []struct {
		boot  string
		away  time.Duration
		keeps bool
	}{{"another", 0, true}, {f.rec.Boot, goneLimit / 2, true}, {f.rec.Boot, goneLimit + time.Millisecond, false}, {f.rec.Boot, 3 * goneLimit, true}} {
		if err := f.cfg.Files.WriteBeat(Beat{Boot: c.boot, At: now() - c.away}); err != nil {
			t.Fatal(err)
		}
		if why := f.unfit(); (why == "") != c.keeps {
			t.Errorf("away for %s, started as %s: %q", c.away, c.boot, why)
		}
	}
}

// A service that is starting keeps its users for as long as it lives. If it ends before it takes calls, however often it is started
// again, its users stay for as long as they would without it.
func TestAServiceThatOnlyStartsLosesItsUsers(t *testing.T) {
	f := New(nil, Config{Files: Files{t.TempDir() + "/s"}})
	f.rec = Record{Boot: bootID(), Taken: now() - 3*goneLimit}
	for name, c := range map[string]struct {
		served, alive time.Duration // ago
		lives, keeps  bool
	}{
		"it starts":                            {2 * goneLimit, 0, true, true},
		"it has ended again":                   {2 * goneLimit, 0, false, false},
		"it has ended, and served a while ago": {goneLimit / 2, 0, false, true},
		"it hangs":                             {2 * goneLimit, goneLimit + time.Millisecond, true, false},
		"none has served on this lease":        {4 * goneLimit, 0, false, true},
	} {
		beat := Beat{Boot: f.rec.Boot, At: now() - c.served, Alive: now() - c.alive}
		if c.lives {
			beat.PID, beat.Started = os.Getpid(), startOf(os.Getpid())
		}
		if err := f.cfg.Files.WriteBeat(beat); err != nil {
			t.Fatal(err)
		}
		if why := f.unfit(); (why == "") != c.keeps {
			t.Errorf("%s: %q", name, why)
		}
	}
}

// A service that does not take calls yet is no reason to keep users, and gets none.
func TestAServiceJoinsWhenItServes(t *testing.T) {
	files := Files{filepath.Join(t.TempDir(), "s")}
	earlier := Beat{Boot: bootID(), At: now() - goneLimit/2}
	if err := errors.Join(files.WriteBeat(earlier), files.Write(Record{Boot: earlier.Boot, Lease: 7, Sent: now() + time.Hour})); err != nil {
		t.Fatal(err)
	}
	r := &rig{files: files, member: NewMember(files, "", zerolog.Nop())}
	background := func() (stop func()) {
		return inBackground(t, func(ctx context.Context) { r.member.Run(ctx, served{r}) })
	}
	stop := background()
	waittest.Until(t, "the fence knows it", func() bool { beat, _ := files.Beat(earlier.Boot); return beat.lives() })
	stop()
	if beat, _ := files.Beat(earlier.Boot); beat.At != earlier.At || beat.Alive <= earlier.At || r.joined.Load() != 0 {
		t.Errorf("it starts, and has joined with lease %d: %+v", r.joined.Load(), beat)
	}
	r.member.SetServing()
	background()
	waittest.Until(t, "it has joined", func() bool { return r.joined.Load() == 7 })
	waittest.Until(t, "the fence knows that it serves", func() bool { beat, _ := files.Beat(earlier.Boot); return beat.At > earlier.At })
}

// A service that hangs is killed by the fence.
func TestAServiceThatHangsIsKilled(t *testing.T) {
	t.Parallel()
	etcd, _ := etcdtest.Start(t)
	r := lay(t)
	r.fence(t, etcd)
	waittest.Until(t, "the host has a lease", func() bool { return r.files.Read().Lease != 0 })
	service := exec.Command("sleep", "7006")
	if err := service.Start(); err != nil {
		t.Fatal(err)
	}
	beat := Beat{Boot: bootID(), At: now(), PID: service.Process.Pid, Started: startOf(service.Process.Pid), Unfit: "it is to go"}
	if err := r.files.WriteBeat(beat); err != nil {
		t.Fatal(err)
	}
	if err := service.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("%v", err)
	}
}

// While etcd has no majority, what runs goes on for as long as the lease was good for, and no longer.
func TestWithoutAMajorityUsersGoOnUntilTheDeadline(t *testing.T) {
	t.Parallel()
	etcd, _, signal := etcdtest.StartMembers(t, 3)
	r := lay(t)
	r.fence(t, etcd)
	r.serve(t)
	waittest.Until(t, "the host has a lease", func() bool { return r.joined.Load() != 0 && r.member.MayStart() == nil })
	tenant := r.group.run(t, "one", "sleep 7008")
	signal(0, syscall.SIGKILL)
	sent := r.member.Record().Sent
	waittest.Until(t, "it is renewed by two of three", func() bool { return r.member.Record().Sent > sent+Renew/2 })
	signal(1, syscall.SIGKILL)
	if err := tenant.Wait(); err == nil {
		t.Error("it has ended by itself")
	}
	ended := now()
	waittest.Until(t, "nothing may start", func() bool { return r.stopped.Load() == 1 && cerrdefs.IsUnavailable(r.member.MayStart()) })
	// Fenced off, it keeps when the renewal was sent that was answered last.
	if went := ended - r.member.Record().Sent; went < Limit-Renew/10 || went > TTL {
		t.Errorf("it went on for %s after the last renewal", went)
	}
}
