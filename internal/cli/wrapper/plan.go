package wrapper

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/pathmap"
)

// Call is what to ask the service for: a sandbox that holds what the settings name, and a command
// in it, whose Command or Argv the caller still has to set.
type Call struct {
	Registration types.Registration
	Exec         types.Exec
	// Warnings are for the caller.
	Warnings []string
}

// Plan returns the call that settings ask for.
func (s Settings) Plan(w Where) (Call, error) {
	user, base, mounted, err := w.find()
	if err != nil {
		return Call{}, err
	}
	p := planner{where: w, shown: roots{base},
		call: Call{Registration: types.Registration{UserID: user}}}
	if mounted {
		p.mount(base)
		p.home = root{path.Join(w.UsersDir, user, "home"), insideHome}
	}
	return p.plan(s)
}

type planner struct {
	where Where
	shown roots
	// home is the user's home, which every call sees, if it is not among shown.
	home root
	call Call
}

func (p *planner) plan(s Settings) (Call, error) {
	f := s.Filesystem
	if err := errors.Join(p.allowWrite(f.AllowWrite), p.denyRead(f.DenyRead, f.AllowRead),
		p.denyWrite(f.DenyWrite)); err != nil {
		return Call{}, err
	}
	e := &p.call.Exec
	e.Cwd, _ = p.shown.inside(p.where.Cwd)
	for _, m := range p.call.Registration.Mounts {
		if !slices.Contains(e.Permissions, policy.TagWrite+m.Target) {
			p.grant(policy.TagRead, m.Target)
		}
	}
	e.AllowedDomains, e.DeniedDomains = s.Network.AllowedDomains, s.Network.DeniedDomains
	if len(e.AllowedDomains) > 0 {
		e.Permissions = append(e.Permissions, policy.TagNetwork)
		p.call.Registration.Permissions.Network = true
	}
	return p.call, nil
}

// mount adds a directory of the host. Grants say what may be done there.
func (p *planner) mount(r root) {
	p.call.Registration.Mounts = append(p.call.Registration.Mounts,
		types.Mount{Source: r.host, Target: r.inside})
}

// grant adds a path inside to what the call asks for and to what the sandbox holds.
func (p *planner) grant(tag, inside string) {
	e, held := &p.call.Exec, &p.call.Registration.Permissions
	if slices.Contains(e.Permissions, tag+inside) {
		return
	}
	e.Permissions = append(e.Permissions, tag+inside)
	if tag == policy.TagWrite {
		held.WriteDirs = append(held.WriteDirs, inside)
	} else {
		held.ReadDirs = append(held.ReadDirs, inside)
	}
}

func (p *planner) allowWrite(entries []string) error {
	const field = "filesystem.allowWrite"
	names, err := p.where.resolveAll(field, entries)
	if err != nil {
		return err
	}
	// Outer directories first: what lies in them needs no mount of its own.
	order := make([]int, len(names))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return len(names[a]) - len(names[b]) })
	for _, i := range order {
		name := names[i]
		places := p.shown.within(name)
		switch {
		case len(places) > 0:
			for _, inside := range places {
				p.grant(policy.TagWrite, inside)
			}
		case pathmap.Within(name, insideTmp):
			p.call.Warnings = append(p.call.Warnings,
				fmt.Sprintf(
					"%s[%d]: %q is not the host's: every sandbox has a /tmp of its own, which it may write to",
					field, i, entries[i]))
		case !free(name):
			return fmt.Errorf(
				"%s[%d]: %q lies outside of the working directory, and its name is taken inside: run the command in a directory that holds it",
				field, i, entries[i])
		default:
			p.shown = append(p.shown, root{name, name})
			p.mount(root{name, name})
			p.grant(policy.TagWrite, name)
		}
	}
	return nil
}

// denyRead hides what the command would see, the user's home included. What it does not see anyway
// is skipped; allowRead may give back a whole directory.
func (p *planner) denyRead(entries, allowed []string) error {
	const field = "filesystem.denyRead"
	names, err := p.where.resolveAll(field, entries)
	if err != nil {
		return err
	}
	again, err := p.where.resolveAll("filesystem.allowRead", allowed)
	if err != nil {
		return err
	}
	seen := p.shown
	if p.home != (root{}) {
		seen = append(slices.Clone(seen), p.home)
	}
	for i, name := range names {
		if _, in := seen.inside(name); in {
			for j, back := range again {
				if back != name && pathmap.Within(back, name) {
					return fmt.Errorf(
						"filesystem.allowRead[%d]: %q lies in %q, which filesystem.denyRead hides: nothing in a hidden directory can be shown; deny what else is in it instead",
						j, allowed[j], entries[i])
				}
			}
			if pathmap.Within(p.where.Cwd, name) {
				return fmt.Errorf(
					"%s[%d]: %q holds the working directory, without which the command cannot run",
					field, i, entries[i])
			}
		}
		if p.isAllowed(name, again) {
			continue
		}
		for _, one := range seen { // a part of the home may be shown twice
			switch rest, in := pathmap.CutDir(name, one.host); {
			case in && name != p.home.host:
				p.call.Exec.DenyRead = append(p.call.Exec.DenyRead, path.Join(one.inside, rest))
			case !pathmap.Within(one.host, name) || p.isAllowed(one.host, again):
			case one == p.home:
				return fmt.Errorf(
					"%s[%d]: %q holds the home of %s, which every command sees at %s: name what is to be hidden in it, or name %q in filesystem.allowRead",
					field, i, entries[i], p.call.Registration.UserID, one.inside, one.host)
			default:
				return fmt.Errorf(
					"%s[%d]: %q holds %q, which the command is to see: name that in filesystem.allowRead, or deny less",
					field, i, entries[i], one.host)
			}
		}
	}
	return nil
}

// isAllowed reports whether allowRead gives a path back, with all that is in it.
func (p *planner) isAllowed(name string, allowed []string) bool {
	return slices.ContainsFunc(allowed, func(dir string) bool { return pathmap.Within(name, dir) })
}

func (p *planner) denyWrite(entries []string) error {
	names, err := p.where.resolveAll("filesystem.denyWrite", entries)
	if err != nil {
		return err
	}
	for _, name := range names {
		p.call.Exec.DenyWrite = append(p.call.Exec.DenyWrite, p.shown.within(name)...)
	}
	return nil
}

// CommandOf returns how to run arguments. Several arguments, or a single word, are a program with
// its arguments, passed on as they are. One argument with a blank or another character that is
// special to a shell is a command line for the shell.
func CommandOf(args []string) (command string, argv []string) {
	if len(args) == 1 && strings.ContainsAny(args[0], " \t\n\"'`$&|;<>()*?[]{}~#\\!=") {
		return args[0], nil
	}
	return "", args
}
