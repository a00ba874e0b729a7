package hostfs

import (
	"cmp"
	"errors"
	"slices"

	"github.com/daycare-run/sandbox/internal/errs"
)

// refuseLink returns an error of class ErrPermissionDenied when info is a file with several names,
// one of which is denied. It searches the denied directories each time, up to 20,000 entries, and
// refuses when there are more. Its caller has the owner's identity, which may have no access to
// those directories, so it searches on another thread.
func (r *Root) refuseLink(info Info, name string) error {
	if info.Type != Regular || info.Nlink < 2 || len(r.denied) == 0 {
		return nil
	}
	found := make(chan error, 1)
	go func() { found <- r.deniedName(info.ID, name) }()
	return <-found
}

func (r *Root) deniedName(id ID, name string) error {
	defer r.walk()()
	left := maxChecked
	for _, where := range r.denied {
		err := r.scan(where, left, nil, func(path string, info Info) error {
			if left--; info.ID == id {
				return errs.Denied("%s is another name of %s", quoted(name), quoted(path))
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// DeniedLinks returns the identities of the denied regular files that have several names, sorted.
// Whoever makes a container must cover the other names there too. The error says that the denied
// directories cannot be read, or have more than two million entries.
func (r *Root) DeniedLinks() (ids []ID, err error) {
	defer r.walk()()
	err = r.asService(func() error {
		for _, where := range r.denied {
			err := r.scan(where, maxVisited, nil, func(_ string, info Info) error {
				ids = append(ids, info.ID)
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(ids, func(a, b ID) int {
		return cmp.Or(cmp.Compare(a.Dev, b.Dev), cmp.Compare(a.Ino, b.Ino))
	})
	return slices.Compact(ids), nil
}

// FindNames returns all names beneath the root, outside the denied ones, of regular files with the
// given identities, sorted. It returns an error and no names if it finds more of them than limit,
// has more than two million entries to visit, or meets directories nested too deep: a partial list
// would be useless. Names that someone moves during the search can be missed.
func (r *Root) FindNames(ids []ID, limit int) (names []string, err error) {
	if len(ids) == 0 {
		return nil, nil
	}
	defer r.walk()()
	wanted := make(map[ID]bool, len(ids))
	for _, id := range ids {
		wanted[id] = true
	}
	err = r.asService(func() error {
		return r.scan(".", maxVisited, r.denied, func(path string, info Info) error {
			if !wanted[info.ID] {
				return nil
			}
			if len(names) == limit {
				return errTooManyNames
			}
			names = append(names, path)
			return nil
		})
	})
	if errors.Is(err, errTooManyNames) {
		return nil, errs.Denied("denied files have more than %d other names", limit)
	}
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	return names, nil
}

var errTooManyNames = errors.New("too many names")
