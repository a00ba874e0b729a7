package sandbox

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/internal/process"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/rootfs"
	"github.com/daycare-run/sandbox/pathmap"
)

// plan is what a call gets: policy's decision made concrete for this host.
type plan struct {
	decision policy.Decision
	spec     dockerexec.Spec
	platform platform
	// home is where HOME points and homeWhy the reason; state is where tools keep what they write, and tmp where
	// TMPDIR points.
	home, homeWhy, state, tmp string
	// notice says that the working directory was missing, and was made anew; empty otherwise.
	notice string
	// mounted says that the call sees more than the home, so what it sees may be others'.
	mounted bool
}

// plan decides about a call and finds on the host what its container is made of. Directories that the call may write to
// are made, unless it is a dry run.
func (r *Resolver) plan(ctx context.Context, c *call, dryRun bool) (plan, error) {
	decision, err := r.decide(c)
	if err != nil {
		return plan{}, err
	}
	egress, err := c.egress(decision.Network)
	if err != nil {
		return plan{}, err
	}
	p := plan{decision: decision, mounted: len(c.mounts) > 1}
	if p.platform, err = r.platforms.current(ctx); err != nil {
		return plan{}, err
	}
	home, err := r.rootfs.OpenHome(ctx, c.User.String())
	if err != nil {
		return plan{}, err
	}
	defer home.Close()
	if decision.Events && !slices.Contains(p.platform.runtimes, p.platform.EventsRuntime) {
		return plan{}, fmt.Errorf("cannot grant @events: Docker does not know the runtime %q: register it (scripts/setup.sh does that), or set docker.eventsRuntime", p.platform.EventsRuntime)
	}
	if !dryRun {
		made, err := home.MakeDir(c.WorkingDir)
		if err != nil { // no command could start
			return plan{}, errs.Invalid("permissions.workingDir: cannot make %q: %v", c.WorkingDir, err)
		}
		if made {
			p.notice = fmt.Sprintf("its working directory %s was not there any more, moved or removed, and was made anew: it is empty", c.WorkingDir)
		}
	}
	if p.spec, err = home.Plan(rootfs.Request{Decision: decision, Paths: c.paths, DryRun: dryRun}); err != nil {
		return plan{}, err
	}
	accounts, err := p.platform.overrides.Accounts(p.spec.UID, p.spec.GID)
	if err != nil {
		return plan{}, err
	}
	p.spec.Platform, p.spec.Passwd, p.spec.Group, p.spec.Egress = p.platform.Platform, accounts.Passwd, accounts.Group, egress
	if p.platform.isGVisor(p.spec.Runtime()) {
		if err := checkMountCount(p.spec, c.Restrictions); err != nil {
			return plan{}, err
		}
	}
	return p, p.placeHome(c, home, dryRun)
}

// placeHome decides where HOME and TMPDIR point and where tools keep their state.
func (p *plan) placeHome(c *call, opened *rootfs.Home, dryRun bool) error {
	p.home, p.tmp = policy.Home.String(), policy.Tmp.String()
	state := policy.Tmp
	switch {
	case c.Home != "":
		path, err := c.paths.Parse(c.Home)
		if err != nil {
			return errs.Invalid("home: %v", err)
		}
		if at, ok := p.decision.View.At(path); !ok || at.Mode != policy.Writable {
			return errs.Denied("home: this call may not write to %q; ask for @workspace, or for @write: of a directory that holds it", path)
		}
		p.home, p.homeWhy, state = path.String(), "asked for", path
	case p.decision.View.HomeWritable():
		p.homeWhy, state = "the home, which this call may write to", policy.Home
	default:
		if place, found := p.cachePlace(c, opened, dryRun); found {
			p.state, p.tmp = place, place+"/tmp"
		} else {
			p.state = state.String()
		}
		p.homeWhy = "the home; this call may not write to all of it, so tools keep their state in " + p.state
		return nil
	}
	p.state = state.String()
	if dryRun || !state.Within(policy.Home) {
		return nil
	}
	if c.Home != "" {
		if _, err := opened.MakeDir(state); err != nil {
			return errs.Invalid("home: cannot make %q: %v", p.home, err)
		}
	}
	// A tool's temporary files belong to its home, too, if they can be put there.
	tmp, err := state.Resolve(homeTmp)
	if err != nil {
		return nil // its name would be too long
	}
	if at, ok := p.decision.View.At(tmp); ok && at.Mode == policy.Writable {
		if _, err := opened.MakeDir(tmp); err == nil {
			p.tmp = tmp.String()
		}
	}
	return nil
}

// cachePlace returns where tools keep their state in a call that may write only to a part of what it sees: in one of
// the directories that its tags let it write to, because /tmp is small and in memory. Whoever may write there may use it,
// too. An app's data needs no tag, and stays as the app makes it.
func (p *plan) cachePlace(c *call, opened *rootfs.Home, dryRun bool) (place string, found bool) {
	regions := slices.Clone(p.decision.View.Regions())
	slices.SortStableFunc(regions, func(a, b policy.Region) int { // what holds the working directory first
		first, second := c.WorkingDir.Within(a.Path), c.WorkingDir.Within(b.Path)
		switch {
		case first == second:
			return 0
		case first:
			return -1
		}
		return 1
	})
	for _, r := range regions {
		caches, err := r.Path.Resolve("./.cache")
		if err != nil || r.Mode != policy.Writable || !r.Granted() || r.Path.Within(policy.Tmp) {
			continue
		}
		at, ok := p.decision.View.At(caches)
		_, parted := p.decision.View.Holds(caches)
		mount, rest, err := c.paths.Locate(r.Path)
		if err == nil && ok && at.Path == r.Path && !parted && opened.MakeCaches(mount, rest, dryRun) {
			return caches.String(), true
		}
	}
	return "", false
}

// homeTmp is where TMPDIR points in a writable home.
const homeTmp = ".cache/tmp"

// makeTmpHome makes the directory that a call uses as its home, if that is in /tmp.
func makeTmpHome(ctx context.Context, r *Resolver, executor tmpOpener, p plan, token quota.Token) error {
	path, err := pathmap.ParseContainer(p.home)
	if err != nil || path == policy.Tmp || !path.Within(policy.Tmp) {
		return err
	}
	t := fileTarget{path: path}
	if err := t.openTmp(ctx, r, executor, p.spec, token, true); err != nil {
		return err
	}
	defer t.close()
	if err := t.root.Mkdir(t.name, true); err != nil {
		return errs.Invalid("home: cannot make %q: %v", p.home, err)
	}
	return nil
}

// maxMounts is how many bind mounts one call's container may have under gVisor, besides those that every
// container has. gVisor gets a descriptor for each, and does not start when their numbers reach 253, where it
// puts its stdio (google/gvisor#10232): with Docker's own mounts, that is from some 222 on.
const maxMounts = 200

// checkMountCount refuses a Spec that gVisor could not start.
func checkMountCount(spec dockerexec.Spec, given process.Restrictions) error {
	n, forLinks := rootfs.CountMounts(spec)
	if n <= maxMounts {
		return nil
	}
	var lists []string
	if len(given.DenyRead) > 0 {
		lists = append(lists, "denyRead")
	}
	if len(given.DenyWrite) > 0 {
		lists = append(lists, "denyWrite")
	}
	if len(lists) == 0 {
		lists = []string{"permissions"}
	}
	also := ""
	if forLinks > 0 {
		also = fmt.Sprintf(", %d of them for further names of hidden files", forLinks)
	}
	return errs.Invalid("%s: this call needs %d mounts%s, and gVisor starts with at most %d: where a call may write, each path that is hidden or read-only needs one for every directory above it; name fewer paths, or less deep ones",
		strings.Join(lists, " and "), n, also, maxMounts)
}
