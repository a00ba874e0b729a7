package plan

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/hostfs"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/rootfs"
	"github.com/daycare-run/sandbox/pathmap"
)

// Plan is what a call gets: policy's decision made concrete for this host.
type Plan struct {
	Decided
	Spec dockerexec.Spec
	// Home is where HOME points and HomeWhy the reason.
	Home, HomeWhy string
	// Notice says that the working directory was missing, and was made anew; empty otherwise.
	Notice string

	platform Platform
	// state is where tools keep what they write, and tmp where TMPDIR points.
	state, tmp string
}

// Plan finds on the host what a call's container is made of. Directories that the call may write to
// are made, unless it is a dry run.
func (p *Planner) Plan(ctx context.Context, d Decided, dryRun bool) (Plan, error) {
	p.plans.Add(1)
	made := Plan{Decided: d}
	var err error
	if made.platform, err = p.platforms.Present(ctx); err != nil {
		return Plan{}, err
	}
	home, err := p.rootfs.OpenHome(ctx, d.User.String())
	if err != nil {
		return Plan{}, err
	}
	defer home.Close()
	if d.Decision.Events && !slices.Contains(made.platform.runtimes, made.platform.EventsRuntime) {
		return Plan{},
			fmt.Errorf("cannot grant @events: Docker does not know the runtime %q: register it (scripts/setup.sh does that), or set docker.eventsRuntime",
				made.platform.EventsRuntime)
	}
	if d.Detached && len(d.Decision.Processes) > 0 {
		return Plan{}, errs.Invalid(
			"permissions: %s%s is for calls: a process reaches no port of another; run both in one persistent sandbox, with \"in\": \"sandbox\"",
			policy.TagProcess, d.Decision.Processes[0].Name)
	}
	if !dryRun {
		anew, err := home.MakeDir(d.WorkingDir)
		if err != nil { // no command could start
			return Plan{}, errs.Invalid("permissions.workingDir: cannot make %q: %v", d.WorkingDir,
				err)
		}
		if anew {
			made.Notice = noticeAnew(d.WorkingDir)
		}
	}
	if made.Spec, err = home.Plan(
		rootfs.Request{Decision: d.Decision, Paths: d.Paths, DryRun: dryRun,
			Detached: d.Detached}); err != nil {
		return Plan{}, err
	}
	made.Spec.Reaches = d.reaches()
	accounts, err := made.platform.overrides.Accounts(made.Spec.UID, made.Spec.GID)
	if err != nil {
		return Plan{}, err
	}
	made.Spec.Platform, made.Spec.Passwd, made.Spec.Group,
		made.Spec.Egress = made.platform.Platform, accounts.Passwd, accounts.Group, d.Egress
	if err := made.addCredentials(); err != nil {
		return Plan{}, err
	}
	if made.platform.isGVisor(made.Spec.Runtime()) {
		if err := checkMountCount(made.Spec, d.Restrictions); err != nil {
			return Plan{}, err
		}
	}
	return made, made.placeHome(home, dryRun)
}

func noticeAnew(dir pathmap.ContainerPath) string {
	return fmt.Sprintf(
		"its working directory %s was not there any more, moved or removed, and was made anew: it is empty",
		dir)
}

// MakeAnew makes the directory in which a call's command has run before, if it is missing and the
// call may write there. It returns a notice of that, or nothing. A directory of /tmp is left alone,
// and what cannot be made is said by whoever starts the command there.
func (p *Planner) MakeAnew(ctx context.Context, d Decided, cwd string) (notice string) {
	dir, err := pathmap.ParseContainer(cwd)
	if err != nil {
		return ""
	}
	at, ok := d.View.At(dir)
	mount, rest, err := d.Paths.Locate(dir)
	if !ok || at.Mode != policy.Writable || dir.Within(policy.Tmp) || err != nil {
		return ""
	}
	home, err := p.rootfs.OpenHome(ctx, d.User.String())
	if err != nil {
		return ""
	}
	defer home.Close()
	if made, err := home.MakeDirIn(mount, rest); !made || err != nil {
		return ""
	}
	return noticeAnew(dir)
}

// Held identifies what the container of a process has: what its sandbox holds, and what it may reach.
func (p Plan) Held() string {
	e := p.Spec.Egress
	held := fmt.Appendf(nil, "%s %q %q %q %t", p.Call.Held(), e.Profile, e.Domains, e.Denied,
		p.Spec.Events)
	if len(e.Secrets) > 0 { // without any, as versions without them have it
		held = fmt.Appendf(held, " %q", e.Secrets)
	}
	sum := sha256.Sum256(held)
	return hex.EncodeToString(sum[:])
}

// reaches returns the processes whose ports the call reaches.
func (d Decided) reaches() (all []dockerexec.Reach) {
	for _, p := range d.Decision.Processes {
		var r dockerexec.Reach
		if p.Name != policy.AllProcesses {
			r.Name = p.Name
		}
		if p.Own {
			r.Sandbox = d.Call.ID.String()
		}
		all = append(all, r)
	}
	return all
}

// Platform returns what the container runs on.
func (p Plan) Platform() Platform { return p.platform }

// placeHome decides where HOME and TMPDIR point and where tools keep their state.
func (p *Plan) placeHome(opened *rootfs.Home, dryRun bool) error {
	p.Home, p.tmp = policy.Home.String(), policy.Tmp.String()
	scratch := p.Call.Home == "" && p.platform.isGVisor(p.Spec.Runtime())
	if scratch {
		p.tmp = scratchDir
	}
	state := policy.Tmp
	switch {
	case p.Call.Home != "":
		path, err := p.Paths.Parse(p.Call.Home)
		if err != nil {
			return errs.Invalid("home: %v", err)
		}
		if at, ok := p.Decision.View.At(path); !ok || at.Mode != policy.Writable {
			return errs.Denied(
				"home: this call may not write to %q; ask for @workspace, or for @write: of a directory that holds it",
				path)
		}
		p.Home, p.HomeWhy, state = path.String(), "asked for", path
	case p.Decision.View.HomeWritable():
		p.HomeWhy, state = "the home, which this call may write to", policy.Home
	default:
		if place, found := p.cachePlace(opened, dryRun); found {
			p.state = place
			if !scratch {
				p.tmp = place + "/tmp"
			}
		} else {
			p.state = state.String()
		}
		p.HomeWhy = "the home; this call may not write to all of it, so tools keep their state in " +
			p.state
		return nil
	}
	p.state = state.String()
	if dryRun || scratch || !state.Within(policy.Home) {
		return nil
	}
	if p.Call.Home != "" {
		if _, err := opened.MakeDir(state); err != nil {
			return errs.Invalid("home: cannot make %q: %v", p.Home, err)
		}
	}
	// A tool's temporary files belong to its home, too, if they can be put there.
	tmp, err := state.Resolve(homeTmp)
	if err != nil {
		return nil // its name would be too long
	}
	if at, ok := p.Decision.View.At(tmp); ok && at.Mode == policy.Writable {
		if _, err := opened.MakeDir(tmp); err == nil {
			p.tmp = tmp.String()
		}
	}
	return nil
}

// cachePlace returns where tools keep their state in a call that may write only to a part of what
// it sees: in one of the directories that its tags let it write to, because /tmp is small and in
// memory. Whoever may write there may use it, too. An app's data needs no tag, and stays as the app
// makes it.
func (p *Plan) cachePlace(opened *rootfs.Home, dryRun bool) (place string, found bool) {
	regions := slices.Clone(p.Decision.View.Regions())
	slices.SortStableFunc(regions, func(a, b policy.Region) int { // what holds the working directory first
		first, second := p.WorkingDir.Within(a.Path), p.WorkingDir.Within(b.Path)
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
		at, ok := p.Decision.View.At(caches)
		_, parted := p.Decision.View.Holds(caches)
		mount, rest, err := p.Paths.Locate(r.Path)
		if err == nil && ok && at.Path == r.Path && !parted &&
			opened.MakeCaches(mount, rest, dryRun) {
			return caches.String(), true
		}
	}
	return "", false
}

const (
	// homeTmp is where TMPDIR points in a writable home.
	homeTmp = ".cache/tmp"
	// scratchDir is where it points under gVisor, unless a call says where its home is: there, files
	// are the container's memory, and several times as fast as those of the home and of /tmp, each of
	// which gVisor asks the host for. No other container sees them, nor do read and write.
	scratchDir = "/var/tmp"
)

// TmpOpener finds the users' /tmp. *warm.Runner is one.
type TmpOpener interface {
	Tmp(ctx context.Context, spec dockerexec.Spec, token quota.Token, create bool) (dir string,
		release func(), err error)
}

// MakeTmpHome makes the directory that a call uses as its home, if that is in /tmp. It is there at
// least until release, which the caller calls once a container of the call's own has /tmp.
func (p *Planner) MakeTmpHome(ctx context.Context, made Plan, executor TmpOpener,
	token quota.Token) (release func(), err error) {
	path, err := pathmap.ParseContainer(made.Home)
	if err != nil || path == policy.Tmp || !path.Within(policy.Tmp) {
		return func() {}, err
	}
	root, _, release, err := p.OpenTmp(ctx, made.Spec, path, executor, token, true)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	name, _ := pathmap.CutDir(path.String(), policy.Tmp.String())
	if err := root.Mkdir(name, true); err != nil {
		release()
		return nil, errs.Invalid("home: cannot make %q: %v", made.Home, err)
	}
	return release, nil
}

// OpenTmp opens the user's /tmp, for what is at path; it exists while the user has a container;
// create makes a container on behalf of the token. The caller closes the root before it calls
// release. The error is of class NotFound if there is none.
func (p *Planner) OpenTmp(
	ctx context.Context, spec dockerexec.Spec, path pathmap.ContainerPath, executor TmpOpener,
	token quota.Token, create bool,
) (root *hostfs.Root, dir string, release func(), err error) {
	dir, release, err = executor.Tmp(ctx, spec, token, create)
	if cerrdefs.IsNotFound(err) {
		return nil, "", nil,
			errs.NotFound("%q is not there: /tmp is empty when the user's last container has gone",
				path)
	}
	if err != nil {
		return nil, "", nil, err
	}
	if root, err = p.rootfs.OpenTmp(dir, spec); err != nil {
		release()
		return nil, "", nil, errs.Redact(ctx, p.log, "cannot open /tmp", err)
	}
	return root, dir, release, nil
}

// maxMounts is how many bind mounts one call's container may have under gVisor, besides those that
// every container has. gVisor gets a descriptor for each, and does not start when their numbers
// reach 253, where it puts its stdio (google/gvisor#10232): with Docker's own mounts, that is from
// some 222 on.
const maxMounts = 200

// checkMountCount refuses a Spec that gVisor could not start.
func checkMountCount(spec dockerexec.Spec, given Restrictions) error {
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
	return errs.Invalid(
		"%s: this call needs %d mounts%s, and gVisor starts with at most %d: where a call may write, each path that is hidden or read-only needs one for every directory above it; name fewer paths, or less deep ones",
		strings.Join(lists, " and "), n, also, maxMounts)
}
