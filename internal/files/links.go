package files

import (
	"path"
	"slices"
	"strings"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/pathmap"
)

const (
	// maxLinks is how many symbolic links are followed for one path, as in Linux.
	maxLinks = 40
	// maxWalked bounds the components that are looked at for one path: a link with many ".." has
	// the same ones looked at again and again.
	maxWalked = 10_000
)

// followLinks replaces the symbolic links in the target's path by what they lead to, and opens the
// root of where that ends. A link's text is a path inside, like one that a caller writes: the view
// decides about each path before anything is looked at there, and about the last one before the
// call. The call then opens that very path and follows nothing; if a link has come into it
// meanwhile, it fails. So there is nothing to win by exchanging something in between.
func (t *fileTarget) followLinks(check accessCheck, open func() error) error {
	done, rest := "/", parts(t.path.String()) // done has no links
	byTmp := false
	for links, walked := 0, 0; ; {
		var step []string
		if step, rest = beforeUp(rest); len(step) == 0 && len(rest) > 0 {
			done, rest = path.Dir(done), rest[1:]
			continue
		}
		var err error
		if t.path, err = policy.Home.ResolveName(path.Join(done, path.Join(step...))); err != nil {
			return err
		}
		if walked += len(parts(t.path.String())); walked > maxWalked {
			return errs.Denied("cannot %s %q: its links take more than %d steps to follow",
				check.doing, display(t.asked), maxWalked)
		}
		link, text, err := t.nextLink(check, open)
		isLast := link == t.path.String() && len(rest) == 0
		switch {
		case err != nil:
			return err
		case link == "" && len(rest) == 0, isLast && check.last == takeLink:
			return t.allowLed(check, byTmp)
		case link == "":
			done = t.path.String()
			continue
		case isLast && check.last == refuseLink:
			return t.refuse(link, text, check)
		}
		if links++; links > maxLinks {
			return errs.Denied("cannot %s %q: there are more than %d symbolic links on the way",
				check.doing, display(t.asked), maxLinks)
		}
		byTmp = byTmp || pathmap.Within(link, policy.Tmp.String())
		rest = slices.Concat(parts(text), parts(t.path.String()[len(link):]), rest)
		if done = path.Dir(link); text[0] == '/' {
			done = "/"
		}
	}
}

// nextLink returns the first symbolic link in the target's path, as a path inside, and its text, if
// the view shows them. It opens the path's root.
func (t *fileTarget) nextLink(check accessCheck, open func() error) (link, text string, err error) {
	if t.allow(accessCheck{doing: check.doing, mode: policy.ReadOnly}) != nil {
		return "", "", t.allow(check) // which fails, too, and says what was asked for
	}
	if err := open(); err != nil {
		return "", "", err
	}
	if link, text, err = t.root.FirstLink(t.name); err != nil || link == "" {
		return "", "", t.failed(check.doing, err)
	}
	at, err := t.base.ResolveName(link)
	if err != nil {
		return "", "", err
	}
	if place, ok := t.view.At(at); !ok || place.Mode < policy.ReadOnly {
		return "", "", errs.Denied("cannot %s %s: %s", check.doing, t.shown(), place.Why)
	}
	return at.String(), text, nil
}

// allowLed is allow for where links lead. Those in /tmp lead no writes out of it: a command that
// was granted nothing can make them, and would choose what its caller's next call changes.
func (t *fileTarget) allowLed(check accessCheck, byTmp bool) error {
	if err := t.allow(check); err != nil || !byTmp || check.mode < policy.Writable ||
		t.path.Within(policy.Tmp) {
		return err
	}
	return errs.Denied(
		"cannot %s %s: a symbolic link in /tmp, where every call may write, leads there; name that path",
		check.doing, t.shown())
}

// refuse says that the path ends with a link, and where that leads.
func (t *fileTarget) refuse(link, text string, check accessCheck) error {
	to := text
	if text[0] != '/' {
		to = path.Join(path.Dir(link), text)
	}
	if inside, err := policy.Home.ResolveName(to); err == nil {
		to = display(inside)
	}
	return errs.Denied("cannot %s %s: it is a symbolic link to %q; name that, or set follow",
		check.doing, t.shown(), to)
}

// parts returns the components of a path, without those that say nothing.
func parts(name string) []string {
	return slices.DeleteFunc(strings.Split(name, "/"), func(part string) bool {
		return part == "" || part == "."
	})
}

// beforeUp returns the components before the first "..", and the rest.
func beforeUp(names []string) (before, rest []string) {
	if i := slices.Index(names, ".."); i >= 0 {
		return names[:i], names[i:]
	}
	return names, nil
}
