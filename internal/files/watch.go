package files

import (
	"context"
	"slices"

	"github.com/daycare-run/sandbox/internal/hostfs"
	"github.com/daycare-run/sandbox/internal/policy"
)

// Watch watches a directory. The caller closes it.
type Watch struct {
	watcher *hostfs.Watcher
	target  fileTarget
}

// Next waits for changes, without those of hidden files. Its errors are those of hostfs.
func (w *Watch) Next(ctx context.Context) ([]hostfs.Event, error) {
	events, err := w.watcher.Next(ctx)
	return slices.DeleteFunc(events, func(e hostfs.Event) bool { return !w.target.shows(e.Name) }),
		err
}

// Close also ends a Next that waits.
func (w *Watch) Close() {
	w.watcher.Close()
	w.target.close()
}

// Watch starts to watch a directory, and with recursive also those below it.
func (f *Files) Watch(ctx context.Context, id, written string, recursive bool) (*Watch, error) {
	t, err := f.target(ctx, id, "path", Where{Path: written},
		accessCheck{doing: "watch", mode: policy.ReadOnly})
	if err != nil {
		return nil, err
	}
	w, err := t.root.Watch(t.name, recursive)
	if err != nil {
		t.close()
		return nil, t.failed("watch", err)
	}
	return &Watch{w, t}, nil
}
