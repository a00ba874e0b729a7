package registry

import (
	"maps"
	"slices"
	"strings"

	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/pathmap"
)

// appDirs is an index of the registered apps: for each user, the directories that hold the apps of
// that user's sandboxes. Its cost is one user's apps, however many users there are. records.mu
// guards it.
type appDirs map[ids.User]*userAppDirs

type userAppDirs struct {
	apps map[pathmap.ContainerPath]int // how many sandboxes have their app there
	// sorted are the keys of apps; nil until somebody asks. A list that was handed out is never
	// changed.
	sorted []pathmap.ContainerPath
}

// add counts a sandbox that is registered.
func (a appDirs) add(box Sandbox) { a.count(box, 1) }

// remove takes back an add.
func (a appDirs) remove(box Sandbox) { a.count(box, -1) }

func (a appDirs) count(box Sandbox, n int) {
	if box.AppID == "" {
		return
	}
	of := a[box.User]
	if of == nil {
		of = &userAppDirs{apps: map[pathmap.ContainerPath]int{}}
		a[box.User] = of
	}
	dir := box.PolicyPermissions().AppRoot()
	of.apps[dir] += n
	switch count := of.apps[dir]; {
	case count == 0:
		delete(of.apps, dir)
		of.sorted = nil
	case count == n:
		of.sorted = nil
	}
	if len(of.apps) == 0 {
		delete(a, box.User)
	}
}

// of returns a user's app directories in order. ready is false if the list has yet to be made, for
// which the caller needs records.mu for writing and make.
func (a appDirs) of(user ids.User) (list []pathmap.ContainerPath, ready bool) {
	of := a[user]
	if of == nil {
		return nil, true
	}
	return of.sorted, of.sorted != nil
}

// make makes a user's list.
func (a appDirs) make(user ids.User) []pathmap.ContainerPath {
	list, ready := a.of(user)
	if !ready {
		list = slices.SortedFunc(maps.Keys(a[user].apps), func(x, y pathmap.ContainerPath) int {
			return strings.Compare(x.String(), y.String())
		})
		a[user].sorted = list
	}
	return list
}
