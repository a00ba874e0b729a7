package mounts

import (
	"context"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/pathmap"
)

// A runtime looks up the places of mounts by name, and makes missing ones, as the host's root. A
// place in a home, or in another directory that commands can write to, leads wherever they let it
// lead at that moment. So while a container starts, all containers that could change one of these
// names are paused.

// mountPoint is a place inside a mounted directory of the host where something else is mounted.
type mountPoint struct {
	target string // in the container
	source string // what is mounted there
	place  string // the place on the host
}

// mountPoints returns the mount points that lie in a directory of the host.
func mountPoints(mounts []specs.Mount) (found []mountPoint, err error) {
	for _, m := range mounts {
		if m.Type == engine.Tmpfs { // it is made in the image
			continue
		}
		around := specs.Mount{}
		for _, other := range mounts {
			if other.Type != engine.Tmpfs && other.Destination != m.Destination &&
				pathmap.Within(m.Destination, other.Destination) &&
				len(other.Destination) > len(around.Destination) {
				around = other
			}
		}
		switch around.Type {
		case "": // the image's, which is this container's own
		case engine.Bind:
			place := path.Join(around.Source, strings.TrimPrefix(m.Destination, around.Destination))
			found = append(found, mountPoint{m.Destination, m.Source, place})
		default:
			return nil, fmt.Errorf("cannot mount at %s: %s is a %s, in which no place is safe",
				m.Destination, around.Destination, around.Type)
		}
	}
	return found, nil
}

// check makes sure that the mount point exists, is of the kind that the runtime will take it for,
// and is reached without a link.
func (p mountPoint) check() error {
	fd, err := unix.Openat2(unix.AT_FDCWD, p.place, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return fmt.Errorf("the mount point %s was exchanged just now: %w", p.target, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("cannot look at the mount point %s: %w", p.target, err)
	}
	source, err := os.Stat(p.source)
	if err != nil {
		return fmt.Errorf("cannot look at what is to be mounted at %s: %w", p.target, err)
	}
	switch kind := st.Mode & unix.S_IFMT; {
	case source.IsDir() != (kind == unix.S_IFDIR):
		return fmt.Errorf(
			"the mount point %s was exchanged just now: it is of another kind than what is to "+
				"be mounted there",
			p.target)
	case kind == unix.S_IFIFO:
		return fmt.Errorf(
			"nothing can be mounted at %s: it is a FIFO, and gVisor would wait for its writer",
			p.target)
	}
	return nil
}

// start is one container's start, as far as it concerns others.
type start struct {
	points   []mountPoint
	verify   []Mount
	resolves []string // directories of the host in which the runtime looks names up
	writes   []string // those that the container can write to
	ended    chan struct{}
}

func newStart(mounts []specs.Mount, verified []Mount) (*start, error) {
	points, err := mountPoints(mounts)
	if err != nil {
		return nil, err
	}
	s := &start{points: points, ended: make(chan struct{})}
	for _, p := range points {
		s.resolves = append(s.resolves, path.Dir(p.place))
	}
	for _, m := range verified {
		s.verify = append(s.verify, m)
		s.resolves = append(s.resolves, path.Dir(m.Source))
	}
	s.writes = Writes(mounts)
	return s, nil
}

// Writes returns the directories and files of the host that a container can write to.
func Writes(mounts []specs.Mount) (list []string) {
	for _, m := range mounts {
		if m.Type == engine.Bind && !engine.IsReadOnly(m) {
			list = append(list, m.Source)
		}
	}
	return list
}

// isChangedBy reports whether a process that can write to a directory can change what the runtime
// looks up.
func (s *start) isChangedBy(dir string) bool {
	return slices.ContainsFunc(s.resolves, func(name string) bool {
		return pathmap.Within(name, dir)
	})
}

func (s *start) disturbs(other *start) bool {
	return slices.ContainsFunc(s.writes, other.isChangedBy) ||
		slices.ContainsFunc(other.writes, s.isChangedBy)
}

func (s *start) check() error {
	for _, m := range s.verify {
		if err := m.Check(); err != nil {
			return err
		}
	}
	for _, p := range s.points {
		if err := p.check(); err != nil {
			return err
		}
	}
	return nil
}

// starts holds the starts under way or waiting, in the order in which they came. If the container
// of one start could disturb another start, the later of the two waits.
type starts struct {
	mu   sync.Mutex
	line []*start
}

func (all *starts) enter(ctx context.Context, s *start) (leave func(), err error) {
	all.mu.Lock()
	var before []*start
	for _, other := range all.line {
		if s.disturbs(other) {
			before = append(before, other)
		}
	}
	all.line = append(all.line, s)
	all.mu.Unlock()
	leave = func() {
		all.mu.Lock()
		defer all.mu.Unlock()
		all.line = slices.DeleteFunc(all.line, func(other *start) bool { return other == s })
		close(s.ended)
	}
	for _, other := range before {
		select {
		case <-other.ended:
		case <-ctx.Done():
			leave()
			return nil, context.Cause(ctx)
		}
	}
	return leave, nil
}

// startLimit is how long Docker may take to start a container while others are paused for that. It
// is less than a session waits for its agent. creationLimit is how long otherwise.
const startLimit, creationLimit = 12 * time.Second, 2 * time.Minute

// pausesAtOnce is how many containers are being paused at a time.
const pausesAtOnce = 8

// Start has do start a container while nothing runs that could change where the names of its mounts
// lead. verified are those that Verify looks at afterwards. It waits for starts that could disturb
// this one, and for its neighbours to be paused. do's context has a limit, and does not end with
// ctx: an engine carries on when its caller leaves, and the others may only resume when it is done.
func (g *Guard) Start(ctx context.Context, of *life.Life, mounts []specs.Mount, verified []Mount,
	do func(context.Context) error) error {
	s, err := newStart(mounts, verified)
	if err != nil {
		return err
	}
	leave, err := g.starts.enter(ctx, s)
	if err != nil {
		return err
	}
	defer leave()
	limit := creationLimit
	paused, resume, err := g.pauseWriters(ctx, of, (*life.Life).Hold, s.resolves)
	defer resume()
	if paused {
		limit = startLimit
	}
	if err != nil {
		return err
	}
	if err := s.check(); err != nil {
		return err
	}
	starting, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	return do(starting)
}

// pauseWriters uses hold to pause the containers that can write to what holds one of the names, or is
// it, for another one, and reports whether there are any. resume lets them run again; it must be called
// also after an error.
func (g *Guard) pauseWriters(ctx context.Context,
	of *life.Life, hold func(*life.Life, context.Context) (func() error, error),
	names []string) (paused bool, resume func(), err error) {
	var mu sync.Mutex
	resumes := map[*life.Life]func() error{}
	var pausing, resuming errgroup.Group
	pausing.SetLimit(pausesAtOnce)
	for _, other := range g.Neighbours(of, names) {
		pausing.Go(func() error {
			resume, err := hold(other, ctx)
			if resume != nil {
				mu.Lock()
				defer mu.Unlock()
				resumes[other] = resume
			}
			return err
		})
	}
	err = pausing.Wait()
	return len(resumes) > 0, func() {
		for neighbour, resume := range resumes {
			resuming.Go(func() error {
				if err := resume(); err != nil {
					g.Failed(neighbour, err)
				}
				return nil
			})
		}
		_ = resuming.Wait()
	}, err
}
