package sandbox

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/pathmap"
)

// EventsPath is where a call with @events finds the engine's control socket.
const EventsPath = "/run/daycare/control.sock"

// plan is what a call gets: policy's decision made concrete for this host.
type plan struct {
	decision policy.Decision
	spec     dockerexec.Spec
	platform platform
	// home is where HOME points and homeWhy the reason; state is where tools keep what they write, and tmp where
	// TMPDIR points.
	home, homeWhy, state, tmp string
}

// ask is the part of a call that decides about its container.
type ask struct {
	tags []string
	home string
	// domains and managers are what it wants to reach.
	domains, managers []string
	less              Restrictions
	// look leaves everything as it is: directories that the call may write to are not made.
	look bool
}

// plan decides about a call and finds on the host what its container is made of. Directories that the
// call may write to are made.
func (s *Service) plan(ctx context.Context, box Sandbox, a ask) (plan, error) {
	paths, err := s.paths(box)
	if err != nil {
		return plan{}, err
	}
	grants, err := policy.ParseTags(a.tags, paths)
	if err != nil {
		return plan{}, err
	}
	subject := s.subject(box)
	decision, err := subject.Decide(grants)
	if err != nil {
		return plan{}, err
	}
	if decision.View, err = s.restrict(box, paths, decision.View, a.less); err != nil {
		return plan{}, err
	}
	reach, err := s.egress(box, decision.Network, a)
	if err != nil {
		return plan{}, err
	}
	p := plan{decision: decision}
	if p.platform, err = s.platforms.current(ctx); err != nil {
		return plan{}, err
	}
	h, err := s.openHome(ctx, box.User)
	if err != nil {
		return plan{}, err
	}
	defer h.close()
	if decision.Events && !slices.Contains(p.platform.runtimes, p.platform.EventsRuntime) {
		return plan{}, fmt.Errorf("cannot grant @events: the engine does not know the runtime %q: register it (scripts/setup.sh does that), or set docker.eventsRuntime", p.platform.EventsRuntime)
	}
	if !a.look {
		if err := h.makeWorkingDir(paths, box); err != nil {
			return plan{}, err
		}
	}
	b := builder{
		service: s, paths: paths, home: h, look: a.look, secrets: map[pathmap.Mount][]string{},
	}
	if p.spec, err = b.spec(box, p.platform, decision); err != nil {
		return plan{}, err
	}
	if p.platform.gvisor(decision.Events) {
		if err := checkBinds(p.spec, a.less); err != nil {
			return plan{}, err
		}
	}
	p.spec.Egress = reach
	err = b.settle(&p, paths, a.home)
	return p, err
}

// makeWorkingDir makes a working directory that is not there, so that commands can start.
func (h *home) makeWorkingDir(paths pathmap.Map, box Sandbox) error {
	_, rest, err := paths.Locate(box.WorkingDir)
	if err != nil || rest == "." {
		return err
	}
	if err := h.makeDir(rest); err != nil {
		return errs.Invalid("permissions.workingDir: cannot make %q: %v", box.WorkingDir, err)
	}
	return nil
}

// builder puts a Spec together.
type builder struct {
	service *Service
	paths   pathmap.Map
	home    *home
	look    bool
	// secrets are, by the mount that they are in, paths below it at which there is something to hide.
	secrets map[pathmap.Mount][]string
}

func (b *builder) spec(box Sandbox, platform platform, d policy.Decision) (dockerexec.Spec, error) {
	accounts, err := platform.outfit.Accounts(b.home.uid, b.home.gid)
	if err != nil {
		return dockerexec.Spec{}, err
	}
	spec := dockerexec.Spec{
		Platform: platform.Platform,
		User:     box.User.id,
		UID:      b.home.uid,
		GID:      b.home.gid,
		Passwd:   accounts.Passwd,
		Group:    accounts.Group,
		SpoolDir: filepath.Dir(b.home.dir),
		Events:   d.Events,
	}
	for _, r := range d.View.Regions() {
		if err := b.region(&spec, d.View, r); err != nil {
			return spec, err
		}
	}
	for _, pin := range d.View.Pinned() {
		if at, rest, err := b.paths.Locate(pin); err == nil {
			spec.Pins = append(spec.Pins, dockerexec.Pin{Place: b.place(at, rest), Target: pin.String()})
		}
	}
	for at, hidden := range b.secrets {
		if err := b.links(&spec, at, hidden); err != nil {
			return spec, err
		}
	}
	if d.Events {
		return spec, b.events(&spec)
	}
	return spec, nil
}

// region adds what a region is in the container.
func (b *builder) region(spec *dockerexec.Spec, v policy.View, r policy.Region) error {
	if !utf8.ValidString(r.Path.String()) {
		return errs.Invalid("%q is not UTF-8, and the engine mounts no such path", r.Path)
	}
	switch {
	case r.Path == policy.Tmp:
		return nil // every container has it
	case r.Mode == policy.ReadOnly && b.vacant(v, r, spec):
		return nil
	case r.Mode >= policy.ReadOnly:
		mount, err := b.mount(r)
		spec.Mounts = append(spec.Mounts, mount)
		return err
	default:
		mask, err := b.mask(v, r)
		spec.Masks = append(spec.Masks, mask)
		return err
	}
}

// mount finds what is to be mounted for a region. What may be written to is made if it is not there.
func (b *builder) mount(r policy.Region) (dockerexec.Mount, error) {
	m := dockerexec.Mount{Target: r.Path.String(), ReadOnly: r.Mode != policy.Writable}
	at, rest, err := b.paths.Locate(r.Path)
	if err != nil {
		return m, err
	}
	m.Source = filepath.Join(b.service.real(at.Host), rest)
	if at.Container == policy.Home && rest == "." {
		m.ID = b.home.id
		return m, nil
	}
	if why := b.service.keptFrom(at.Host); why != "" && at.Container != policy.Home { // a record may be older than a setting
		return m, errs.Denied("cannot mount %q: %s", r.Path, why)
	}
	m.Verify = true
	it, err := b.identify(at, rest)
	if errors.Is(err, unix.ENOENT) && at.Container == policy.Home && !b.look {
		// Also what is only read: an app's directory is there from the start.
		if err := b.home.makeDir(rest); err != nil {
			return m, errs.Invalid("cannot grant %q: %v", r.Path, err)
		}
		it, err = b.identify(at, rest)
	}
	kind := it.mode & unix.S_IFMT
	switch {
	case errors.Is(err, unix.ENOENT) && b.look:
	case errors.Is(err, unix.ENOENT):
		return m, errs.NotFound("cannot grant %q: it is not there", r.Path)
	case errors.Is(err, unix.ELOOP):
		return m, errs.Denied("cannot mount %q: it is, or is behind, a symbolic link", r.Path)
	case err != nil:
		return m, errs.Invalid("cannot grant %q: %v", r.Path, err)
	case kind != unix.S_IFDIR && kind != unix.S_IFREG:
		return m, errs.Invalid("cannot grant %q: it is neither a directory nor a file", r.Path)
	}
	m.ID = it.id
	return m, nil
}

// identify says which file is to be mounted.
func (b *builder) identify(at pathmap.Mount, rest string) (identified, error) {
	if at.Container != policy.Home {
		return identifyExactly(filepath.Join(b.service.real(at.Host), rest))
	}
	fd, err := beneath(b.home.fd, rest, unix.O_PATH)
	if err != nil {
		return identified{}, err
	}
	defer unix.Close(fd)
	return identifyOpen(fd)
}

// events adds the engine's control socket.
func (b *builder) events(spec *dockerexec.Spec) error {
	socket := b.service.cfg().EventsSocket
	if socket == "" {
		return errs.Denied("permissions: @events is not available: the operator has set no eventsSocket")
	}
	it, err := identify(socket)
	if err != nil {
		return errs.NotFound("permissions: @events: the engine's control socket is not there: %v", pathless(err))
	}
	spec.Mounts = append(spec.Mounts, dockerexec.Mount{Source: socket, Target: EventsPath, ReadOnly: true, ID: it.id})
	return nil
}

// settle decides where HOME and TMPDIR point and where tools keep their state.
func (b *builder) settle(p *plan, paths pathmap.Map, asked string) error {
	p.home, p.homeWhy = policy.Home.String(), "the home; this call may not write to all of it, so tools keep their state in /tmp"
	p.state, p.tmp = policy.Tmp.String(), policy.Tmp.String()
	switch {
	case asked != "":
		path, err := paths.Parse(asked)
		if err != nil {
			return errs.Invalid("home: %v", err)
		}
		at, ok := p.decision.View.At(path)
		if !ok || at.Mode != policy.Writable {
			return errs.Denied("home: this call may not write to %q; ask for @workspace, or for @write: of a directory that holds it", path)
		}
		p.home, p.homeWhy, p.state = path.String(), "asked for", path.String()
	case p.decision.View.HomeWritable():
		p.homeWhy, p.state = "the home, which this call may write to", p.home
	}
	home, err := pathmap.ParseContainer(p.state)
	if err != nil {
		return err
	}
	if at, rest, err := b.paths.Locate(home); err == nil && at.Container == policy.Home && !b.look {
		// What a tool keeps for the moment belongs to its home, too, if it can be put there.
		if asked != "" {
			if err := b.home.makeDir(rest); err != nil {
				return errs.Invalid("home: cannot make %q: %v", p.home, err)
			}
		}
		tmp, err := home.Resolve(homeTmp)
		if err != nil {
			return nil // too long a name for it
		}
		if at, ok := p.decision.View.At(tmp); ok && at.Mode == policy.Writable && b.home.makeDir(filepath.Join(rest, homeTmp)) == nil {
			p.tmp = tmp.String()
		}
	}
	return nil
}

// homeTmp is where TMPDIR points in a home that can be written.
const homeTmp = ".cache/tmp"

// gvisor reports whether the runtime of a call is gVisor, which does not start with too many mounts.
func (p platform) gvisor(events bool) bool {
	runtime := p.Runtime
	if events {
		runtime = p.EventsRuntime
	}
	return slices.Contains(p.gvisors, runtime)
}
