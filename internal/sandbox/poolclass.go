package sandbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/internal/registry"
	"github.com/daycare-run/sandbox/pathmap"
)

// A class is what first calls have in common if their containers differ only in the user, the home
// and the names that may be reached. Its key identifies what policy decides, so two classes with
// one decision are one class.

// poolClass is a first call without its user: enough to plan a container by.
type poolClass struct {
	WorkingDir string   `json:"workingDir"`
	WriteDirs  []string `json:"writeDirs,omitempty"`
	ReadDirs   []string `json:"readDirs,omitempty"`
	// Permissions are the call's tags but @network, with container paths, and Home is where HOME
	// points.
	Permissions []string `json:"permissions,omitempty"`
	Home        string   `json:"home,omitempty"`
	// Profile is that of the network; empty for no network. Open means all of it.
	Profile string `json:"profile,omitempty"`
	Open    bool   `json:"open,omitempty"`
	// Persistent is for persistent sandboxes, which have a Shape.
	Persistent bool       `json:"lasts,omitempty"`
	Shape      plan.Shape `json:"shape,omitzero"`
}

// keyedClass is a class with its key.
type keyedClass struct {
	poolClass
	key string
}

// classOf returns the class of a call, or of a persistent sandbox if shape is not nil. ok is false
// for those without a class: they see anything from outside the home, are of apps, see less than others,
// or have credentials; or no more are made in that shape.
func (p *Pool) classOf(ctx context.Context, c plan.Decided,
	shape *plan.Shape) (class keyedClass, ok bool) {
	if len(c.Mounts) > 0 || c.SkillsDir != "" || c.AppID != "" || len(c.Subject.AppRoots) > 0 ||
		len(c.DenyRead)+len(c.DenyWrite) > 0 || c.Decision.Events ||
		len(c.Decision.Processes)+len(c.Decision.Secrets) > 0 {
		return class, false
	}
	if c.Egress.Profile != "" && c.CannotFilter() {
		return class, false // on such a host, a container with a network has it from its start
	}
	class.poolClass = poolClass{
		WorkingDir: c.WorkingDir.String(), WriteDirs: texts(c.WriteDirs),
		ReadDirs: texts(c.ReadDirs), Profile: c.Egress.Profile, Open: c.Egress.IsOpen(),
	}
	if c.Call.Home != "" {
		path, err := c.Paths.Parse(c.Call.Home)
		if err != nil {
			return class, false
		}
		class.Home = path.String()
	}
	if c.Grants.Workspace {
		class.Permissions = append(class.Permissions, policy.TagWorkspace)
	}
	for _, path := range c.Grants.Write {
		class.Permissions = append(class.Permissions, policy.TagWrite+path.String())
	}
	for _, path := range c.Grants.Read {
		class.Permissions = append(class.Permissions, policy.TagRead+path.String())
	}
	if shape != nil {
		if class.Persistent, class.Shape = true, *shape; !p.cfg.Load().has(*shape) {
			return class, false
		}
	}
	var err error
	class.key, err = p.keyOf(ctx, class.poolClass, c.Decision)
	return class, err == nil && class.size() <= maxClassSize
}

// keyOf returns the key of a class that policy has decided about. That of persistent sandboxes
// includes what their containers are made from: with another image of the same name they are
// another class.
func (p *Pool) keyOf(ctx context.Context, class poolClass,
	decision policy.Decision) (string, error) {
	if !class.Persistent {
		return class.key(decision), nil
	}
	platform, err := p.planner.PersistentPlatform(ctx, class.Shape)
	return class.persistentKey(decision, platform), err
}

// persistentKey is key for a class of persistent sandboxes.
func (class poolClass) persistentKey(decision policy.Decision, p plan.Platform) string {
	return class.key(decision) + " " +
		string(dockerexec.Spec{Platform: p.Platform, Root: class.Shape.Root}.Fingerprint())
}

// maxClassSize bounds a class, in bytes: it is kept in memory and on disk.
const maxClassSize = 16 << 10

func (class poolClass) size() (n int) {
	for _, text := range slices.Concat([]string{class.WorkingDir, class.Home, class.Shape.Image},
		class.WriteDirs, class.ReadDirs, class.Permissions) {
		n += len(text)
	}
	return n
}

func texts(paths []pathmap.ContainerPath) (list []string) {
	for _, path := range paths {
		list = append(list, path.String())
	}
	return list
}

// key identifies what policy has decided.
func (class poolClass) key(decision policy.Decision) string {
	h := sha256.New()
	for _, text := range []string{class.WorkingDir, class.Home, class.Profile} {
		fmt.Fprintf(h, "%q ", text)
	}
	for _, region := range decision.View.Regions() {
		fmt.Fprintf(h, "%q %d %t ", region.Path, region.Mode, region.File)
	}
	for _, pin := range decision.View.Pinned() {
		fmt.Fprintf(h, "%q ", pin)
	}
	if class.Open {
		fmt.Fprint(h, "open ")
	}
	return hex.EncodeToString(h.Sum(nil))
}

var errOtherClass = errors.New(
	"cannot fill the pool: what policy decides about such calls has changed")

// decide decides about a call of a class, for a user.
func (p *Pool) decide(class poolClass, user string) (plan.Decided, error) {
	box := registry.Sandbox{User: ids.Pooled(user)}
	var faults [3]error
	box.WorkingDir, faults[0] = pathmap.ParseContainer(class.WorkingDir)
	box.WriteDirs, faults[1] = registry.ParsePaths(class.WriteDirs)
	box.ReadDirs, faults[2] = registry.ParsePaths(class.ReadDirs)
	if err := errors.Join(faults[:]...); err != nil {
		return plan.Decided{}, err
	}
	c, err := p.planner.Resolve(box,
		plan.Confinement{Permissions: class.Permissions, Home: class.Home})
	if err != nil {
		return plan.Decided{}, err
	}
	return p.planner.DecideView(c)
}

// keyNow returns the present key of a class of persistent sandboxes.
func (p *Pool) keyNow(ctx context.Context, class poolClass) (string, error) {
	c, err := p.decide(class, dockerexec.PoolUser("none"))
	if err != nil {
		return "", err
	}
	return p.keyOf(ctx, class, c.Decision)
}

// pooledSpec plans a container of a class for a PoolUser, with a home that is made for it.
func (p *Pool) pooledSpec(ctx context.Context, class keyedClass,
	user string) (dockerexec.Spec, error) {
	c, err := p.decide(class.poolClass, user)
	if err != nil {
		return dockerexec.Spec{}, err
	}
	if _, err := p.planner.Platforms().Present(ctx); err != nil {
		return dockerexec.Spec{}, err
	}
	if key, err := p.keyOf(ctx, class.poolClass, c.Decision); err != nil || key != class.key {
		return dockerexec.Spec{}, errors.Join(errOtherClass, err) // because a template is gone, for example
	}
	c.Egress = dockerexec.Egress{Profile: class.Profile} // without names; an open one reaches nothing before it has a user
	if class.Open {
		c.Egress.Domains = []string{"*"}
	}
	var made plan.Plan
	if class.Persistent {
		made, err = p.planner.PlanPersistent(ctx, c, user, class.Shape)
	} else {
		made, err = p.planner.Plan(ctx, c, false)
	}
	return made.Spec, err
}
