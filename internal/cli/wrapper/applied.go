package wrapper

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/pathmap"
)

// Applied is the sandbox.json of a durable process: what its container was made from. It is read to
// give another command what the process was granted.
type Applied struct {
	User   string         `json:"user"`
	Events bool           `json:"events"`
	Mounts []appliedMount `json:"mounts"`
	Masks  []struct {
		Target   string `json:"target"`
		Listable bool   `json:"listable"`
		Vacant   bool   `json:"vacant"`
	} `json:"masks"`
	Egress struct {
		Profile string   `json:"profile"`
		Domains []string `json:"domains"`
		Denied  []string `json:"denied"`
	} `json:"egress"`
}

type appliedMount struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"readOnly"`
}

// IsApplied reports whether a file is a sandbox.json; a settings file has no user.
func IsApplied(text []byte) bool {
	var it struct {
		Platform *struct{} `json:"platform"`
		User     string    `json:"user"`
	}
	return json.Unmarshal(text, &it) == nil && it.Platform != nil && it.User != ""
}

// ParseApplied reads a sandbox.json.
func ParseApplied(text []byte) (Applied, error) {
	var a Applied
	if err := json.Unmarshal(text, &a); err != nil {
		return a, err
	}
	if a.User == "" || len(a.Mounts) == 0 {
		return a, errors.New("it has no user, or no mounts")
	}
	return a, nil
}

// insideSkills and insideEvents are mounts that need more than their paths.
const (
	insideSkills = "/shared/skills"
	insideEvents = "/run/daycare/control.sock"
)

// Plan returns a call with what the process was granted. denied are the paths in a home that every
// call is denied, so the call need not name them.
func (a Applied) Plan(w Where, denied []string) (Call, error) {
	if w.User != "" && w.User != a.User {
		return Call{}, fmt.Errorf("--user %s: the process belongs to %s: leave --user out", w.User,
			a.User)
	}
	p := planner{where: w, call: Call{Registration: types.Registration{UserID: a.User}}}
	a.mounts(&p)
	cwd, ok := p.shown.inside(w.Cwd)
	if !ok {
		return Call{},
			fmt.Errorf("the working directory is in no place that the process sees: run the command in the home of %s, or in one of its mounts",
				a.User)
	}
	e := &p.call.Exec
	e.Cwd = cwd
	for _, m := range a.Masks {
		switch {
		case m.Vacant:
			e.DenyWrite = append(e.DenyWrite, m.Target)
		case m.Listable && a.mountsIn(m.Target):
			return Call{},
				errors.New("the process belongs to an app, which a settings file cannot name: use sandbox exec --sandbox")
		case m.Listable || !p.shown.shows(m.Target) || isDenied(m.Target, denied):
			// Every call has these. What no mount shows is on the deny list: a process cannot be
			// denied a part of /tmp or of the image.
		default:
			e.DenyRead = append(e.DenyRead, m.Target)
		}
	}
	if a.Events {
		e.Permissions = append(e.Permissions, policy.TagEvents)
		p.call.Registration.Permissions.Events = true
	}
	if a.Egress.Profile != "" {
		e.Permissions = append(e.Permissions, policy.TagNetwork)
		p.call.Registration.Permissions.Network = true
		e.AllowedDomains, e.DeniedDomains = a.Egress.Domains, a.Egress.Denied
	}
	return p.call, nil
}

// mounts turns mounts into grants. A mount in another one is handled after it, and adds only what
// differs.
func (a Applied) mounts(p *planner) {
	sorted := slices.Clone(a.Mounts)
	slices.SortFunc(sorted, func(x, y appliedMount) int { return len(x.Target) - len(y.Target) })
	for _, m := range sorted {
		inHome := pathmap.Within(m.Target, insideHome)
		inside := p.shown.shows(m.Target)
		switch {
		case m.Target == insideEvents:
			continue
		case m.Target == insideSkills:
			p.call.Registration.SkillsDir = m.Source
			p.shown = append(p.shown, root{m.Source, m.Target})
			continue
		case !inside:
			p.shown = append(p.shown, root{m.Source, m.Target})
			if !inHome {
				p.mount(root{m.Source, m.Target})
			}
		}
		switch {
		case !m.ReadOnly:
			p.grant(policy.TagWrite, m.Target)
		case inside && p.writes(path.Dir(m.Target)):
			p.call.Exec.DenyWrite = append(p.call.Exec.DenyWrite, m.Target)
		case !inHome:
			p.grant(policy.TagRead, m.Target)
		}
	}
}

// writes reports whether the call may write to a place.
func (p *planner) writes(inside string) bool {
	return slices.ContainsFunc(p.call.Registration.Permissions.WriteDirs, func(dir string) bool {
		return pathmap.Within(inside, dir)
	})
}

func (a Applied) mountsIn(dir string) bool {
	return slices.ContainsFunc(a.Mounts, func(m appliedMount) bool {
		return pathmap.Within(m.Target, dir)
	})
}

// shows reports whether a path inside shows a path of the host.
func (r roots) shows(inside string) bool {
	return slices.ContainsFunc(r, func(one root) bool { return pathmap.Within(inside, one.inside) })
}

func isDenied(inside string, denied []string) bool {
	return slices.ContainsFunc(denied, func(name string) bool {
		return inside == path.Join(insideHome, name)
	})
}
