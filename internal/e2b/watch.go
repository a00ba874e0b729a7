package e2b

import (
	"context"

	"github.com/daycare-run/sandbox/internal/e2b/filesystempb"
)

type watchers struct{}

func newWatchers() *watchers { return &watchers{} }

func (s *server) watchDir(context.Context, called, *filesystempb.WatchDirRequest, func(*filesystempb.WatchDirResponse) error) error {
	return unimplemented{"watching of directories"}
}

func (s *server) createWatcher(context.Context, called, *filesystempb.CreateWatcherRequest) (*filesystempb.CreateWatcherResponse, error) {
	return nil, unimplemented{"watching of directories"}
}

func (s *server) watcherEvents(context.Context, called, *filesystempb.GetWatcherEventsRequest) (*filesystempb.GetWatcherEventsResponse, error) {
	return nil, unimplemented{"watching of directories"}
}

func (s *server) removeWatcher(context.Context, called, *filesystempb.RemoveWatcherRequest) (*filesystempb.RemoveWatcherResponse, error) {
	return nil, unimplemented{"watching of directories"}
}
