package sandbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/durable"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/pathmap"
)

// A class is what first calls have in common whose containers differ in nothing but the user, the home and the names
// that may be reached. Its key is what policy decides, so two classes that come to the same are one.

// poolClass is a first call without its user: enough to plan a container by.
type poolClass struct {
	WorkingDir string   `json:"workingDir"`
	WriteDirs  []string `json:"writeDirs,omitempty"`
	ReadDirs   []string `json:"readDirs,omitempty"`
	// Permissions are the call's tags but @network, with paths inside, and Home is where HOME points.
	Permissions []string `json:"permissions,omitempty"`
	Home        string   `json:"home,omitempty"`
	// Profile is the network's; empty for none.
	Profile string `json:"profile,omitempty"`
}

// class returns a call's class, its key, and what the call may reach. ok is false for calls that are of none: those with
// anything from outside of the home, of apps, with less to see than others, that may reach everything, or that are refused.
func (r *Resolver) class(c *call) (class poolClass, key string, egress dockerexec.Egress, ok bool) {
	if len(c.Mounts) > 0 || c.SkillsDir != "" || c.AppID != "" || len(c.subject.AppRoots) > 0 || len(c.DenyRead)+len(c.DenyWrite) > 0 {
		return class, "", egress, false
	}
	decision, err := r.decide(c)
	if err != nil || decision.Events {
		return class, "", egress, false
	}
	if egress, err = c.egress(decision.Network); err != nil || slices.Contains(egress.Domains, "*") {
		return class, "", egress, false
	}
	grants, err := policy.ParseTags(c.Permissions, c.paths)
	if err != nil {
		return class, "", egress, false
	}
	class = poolClass{
		WorkingDir: c.WorkingDir.String(), WriteDirs: texts(c.WriteDirs), ReadDirs: texts(c.ReadDirs), Profile: egress.Profile,
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
	return class, class.key(decision), egress, true
}

func texts(paths []pathmap.ContainerPath) (list []string) {
	for _, path := range paths {
		list = append(list, path.String())
	}
	return list
}

// key tells what policy has decided from all else that it could.
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
	return hex.EncodeToString(h.Sum(nil))
}

var errOtherClass = errors.New("cannot fill the pool: what policy decides about such calls has changed")

// pooledSpec plans a container of a class for a PoolUser, with a home that is made for it.
func (r *Resolver) pooledSpec(ctx context.Context, class poolClass, user, key string) (dockerexec.Spec, error) {
	box := Sandbox{User: UserID{user}}
	var faults [3]error
	box.WorkingDir, faults[0] = pathmap.ParseContainer(class.WorkingDir)
	box.WriteDirs, faults[1] = parsePaths(class.WriteDirs)
	box.ReadDirs, faults[2] = parsePaths(class.ReadDirs)
	if err := errors.Join(faults[:]...); err != nil {
		return dockerexec.Spec{}, err
	}
	c, err := r.resolve(box, Confinement{Permissions: class.Permissions, Home: class.Home})
	if err != nil {
		return dockerexec.Spec{}, err
	}
	p, err := r.plan(ctx, c, false)
	if err != nil {
		return dockerexec.Spec{}, err
	}
	if class.key(p.decision) != key {
		return dockerexec.Spec{}, errOtherClass
	}
	p.spec.Egress = dockerexec.Egress{Profile: class.Profile} // and nothing that could be reached
	return p.spec, nil
}

// maxClasses is how many classes are kept.
const maxClasses = 8

// keyedClass is a class with its key.
type keyedClass struct {
	poolClass
	key string
}

// poolClasses are the classes of the latest first calls, the latest first, also in a file.
type poolClasses struct {
	file string

	mu     sync.Mutex
	recent []keyedClass
	isNew  bool // since it was saved
}

// classesVersion is the version of their form on disk.
const classesVersion = 1

type classesRecord struct {
	Version int `json:"version"`
	Classes []struct {
		Key string `json:"key"`
		poolClass
	} `json:"classes"`
}

// readClasses reads what is in a file. What cannot be read is as if it were not there: then first calls say it again.
func readClasses(file string, log zerolog.Logger) *poolClasses {
	p := &poolClasses{file: file}
	text, err := os.ReadFile(file)
	var on classesRecord
	if err == nil {
		err = json.Unmarshal(text, &on)
	}
	if err == nil && on.Version != classesVersion {
		err = fmt.Errorf("version %d is not known", on.Version)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn().Err(err).Str("file", file).Msg("cannot read which containers the pool had; the next users' first calls say so")
		return p
	}
	for _, c := range on.Classes[:min(len(on.Classes), maxClasses)] {
		p.recent = append(p.recent, keyedClass{c.poolClass, c.Key})
	}
	return p
}

// note puts a class before all others.
func (p *poolClasses) note(key string, class poolClass) {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := slices.IndexFunc(p.recent, func(c keyedClass) bool { return c.key == key })
	if was == 0 {
		return
	}
	if was > 0 {
		p.recent = slices.Delete(p.recent, was, was+1)
	}
	p.recent = slices.Insert(p.recent, 0, keyedClass{class, key})
	p.recent = p.recent[:min(len(p.recent), maxClasses)]
	p.isNew = true
}

func (p *poolClasses) list() []keyedClass {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.recent)
}

// drop forgets a class.
func (p *poolClasses) drop(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.recent = slices.DeleteFunc(p.recent, func(c keyedClass) bool { return c.key == key })
	p.isNew = true
}

// save writes them down if they have changed.
func (p *poolClasses) save(log zerolog.Logger) {
	p.mu.Lock()
	list, isNew := slices.Clone(p.recent), p.isNew
	p.isNew = false
	p.mu.Unlock()
	if !isNew {
		return
	}
	on := classesRecord{Version: classesVersion}
	for _, c := range list {
		on.Classes = append(on.Classes, struct {
			Key string `json:"key"`
			poolClass
		}{c.key, c.poolClass})
	}
	text, err := json.Marshal(on)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(p.file), 0o700)
	}
	if err == nil {
		err = durable.WriteFile(p.file, text, 0o600)
	}
	if err != nil {
		log.Warn().Err(err).Msg("cannot write down which containers the pool has")
	}
}
