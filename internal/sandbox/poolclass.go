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
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/pathmap"
)

// A class is what first calls have in common if their containers differ only in the user, the home and the names that
// may be reached. Its key identifies what policy decides, so two classes with one decision are one class.

// poolClass is a first call without its user: enough to plan a container by.
type poolClass struct {
	WorkingDir string   `json:"workingDir"`
	WriteDirs  []string `json:"writeDirs,omitempty"`
	ReadDirs   []string `json:"readDirs,omitempty"`
	// Permissions are the call's tags but @network, with container paths, and Home is where HOME points.
	Permissions []string `json:"permissions,omitempty"`
	Home        string   `json:"home,omitempty"`
	// Profile is that of the network; empty for no network. Open means all of it.
	Profile string `json:"profile,omitempty"`
	Open    bool   `json:"open,omitempty"`
	// Lasts is for sandboxes that last, which have a Shape.
	Lasts bool         `json:"lasts,omitempty"`
	Shape lastingShape `json:"shape,omitzero"`
}

// class returns a call's class, its key, and what the call may reach. ok is false for calls without a class: those that
// see anything from outside the home, that are of apps, that see less than others, or that are refused.
func (r *Resolver) class(c *call) (class poolClass, key string, egress dockerexec.Egress, ok bool) {
	if len(c.Mounts) > 0 || c.SkillsDir != "" || c.AppID != "" || len(c.subject.AppRoots) > 0 || len(c.DenyRead)+len(c.DenyWrite) > 0 {
		return class, "", egress, false
	}
	decision, err := r.decide(c)
	if err != nil || decision.Events {
		return class, "", egress, false
	}
	if egress, err = c.egress(decision.Network); err != nil || egress.IsOpen() && c.cfg.CannotFilter != nil {
		return class, "", egress, false // on such a host, a container with an open network has it from its start
	}
	grants, err := policy.ParseTags(c.Permissions, c.paths)
	if err != nil {
		return class, "", egress, false
	}
	class = poolClass{
		WorkingDir: c.WorkingDir.String(), WriteDirs: texts(c.WriteDirs), ReadDirs: texts(c.ReadDirs), Profile: egress.Profile, Open: egress.IsOpen(),
	}
	if c.Home != "" {
		path, err := c.paths.Parse(c.Home)
		if err != nil {
			return class, "", egress, false
		}
		class.Home = path.String()
	}
	if grants.Workspace {
		class.Permissions = append(class.Permissions, policy.TagWorkspace)
	}
	for _, path := range grants.Write {
		class.Permissions = append(class.Permissions, policy.TagWrite+path.String())
	}
	for _, path := range grants.Read {
		class.Permissions = append(class.Permissions, policy.TagRead+path.String())
	}
	return class, class.key(decision), egress, class.size() <= maxClassSize
}

// lastingClass is class for a sandbox that lasts. The key includes what its container is made from: with
// another image of the same name it is another class.
func (r *Resolver) lastingClass(ctx context.Context, c *call, l lastingShape, egress dockerexec.Egress) (class poolClass, key string, ok bool) {
	class, _, _, ok = r.class(c)
	if !ok || egress.Profile != "" && c.cfg.CannotFilter != nil { // as above
		return class, "", false
	}
	class.Profile, class.Open, class.Lasts, class.Shape = egress.Profile, egress.IsOpen(), true, l
	decision, err := r.decide(c)
	if err != nil {
		return class, "", false
	}
	platform, err := r.lastingPlatform(ctx, l)
	return class, class.lastingKey(decision, platform), err == nil && class.size() <= maxClassSize
}

// lastingKey is key for a class of sandboxes that last.
func (class poolClass) lastingKey(decision policy.Decision, p platform) string {
	return class.key(decision) + " " + string(dockerexec.Spec{Platform: p.Platform, Root: class.Shape.Root}.Fingerprint())
}

// maxClassSize bounds a class, in bytes: it is kept in memory and on disk.
const maxClassSize = 16 << 10

func (class poolClass) size() (n int) {
	for _, text := range slices.Concat([]string{class.WorkingDir, class.Home, class.Shape.Image}, class.WriteDirs, class.ReadDirs, class.Permissions) {
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

var errOtherClass = errors.New("cannot fill the pool: what policy decides about such calls has changed")

// callOf returns a call of a class, for a user.
func (r *Resolver) callOf(class poolClass, user string) (*call, error) {
	box := Sandbox{User: ids.Pooled(user)}
	var faults [3]error
	box.WorkingDir, faults[0] = pathmap.ParseContainer(class.WorkingDir)
	box.WriteDirs, faults[1] = parsePaths(class.WriteDirs)
	box.ReadDirs, faults[2] = parsePaths(class.ReadDirs)
	if err := errors.Join(faults[:]...); err != nil {
		return nil, err
	}
	return r.resolve(box, Confinement{Permissions: class.Permissions, Home: class.Home})
}

// keyNow returns the present key of a class of sandboxes that last.
func (r *Resolver) keyNow(ctx context.Context, class poolClass) (string, error) {
	c, err := r.callOf(class, dockerexec.PoolUser("none"))
	if err != nil {
		return "", err
	}
	decision, err := r.decide(c)
	if err != nil {
		return "", err
	}
	platform, err := r.lastingPlatform(ctx, class.Shape)
	return class.lastingKey(decision, platform), err
}

// pooledSpec plans a container of a class for a PoolUser, with a home that is made for it.
func (r *Resolver) pooledSpec(ctx context.Context, class poolClass, user, key string) (dockerexec.Spec, error) {
	c, err := r.callOf(class, user)
	if err != nil {
		return dockerexec.Spec{}, err
	}
	p, err := r.plan(ctx, c, false)
	if err != nil {
		return dockerexec.Spec{}, err
	}
	now := class.key(p.decision)
	if class.Lasts {
		if err := r.makeLasting(ctx, &p, user, class.Shape); err != nil {
			return dockerexec.Spec{}, errors.Join(errOtherClass, err) // because a template is gone, for example
		}
		now = class.lastingKey(p.decision, p.platform)
	}
	if now != key {
		return dockerexec.Spec{}, errOtherClass
	}
	p.spec.Egress = dockerexec.Egress{Profile: class.Profile} // without names; an open one reaches nothing before it has a user
	if class.Open {
		p.spec.Egress.Domains = []string{"*"}
	}
	return p.spec, nil
}
