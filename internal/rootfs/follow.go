package rootfs

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/pathmap"
)

const (
	// maxSymlinks is how many symbolic links a path may lead through, as in the kernel.
	maxSymlinks = 40
	// maxSteps bounds the components that are looked at for one path: each link's text can have
	// thousands.
	maxSteps = 1000
)

// Followed is where a path leads inside a container.
type Followed struct {
	// Path has no symbolic link in it, as far as it exists.
	Path pathmap.ContainerPath
	// Links are those that lead there, in this order.
	Links []policy.Symlink
}

// Follow resolves the symbolic links of a path as a container's kernel would that has all mounts of
// paths. What belongs to the image has no links for it. The error is of class ErrPermissionDenied
// if nobody can say where a path leads, and ErrUnavailable if a mount does not answer.
func (p *Planner) Follow(paths pathmap.Map, path pathmap.ContainerPath) (Followed, error) {
	f := follower{planner: p, paths: paths, answer: map[string]bool{}}
	if err := f.walk(path.String()); cerrdefs.IsUnavailable(err) {
		return Followed{}, err
	} else if err != nil {
		return Followed{}, errs.Denied("%q cannot be given up: %v", path, err)
	}
	at, err := pathmap.ParseContainer("/" + strings.Join(f.at, "/"))
	if err != nil {
		return Followed{}, errs.Denied("%q cannot be given up: %v", path, err)
	}
	return Followed{at, f.links}, nil
}

type follower struct {
	planner *Planner
	paths   pathmap.Map
	at      []string // the components so far, none of which is a link
	links   []policy.Symlink
	steps   int
	answer  map[string]bool // directories of the host that have answered
}

func (f *follower) walk(name string) error {
	missing := false // nothing is at f.at
	for left := strings.Split(name, "/"); len(left) > 0; {
		component := left[0]
		left = left[1:]
		switch {
		case component == "" || component == ".":
			continue
		case component == ".." && missing:
			return errors.New(
				"a symbolic link leads through something that is not there, and out of it")
		case component == "..":
			f.at = f.at[:max(len(f.at)-1, 0)]
			continue
		}
		f.at = append(slices.Clone(f.at), component)
		text, there, err := f.look()
		if err != nil {
			return err
		}
		missing = !there
		if text == "" {
			continue
		}
		if f.at = f.at[:len(f.at)-1]; strings.HasPrefix(text, "/") {
			f.at = nil
		}
		left = append(strings.Split(text, "/"), left...)
	}
	return nil
}

// look looks at what f.at names. text is that of a symbolic link.
func (f *follower) look() (text string, there bool, err error) {
	path, err := pathmap.ParseContainer("/" + strings.Join(f.at, "/"))
	if err != nil {
		return "", false, err
	}
	if f.steps++; f.steps > maxSteps {
		return "", false, fmt.Errorf("its symbolic links take more than %d steps to follow",
			maxSteps)
	}
	mount, rest, err := f.paths.Locate(path)
	if err != nil || rest == "." {
		return "", true, f.check(path)
	}
	host := f.planner.real(mount.Host)
	if err := f.ask(host, mount.Container); err != nil {
		return "", false, err
	}
	dir, err := openNoFollow(host)
	if errors.Is(err, unix.ENOENT) {
		return "", false, nil // a home that will be made
	}
	if err != nil {
		return "", false, errs.WithoutPath(err)
	}
	defer unix.Close(dir)
	parent, leaf, err := openParent(dir, rest)
	if err == nil {
		defer unix.Close(parent)
		text, err = readLink(parent, leaf)
	}
	switch {
	case errors.Is(err, unix.EINVAL): // it is no link
		return "", true, nil
	case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR):
		return "", false, nil
	case err != nil:
		return "", false, errs.WithoutPath(err)
	case text == "":
		return "", false, errors.New("a symbolic link in it has no text")
	}
	if len(f.links) == maxSymlinks {
		return "", false, errors.New("it leads through too many symbolic links")
	}
	f.links = append(f.links, policy.Symlink{Path: path, Text: text})
	return text, true, nil
}

// ask fails if a directory that is mounted does not answer.
func (f *follower) ask(host string, at pathmap.ContainerPath) error {
	if f.answer[host] {
		return nil
	}
	f.answer[host] = true
	return f.planner.questions.ask(host, "the directory that is mounted at "+at.String(), true,
		answerLimit)
}

// leadsElsewhere are the directories of the image in which links of the kernel's lead anywhere.
var leadsElsewhere = []string{"/proc", "/dev", "/sys"}

// check refuses a path of the image that may lead back into a mount.
func (f *follower) check(path pathmap.ContainerPath) error {
	for _, dir := range leadsElsewhere {
		if len(f.links) > 0 && pathmap.Within(path.String(), dir) {
			last := f.links[len(f.links)-1]
			return errors.New("the symbolic link " + last.Path.String() + " leads to " +
				path.String() + ", from where the kernel may lead anywhere: remove that link")
		}
	}
	return nil
}
