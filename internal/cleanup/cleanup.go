// Package cleanup removes what a service has left on its host: containers with what runs in them,
// networks and their rules, files. It knows all that a service makes, and works when dataDir is
// gone.
package cleanup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/config"
	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/datadir"
	"github.com/daycare-run/sandbox/internal/egress/rules"
	"github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/hostfs"
	"github.com/daycare-run/sandbox/internal/rootfs"
)

// HeldError says that nothing was removed because a service runs.
type HeldError struct{ why string }

// Error implements error.
func (e HeldError) Error() string { return "nothing is removed: " + e.why + "; stop it first" }

// Cleanup removes what the service of a configuration has left on the host. It is used once.
type Cleanup struct {
	Config config.Config
	// Out receives a line for each thing that is removed.
	Out io.Writer
	// Data removes records, too; All also what services that do not run have left; DryRun only says
	// what would be removed.
	Data, All, DryRun bool

	// kept names what was not removed because it belongs to running services.
	kept   []string
	faults []error
	// instances are the ids of the services whose belongings are removed.
	instances map[string]bool
}

// Run removes everything, or returns a HeldError and has changed nothing. Once ctx has ended it
// removes nothing more; the next cleanup goes on from there.
func (c *Cleanup) Run(ctx context.Context) error {
	free, err := c.hold(c.Config.DataDir)
	if err != nil {
		return err
	}
	defer free()
	if conn, err := net.Dial("unix", c.Config.Listen); err == nil { // for instance, one whose dataDir has been removed
		_ = conn.Close()
		return HeldError{"a service listens at " + c.Config.Listen}
	}
	docker, err := engine.Connect(c.Config.Docker.SocketPath)
	if err != nil {
		return err
	}
	eng := engine.NewDocker(docker)
	defer eng.Close()
	belongings, err := dockerexec.Belongings(ctx, eng)
	if err != nil {
		return err
	}
	mine, free := c.choose(belongings)
	defer free()
	confined := map[string]bool{} // networks that could not be removed, whose rules must keep confining them
	for _, b := range mine {
		gone := c.remove(ctx, b.String(), func() error { return b.Remove(ctx, eng) })
		confined[b.Name] = confined[b.Name] || b.Kind == "network" && !gone
	}
	c.tables(ctx, belongings, mine, confined)
	left, err := dockerexec.Owner{DataDir: c.Config.DataDir}.ForgottenShims(ctx, eng)
	c.shims(ctx, left, err)
	c.files(ctx)
	for _, kept := range c.kept {
		c.faults = append(c.faults, errors.New(kept))
	}
	if ctx.Err() != nil {
		c.faults = append(c.faults,
			errors.New("interrupted before everything was removed: call cleanup again"))
	}
	return errors.Join(c.faults...)
}

// remove calls do, prints what was removed, and reports whether it was. In a dry run it only
// prints. Everything is removed by way of it, so that nothing more is once ctx has ended: what
// comes later relies on what comes earlier being gone.
func (c *Cleanup) remove(ctx context.Context, what string, do func() error) bool {
	if ctx.Err() != nil {
		return false
	}
	if c.DryRun {
		fmt.Fprintln(c.Out, "would remove", what)
		return true
	}
	if err := do(); err != nil {
		c.faults = append(c.faults, err)
		return false
	}
	fmt.Fprintln(c.Out, "removed", what)
	return true
}

// hold keeps services from using dir until free is called. A directory that does not exist needs no
// lock.
func (c *Cleanup) hold(dir string) (free func(), err error) {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return func() {}, nil
	}
	lock, err := datadir.Lock(dir)
	if held := (datadir.InUseError{}); errors.As(err, &held) {
		return nil, HeldError{fmt.Sprintf("a service runs (pid %s) and has dataDir %s", held.PID,
			dir)}
	}
	if err != nil {
		return nil, err
	}
	return func() { _ = lock.Close() }, nil
}

// choose returns the belongings to remove, and locks the data directories of their services until
// free is called.
func (c *Cleanup) choose(all []dockerexec.Belonging) (mine []dockerexec.Belonging, free func()) {
	own, _ := datadir.ReadInstance(c.Config.DataDir) // without an id, the service's belongings are found by the name of its dataDir
	c.instances = map[string]bool{own: true}
	defer func() {
		for _, b := range mine {
			c.instances[b.Owner.Instance] = true
		}
	}()
	var locks []func()
	may := map[string]bool{}
	for _, b := range all {
		dir := b.Owner.DataDir
		if dir == c.Config.DataDir || (own != "" && b.Owner.Instance == own) {
			mine = append(mine, b)
			continue
		}
		if !c.All {
			continue
		}
		if _, asked := may[dir]; !asked {
			free, err := c.hold(dir)
			if may[dir] = err == nil; err != nil {
				c.kept = append(c.kept, fmt.Sprintf("what belongs to dataDir %s is left: %v", dir,
					err))
			} else {
				locks = append(locks, free)
			}
		}
		if may[dir] {
			mine = append(mine, b)
		}
	}
	return mine, func() {
		for _, free := range locks {
			free()
		}
	}
}

// tables removes the rules of networks that are gone. It runs last, because the rules confine what
// is still on a network.
func (c *Cleanup) tables(ctx context.Context, all, mine []dockerexec.Belonging,
	confined map[string]bool) {
	names := []string{c.Config.Egress.Name + "-isolated", c.Config.Egress.Name + "-local"}
	for _, b := range mine {
		if b.Kind == "network" {
			names = append(names, b.Name)
		}
	}
	for _, b := range all { // networks of another service that have the names from our settings
		if b.Kind == "network" && !slices.Contains(mine, b) {
			names = slices.DeleteFunc(names, func(name string) bool { return name == b.Name })
		}
	}
	left, err := rules.Left(names)
	if err != nil {
		c.faults = append(c.faults, err)
	}
	for _, name := range left {
		if !confined[name] {
			c.remove(ctx, "the rules "+name, func() error { return rules.RemoveTables(0, name) })
		}
	}
}

// shims kills the shims of containers that Docker has forgotten.
func (c *Cleanup) shims(ctx context.Context, left []engine.Shim, err error) {
	if err != nil {
		c.faults = append(c.faults, err)
	}
	for _, s := range left {
		c.remove(ctx, fmt.Sprintf("the shim of container %.12s (pid %d)", s.Container, s.PID),
			s.Kill)
	}
}

// files removes what the service can make again and, with --data, its records.
func (c *Cleanup) files(ctx context.Context) {
	paths := []string{c.Config.Listen}
	for _, name := range []string{"agent", "image", "network", "gateway", "masks"} {
		paths = append(paths, filepath.Join(c.Config.DataDir, name))
	}
	for instance := range c.instances {
		if instance != "" {
			paths = append(paths, c.ofUsers(dockerexec.Owner{Instance: instance}.SpoolPattern())...)
		}
	}
	var trees []string // directories that containers could write to
	if c.Data {
		if !c.Config.Cluster.On() { // in a cluster they belong to the other hosts as well
			trees = c.ofUsers("processes")
		}
		for _, name := range []string{"sandboxes", "lasting", "processes", "pool", "credentials",
			"authority", "console.key", "e2b.key", "instance.damaged", "instance"} {
			paths = append(paths, filepath.Join(c.Config.DataDir, name))
		}
	}
	c.unmount(ctx)
	c.pool(ctx) // before the instance's id, without which the next cleanup could not find them
	for _, path := range paths {
		if _, err := os.Lstat(path); err == nil {
			c.remove(ctx, path, func() error { return os.RemoveAll(path) })
		}
	}
	for _, tree := range trees {
		c.remove(ctx, tree, func() error { return hostfs.RemoveTree(ctx, tree) })
	}
	if c.Data && !c.DryRun && ctx.Err() == nil { // the lock is removed last, because it keeps services out; dataDir stays if anything else is in it
		if err := os.Remove(filepath.Join(c.Config.DataDir, "lock")); err != nil &&
			!errors.Is(err, fs.ErrNotExist) {
			c.faults = append(c.faults, err)
		}
		_ = os.Remove(c.Config.DataDir)
	}
}

// pool removes the pooled homes that no user has been given. They belong to nobody and hold
// nothing but what masks are mounted on. Other services may keep their own beside them.
func (c *Cleanup) pool(ctx context.Context) {
	dir := rootfs.PoolDir(c.Config.UsersDir)
	if at, err := os.Lstat(dir); err != nil || !at.IsDir() {
		return
	}
	for _, instance := range slices.Sorted(maps.Keys(c.instances)) {
		for _, folder := range dockerexec.PoolFolders(dir, c.Config.Cluster.Name, instance) {
			c.remove(ctx, folder, func() error { return dockerexec.RemovePoolFolder(folder) })
		}
	}
	if !c.DryRun && ctx.Err() == nil {
		_ = os.Remove(dir) // fails if other services have homes there
	}
}

// ofUsers returns the service's files of this name beside the users' homes.
func (c *Cleanup) ofUsers(name string) []string {
	found, _ := filepath.Glob(filepath.Join(c.Config.UsersDir, "*", name)) // the pattern is valid
	return found
}

// unmount unmounts everything below dataDir. Only the service mounts anything there.
func (c *Cleanup) unmount(ctx context.Context) {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(c.Config.DataDir))
	if err != nil {
		c.faults = append(c.faults, fmt.Errorf("cannot look for mount points: %w", err))
	}
	slices.Reverse(mounts) // the last mount is on top
	for _, m := range mounts {
		if m.Mountpoint != c.Config.DataDir {
			c.remove(ctx, "the mount point "+m.Mountpoint, func() error {
				return unix.Unmount(m.Mountpoint, unix.MNT_DETACH)
			})
		}
	}
}
