package main

import (
	"context"
	"io"
	"iter"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/daycare-run/sandbox/api/types"
)

// What a removal has ended is told of even if its events come after the answer, and not waited for without end.
func TestUserRmTellsOfAllThatHasEnded(t *testing.T) {
	late := func(ctx context.Context) iter.Seq2[types.ServiceEvent, error] {
		return func(yield func(types.ServiceEvent, error) bool) {
			for _, event := range []types.ServiceEvent{
				{Kind: types.ServiceOpen},
				{Process: &types.ProcessEvent{ID: "p-aaaaaaaaaaaa", Name: "web", Status: "removed"}},
				{Container: &types.ContainerEvent{Name: "c", State: "removed"}},
			} {
				if !yield(event, nil) {
					return
				}
				select {
				case <-time.After(lastRemovals / 4):
				case <-ctx.Done():
					return
				}
			}
			<-ctx.Done()
		}
	}
	const all = "removed process p-aaaaaaaaaaaa web\nremoved container c\n"
	for name, tt := range map[string]struct {
		removed types.RemovedUser
		want    string
		took    time.Duration
	}{
		"both":    {types.RemovedUser{Processes: 1, Containers: 1}, all, lastRemovals / 2},
		"one":     {types.RemovedUser{Processes: 1}, "removed process p-aaaaaaaaaaaa web\n", lastRemovals / 4},
		"nothing": {types.RemovedUser{}, "", 0},
		"more":    {types.RemovedUser{Processes: 2, Containers: 1}, all, lastRemovals},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var said strings.Builder
				finish := tellRemovals(t.Context(), late, &said)
				begun := time.Now()
				finish(tt.removed)
				if took := time.Since(begun); said.String() != tt.want || took != tt.took {
					t.Errorf("%q after %s", said.String(), took)
				}
			})
		})
	}
	finish := tellRemovals(t.Context(), func(context.Context) iter.Seq2[types.ServiceEvent, error] {
		return func(func(types.ServiceEvent, error) bool) {} // there are no events
	}, io.Discard)
	finish(types.RemovedUser{Processes: 1})
}

func TestUserRm(t *testing.T) {
	l := newLab(t, nil)
	l.mkdir("kept")
	if got := l.ok("", "user", "rm", "alice"); got != "user alice is removed: sandboxes 2, processes 0, containers 0; the home stays, and --home removes it\n" {
		t.Error(got)
	}
	if _, err := os.Stat(l.host("~/kept")); err != nil {
		t.Error(err)
	}
	if got := l.ok("", "user", "rm", "alice", "--home", "--json"); !strings.Contains(got, `"home": true`) {
		t.Error(got)
	}
	if _, err := os.Stat(l.host("~")); err == nil {
		t.Error("the home is there")
	}
	for user, want := range map[string]string{"alice": `user "alice" has no sandbox, no process and no home here`, "Alice": "upper-case"} {
		if _, _, err := l.run(t.Context(), "", "user", "rm", user); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", user, err)
		}
	}
}
