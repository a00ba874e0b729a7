package e2b

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"connectrpc.com/connect"

	"github.com/daycare-run/sandbox/internal/e2b/filesystempb"
	"github.com/daycare-run/sandbox/internal/waittest"
)

const (
	created  = filesystempb.EventType_EVENT_TYPE_CREATE
	written  = filesystempb.EventType_EVENT_TYPE_WRITE
	removed  = filesystempb.EventType_EVENT_TYPE_REMOVE
	renamed  = filesystempb.EventType_EVENT_TYPE_RENAME
	chmodded = filesystempb.EventType_EVENT_TYPE_CHMOD
)

type change struct {
	name string
	is   filesystempb.EventType
}

// watcher is one whose events are asked for.
type watcher struct {
	b    *box
	id   string
	seen []change
}

func (b *box) watch(path string, recursive bool) *watcher {
	b.t.Helper()
	made, err := call[filesystempb.CreateWatcherRequest, filesystempb.CreateWatcherResponse](b, "CreateWatcher", &filesystempb.CreateWatcherRequest{Path: path, Recursive: recursive})
	if err != nil {
		b.t.Fatal(err)
	}
	return &watcher{b: b, id: made.GetWatcherId()}
}

// wants waits for events, in any order beside others.
func (w *watcher) wants(want ...change) {
	w.b.t.Helper()
	waittest.Until(w.b.t, "the changes are told", func() bool {
		got, err := call[filesystempb.GetWatcherEventsRequest, filesystempb.GetWatcherEventsResponse](w.b, "GetWatcherEvents", &filesystempb.GetWatcherEventsRequest{WatcherId: w.id})
		if err != nil {
			w.b.t.Fatal(err)
		}
		for _, e := range got.GetEvents() {
			w.seen = append(w.seen, change{e.GetName(), e.GetType()})
		}
		return !slices.ContainsFunc(want, func(c change) bool { return !slices.Contains(w.seen, c) })
	})
}

func TestWatchers(t *testing.T) {
	b := newLab(t).create(`{}`)
	home := b.home()
	put(b, "there", "x")
	flat, deep := b.watch("", false), b.watch("~", true)
	put(b, "there", "y")
	flat.wants(change{"there", written})
	if slices.Contains(flat.seen, change{"there", created}) {
		t.Errorf("what is replaced is not made: %v", flat.seen)
	}
	put(b, "new/deep/file", "x")
	flat.wants(change{"new", created})
	deep.wants(change{"new", created}, change{"new/deep", created}, change{"new/deep/file", created})
	for _, do := range []error{
		os.Chmod(filepath.Join(home, "there"), 0o600), os.Rename(filepath.Join(home, "there"), filepath.Join(home, "elsewhere")),
		os.Rename(filepath.Join(home, "new"), filepath.Join(home, "other")),
	} {
		if do != nil {
			t.Fatal(do)
		}
	}
	flat.wants(change{"there", chmodded}, change{"there", renamed}, change{"elsewhere", created}, change{"new", renamed})
	deep.wants(change{"other", created}) // it is known by its new name
	if err := os.RemoveAll(filepath.Join(home, "other/deep")); err != nil {
		t.Fatal(err)
	}
	deep.wants(change{"other/deep", removed})
	for _, c := range append(flat.seen, deep.seen...) {
		if filepath.Base(c.name)[0] == '.' {
			t.Errorf("the name under which a file is written is told: %v", c)
		}
	}
	for _, want := range []connect.Code{0, connect.CodeNotFound} {
		_, err := call[filesystempb.RemoveWatcherRequest, filesystempb.RemoveWatcherResponse](b, "RemoveWatcher", &filesystempb.RemoveWatcherRequest{WatcherId: flat.id})
		if err == nil != (want == 0) || err != nil && connect.CodeOf(err) != want {
			t.Error(err)
		}
	}
	other := b.lab.create(`{}`)
	_, err := call[filesystempb.GetWatcherEventsRequest, filesystempb.GetWatcherEventsResponse](other, "GetWatcherEvents", &filesystempb.GetWatcherEventsRequest{WatcherId: deep.id})
	if connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("another sandbox asks for it: %v", err)
	}
}

func TestWatchersAreBounded(t *testing.T) {
	b := newLab(t).create(`{}`)
	var made []*watcher
	for range maxOfOne {
		made = append(made, b.watch("", false))
	}
	_, err := call[filesystempb.CreateWatcherRequest, filesystempb.CreateWatcherResponse](b, "CreateWatcher", &filesystempb.CreateWatcherRequest{})
	if connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("%v", err)
	}
	if _, err := call[filesystempb.RemoveWatcherRequest, filesystempb.RemoveWatcherResponse](b, "RemoveWatcher", &filesystempb.RemoveWatcherRequest{WatcherId: made[0].id}); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "a place is free", func() bool {
		_, err := call[filesystempb.CreateWatcherRequest, filesystempb.CreateWatcherResponse](b, "CreateWatcher", &filesystempb.CreateWatcherRequest{})
		return err == nil
	})
	for path, want := range map[string]connect.Code{"none": connect.CodeNotFound, "file": connect.CodeInvalidArgument, "/etc": connect.CodeUnimplemented} {
		other := b.lab.create(`{}`)
		put(other, "file", "x")
		_, err := call[filesystempb.CreateWatcherRequest, filesystempb.CreateWatcherResponse](other, "CreateWatcher", &filesystempb.CreateWatcherRequest{Path: path})
		if connect.CodeOf(err) != want {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestEntriesOfEvents is for watchers that want to know what there is now: of what is gone, nothing.
func TestEntriesOfEvents(t *testing.T) {
	b := newLab(t).create(`{}`)
	put(b, "dir/there", "1")
	streamed := make(chan *filesystempb.FilesystemEvent, 10)
	stream, err := followRPC[filesystempb.WatchDirRequest, filesystempb.WatchDirResponse](t.Context(), b, "/filesystem.Filesystem/WatchDir",
		&filesystempb.WatchDirRequest{Path: "dir", IncludeEntry: true, AllowNetworkMounts: true})
	if err != nil || !stream.Receive() {
		t.Fatal(err)
	}
	go func() {
		for stream.Receive() {
			if e := stream.Msg().GetFilesystem(); e != nil {
				streamed <- e
			}
		}
	}()
	made, err := call[filesystempb.CreateWatcherRequest, filesystempb.CreateWatcherResponse](b, "CreateWatcher", &filesystempb.CreateWatcherRequest{Path: "dir", IncludeEntry: true})
	if err != nil {
		t.Fatal(err)
	}
	put(b, "dir/new", "12345")
	if err := os.Remove(filepath.Join(b.home(), "dir/there")); err != nil {
		t.Fatal(err)
	}
	var polled []*filesystempb.FilesystemEvent
	waittest.Until(t, "the removal is told", func() bool {
		got, err := call[filesystempb.GetWatcherEventsRequest, filesystempb.GetWatcherEventsResponse](b, "GetWatcherEvents", &filesystempb.GetWatcherEventsRequest{WatcherId: made.GetWatcherId()})
		if err != nil {
			t.Fatal(err)
		}
		polled = append(polled, got.GetEvents()...)
		return slices.ContainsFunc(polled, func(e *filesystempb.FilesystemEvent) bool { return e.GetType() == removed })
	})
	var seen []*filesystempb.FilesystemEvent
	for len(seen) == 0 || seen[len(seen)-1].GetType() != removed {
		seen = append(seen, <-streamed)
	}
	for from, events := range map[string][]*filesystempb.FilesystemEvent{"polled": polled, "streamed": seen} {
		for _, e := range events {
			entry, isNew := e.GetEntry(), e.GetName() == "new"
			if (entry != nil) != isNew || isNew && (entry.GetPath() != "/home/user/dir/new" || entry.GetSize() != 5) {
				t.Errorf("%s: %v", from, e)
			}
		}
	}
}

func TestWatchedStream(t *testing.T) {
	b := newLab(t).create(`{}`)
	put(b, "dir/file", "")
	stream, err := followRPC[filesystempb.WatchDirRequest, filesystempb.WatchDirResponse](t.Context(), b, "/filesystem.Filesystem/WatchDir",
		&filesystempb.WatchDirRequest{Path: "dir"}, func(h http.Header) { h.Set("Keepalive-Ping-Interval", "1") })
	if err != nil || !stream.Receive() || stream.Msg().GetStart() == nil {
		t.Fatal(err)
	}
	if !stream.Receive() || stream.Msg().GetKeepalive() == nil {
		t.Errorf("no keepalive but %v", stream.Msg())
	}
	put(b, "dir/file", "12345")
	for stream.Receive() && stream.Msg().GetFilesystem().GetType() != written {
	}
	if e := stream.Msg().GetFilesystem().GetEntry(); e != nil {
		t.Errorf("an entry that nobody asked for: %v", e)
	}
	if _, err := call[filesystempb.RemoveRequest, filesystempb.RemoveResponse](b, "Remove", &filesystempb.RemoveRequest{Path: "dir"}); err != nil {
		t.Fatal(err)
	}
	for stream.Receive() {
	}
	if connect.CodeOf(stream.Err()) != connect.CodeNotFound {
		t.Errorf("its directory is gone: %v", stream.Err())
	}
}
