package e2b

import (
	"context"
	"crypto/rand"
	"errors"
	"path"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/e2b/filesystempb"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/files"
	"github.com/daycare-run/sandbox/internal/hostfs"
)

// The kernel has few inotify instances for all that run as root: so a sandbox may have some, an
// owner has a share, and all together may have half of them.
const (
	maxOfOne = 8
	maxOfAll = 64
	// maxWaiting bounds the events that wait to be asked for, and maxWaitingNames their names, in
	// bytes.
	maxWaiting      = 10_000
	maxWaitingNames = 1 << 20
	// unasked is how long a watcher lives while nobody asks for its events.
	unasked = 10 * time.Minute
)

// watchers counts all watchers, and holds those that are asked for their events.
type watchers struct {
	of share

	mu     sync.Mutex
	polled map[string]*polled
	idle   time.Duration
}

// polled keeps what has changed until somebody asks for it.
type polled struct {
	sandbox string
	at      string // the directory
	entries bool   // events are asked for with their entries
	stop    context.CancelFunc
	unasked *time.Timer // stops it

	// Under watchers.mu.
	events []hostfs.Event
	names  int // their bytes
	ended  error
}

func newWatchers(idle time.Duration) *watchers {
	return &watchers{of: newShare(maxOfAll, maxOfOne), polled: map[string]*polled{}, idle: idle}
}

// open watches a directory of a sandbox, at a path; close gives its place back.
func (w *watchers) open(ctx context.Context, c called, at string,
	recursive bool) (_ *files.Watch, close func(), _ error) {
	if onHost(at) == "" {
		return nil, nil, unimplemented{"watching outside of " + homeDir + " and /tmp"}
	}
	owner := c.Info().Owner
	if !w.of.take(owner, c.ID(), 1) {
		return nil, nil,
			errs.Busy("there are too many watchers (limits: %d per sandbox, %d in total, of which each key has a share); stop one, or try again later",
				maxOfOne, maxOfAll)
	}
	watch, err := c.service.Watch(ctx, c.ID(), at, recursive)
	if err != nil {
		w.of.give(owner, c.ID(), 1)
		return nil, nil, err
	}
	return watch, func() {
		watch.Close()
		w.of.give(owner, c.ID(), 1)
	}, nil
}

var changes = map[hostfs.Change]filesystempb.EventType{
	hostfs.Created:  filesystempb.EventType_EVENT_TYPE_CREATE,
	hostfs.Written:  filesystempb.EventType_EVENT_TYPE_WRITE,
	hostfs.Removed:  filesystempb.EventType_EVENT_TYPE_REMOVE,
	hostfs.Renamed:  filesystempb.EventType_EVENT_TYPE_RENAME,
	hostfs.Chmodded: filesystempb.EventType_EVENT_TYPE_CHMOD,
}

// tellEvents returns events in a directory as clients know them. With entries they have what is
// there now, if anything is.
func (c called) tellEvents(ctx context.Context, dir string, entries bool,
	events []hostfs.Event) []*filesystempb.FilesystemEvent {
	list := make([]*filesystempb.FilesystemEvent, len(events))
	var found []entry
	var of []*filesystempb.FilesystemEvent
	for i, e := range events {
		list[i] = &filesystempb.FilesystemEvent{Name: validText(e.Name), Type: changes[e.Change]}
		if !entries || e.Change == hostfs.Removed || e.Change == hostfs.Renamed {
			continue
		}
		if is, err := (hostFiles{c}).stat(ctx, path.Join(dir, e.Name)); err == nil {
			found, of = append(found, is), append(of, list[i])
		}
	}
	for i, info := range c.tell(ctx, found) {
		of[i].Entry = info
	}
	return list
}

func (c called) watchDir(ctx context.Context, r *filesystempb.WatchDirRequest,
	send func(*filesystempb.WatchDirResponse) error) error {
	at, err := c.path(r.GetPath())
	if err != nil {
		return err
	}
	watch, end, err := c.server.watchers.open(ctx, c, at, r.GetRecursive())
	if err != nil {
		return err
	}
	defer end()
	start := &filesystempb.WatchDirResponse_Start{
		Start: &filesystempb.WatchDirResponse_StartEvent{}}
	if err := send(&filesystempb.WatchDirResponse{Event: start}); err != nil {
		return err
	}
	for {
		waiting, cancel := context.WithTimeoutCause(ctx, c.keepalive, errQuiet)
		events, err := watch.Next(waiting)
		cancel()
		switch {
		case err != nil && ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errQuiet):
			alive := &filesystempb.WatchDirResponse_Keepalive{
				Keepalive: &filesystempb.WatchDirResponse_KeepAlive{}}
			if err := send(&filesystempb.WatchDirResponse{Event: alive}); err != nil {
				return err
			}
		case err != nil:
			if _, gone := c.server.cfg.Sandboxes.Any(c.ID()); cerrdefs.IsNotFound(gone) {
				return errEnded(c.ID())
			}
			return err
		}
		for _, e := range c.tellEvents(ctx, at, r.GetIncludeEntry(), events) {
			event := &filesystempb.WatchDirResponse_Filesystem{Filesystem: e}
			if err := send(&filesystempb.WatchDirResponse{Event: event}); err != nil {
				return err
			}
		}
	}
}

// createWatcher creates a watcher whose events are asked for. It ends when it is removed, when more
// events wait than are kept, with its directory, so also with its sandbox, and when nobody has
// asked for long: then it was forgotten.
func (c called) createWatcher(ctx context.Context,
	r *filesystempb.CreateWatcherRequest) (*filesystempb.CreateWatcherResponse, error) {
	at, err := c.path(r.GetPath())
	if err != nil {
		return nil, err
	}
	watch, end, err := c.server.watchers.open(ctx, c, at, r.GetRecursive())
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	w := c.server.watchers
	id, p := rand.Text(), &polled{sandbox: c.ID(), at: at, entries: r.GetIncludeEntry(), stop: stop,
		unasked: time.AfterFunc(w.idle, stop)}
	w.mu.Lock()
	w.polled[id] = p
	w.mu.Unlock()
	go func() {
		defer end()
		defer p.unasked.Stop()
		for p.ended == nil {
			events, err := watch.Next(ctx)
			w.mu.Lock()
			p.events, p.ended = append(p.events, events...), err
			for _, e := range events {
				p.names += len(e.Name)
			}
			if len(p.events) > maxWaiting || p.names > maxWaitingNames {
				p.events, p.ended = nil, errs.Busy("too many events waited to be asked for")
			}
			w.mu.Unlock()
		}
		w.mu.Lock()
		delete(w.polled, id) // nobody may ever ask again
		w.mu.Unlock()
	}()
	return &filesystempb.CreateWatcherResponse{WatcherId: id}, nil
}

// find returns a watcher of this sandbox; the lock is held.
func (w *watchers) find(c called, id string) (*polled, error) {
	p := w.polled[id]
	if p == nil || p.sandbox != c.ID() {
		return nil, notFound(
			"there is no watcher %.64q: it was removed, or its directory was, or too many events waited, or nobody has asked for them for %v",
			id, w.idle)
	}
	return p, nil
}

func (c called) watcherEvents(ctx context.Context,
	r *filesystempb.GetWatcherEventsRequest) (*filesystempb.GetWatcherEventsResponse, error) {
	p, events, err := c.server.watchers.taken(c, r.GetWatcherId())
	if err != nil {
		return nil, err
	}
	return &filesystempb.GetWatcherEventsResponse{Events: c.tellEvents(ctx, p.at, p.entries,
		events)}, nil
}

// taken takes the events that wait.
func (w *watchers) taken(c called, id string) (*polled, []hostfs.Event, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, err := w.find(c, id)
	if err != nil {
		return nil, nil, err
	}
	events := p.events
	p.events, p.names = nil, 0
	p.unasked.Reset(w.idle)
	return p, events, nil
}

func (c called) removeWatcher(_ context.Context,
	r *filesystempb.RemoveWatcherRequest) (*filesystempb.RemoveWatcherResponse, error) {
	c.server.watchers.mu.Lock()
	defer c.server.watchers.mu.Unlock()
	p, err := c.server.watchers.find(c, r.GetWatcherId())
	if err != nil {
		return nil, err
	}
	p.stop()
	delete(c.server.watchers.polled, r.GetWatcherId())
	return &filesystempb.RemoveWatcherResponse{}, nil
}
