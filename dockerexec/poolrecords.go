package dockerexec

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec/mounts"
	"github.com/daycare-run/sandbox/internal/durable"
	"github.com/daycare-run/sandbox/internal/engine"
)

// Docker's labels cannot change, so a record in dataDir says what a container of the pool was bound
// to. It is on disk before the home is the user's and before the first command. A container of the
// pool without a record belongs to no user.

// poolRecord says what a container of the pool was bound to.
type poolRecord struct {
	Version   int    `json:"version"`
	Container string `json:"container"`
	// Pooled is the User in its labels.
	Pooled string `json:"pooled"`
	Spec   Spec   `json:"spec"`
}

const poolRecordVersion = 1

func (e *Executor) records() durable.Records {
	return durable.Records{Dir: filepath.Join(e.cfg.DataDir, "pool", "bound")}
}

// writeRecord writes the record of a container that is being bound.
func (e *Executor) writeRecord(id string) error {
	e.mu.Lock()
	text, err := json.Marshal(e.bound[id])
	e.mu.Unlock()
	if err != nil {
		return err
	}
	return e.records().Write(id, text)
}

// unbind removes the record of a container that is gone.
func (e *Executor) unbind(id string) error {
	e.mu.Lock()
	_, is := e.bound[id]
	delete(e.bound, id)
	e.mu.Unlock()
	if !is {
		return nil
	}
	return e.records().Remove(id)
}

// poolRest is what earlier services left of the pool and has not been compared with Docker yet: the
// ids of the containers that were bound, and the folders.
type poolRest struct{ bound, folders []string }

// readRecords reads the records of earlier services, and which folders they left. A record that
// cannot be read is set aside: then its container belongs to no user. Nothing uses the pool yet.
func (e *Executor) readRecords() {
	err := e.records().Load(func(id string, text []byte) error {
		record, err := parsePoolRecord(id, text)
		if err == nil {
			e.bound[id] = record
		}
		return err
	}, func(why error, file, aside string) {
		e.cfg.Log.Error().Err(why).Str("file", file).Str("setAside", aside).
			Msg("damaged record of a container; removing the container")
	})
	if err != nil {
		e.cfg.Log.Error().Err(err).Msg(
			"cannot read what containers of the pool were bound to; they are removed")
	}
	e.inherited = poolRest{slices.Collect(maps.Keys(e.bound)),
		PoolFolders(e.cfg.PoolDir, e.cfg.Host, e.cfg.Instance)}
}

// parsePoolRecord parses a record like untrusted input: a writer of the file can write anything.
func parsePoolRecord(id string, text []byte) (r poolRecord, err error) {
	if err := json.Unmarshal(text, &r); err != nil {
		return r, err
	}
	switch {
	case r.Version != poolRecordVersion:
		return r, fmt.Errorf("version %d is not known", r.Version)
	case r.Container != id:
		return r, fmt.Errorf("it is about %q", r.Container)
	case !(Spec{User: r.Pooled}).IsPooled() || strings.Contains(r.Pooled, ".."):
		return r, fmt.Errorf("%q was in no pool", r.Pooled)
	case r.Spec.User == "" || r.Spec.User[0] == '.' || strings.Contains(r.Spec.User, "/"):
		return r, fmt.Errorf("%q is no user", r.Spec.User)
	case r.Spec.Home().Since == 0:
		return r, errors.New("it names no home")
	}
	return r, nil
}

// recoverBound finishes bindings of a service that ended between record and rename, or whose rename
// the disk has lost, and removes the records whose home is not their user's. One of which that is
// not known now, as its storage fails, stays. Nothing uses the pool yet.
func (e *Executor) recoverBound() {
	for id, record := range e.bound {
		err := e.giveHome(record.Pooled, record.Spec.User)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrExist) {
			e.cfg.Events.Tell(e.ctx, record.Spec.User,
				Incident{What: "cannot finish binding a container of the pool", Err: err})
		}
		err = record.checkHome()
		if errors.Is(err, mounts.ErrExchanged) || errors.Is(err, fs.ErrNotExist) ||
			errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
			e.cfg.Events.Tell(e.ctx, record.Spec.User,
				Incident{What: "a container of the pool was not bound; it is removed", Err: err})
			if err := e.unbind(id); err != nil {
				e.cfg.Log.Warn().Err(err).Msg(
					"cannot forget what a container of the pool was bound to")
			}
		}
	}
}

// checkHome makes sure that the user's home is the one that the container has.
func (r poolRecord) checkHome() error {
	for _, m := range r.Spec.Mounts {
		if m.Target == homeTarget {
			return m.verified().Check()
		}
	}
	return fmt.Errorf("it has no home: %w", fs.ErrNotExist)
}

// DropPooled removes the folder of a PoolUser that has no container.
func (e *Executor) DropPooled(user string) error {
	return e.removePooled(e.poolFolder(user))
}

// removePooled removes the folder of a pooled container that is gone. It removes only directories,
// and the empty files that nobody may write, on which masks were mounted: a folder with another file
// in it has been used, and stays. Folders outside the pool are left alone.
func (e *Executor) removePooled(dir string) error {
	if e.cfg.PoolDir == "" || filepath.Dir(dir) != e.cfg.PoolDir {
		return nil
	}
	return removePoolDirs(dir)
}

// PoolFolders returns the folders of an instance's pooled containers in dir, the folder of the
// pool, which other services may use, too. host is its Config.Host.
func PoolFolders(dir, host, instance string) (folders []string) {
	entries, _ := os.ReadDir(dir) // there may be none
	for _, entry := range entries {
		if entry.IsDir() && instance != "" &&
			strings.HasPrefix(entry.Name(), poolPrefix(host, instance)) {
			folders = append(folders, filepath.Join(dir, entry.Name()))
		}
	}
	return folders
}

// RemovePoolFolder removes the folder of a pooled container that is gone. A folder with a file in
// it, other than a spool and what masks were mounted on, stays.
func RemovePoolFolder(folder string) error {
	spools, _ := filepath.Glob(filepath.Join(folder, spoolPrefix+"*"))
	for _, spool := range spools {
		_ = os.Remove(spool)
	}
	return removePoolDirs(folder)
}

func removePoolDirs(folder string) error {
	root, err := os.OpenRoot(filepath.Dir(folder))
	if err == nil {
		defer root.Close()
		err = removeDirs(root, filepath.Base(folder))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot remove a folder of the pool: %w", err)
	}
	return nil
}

func removeDirs(root *os.Root, name string) error {
	entries, err := fs.ReadDir(root.FS(), name)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		below := filepath.Join(name, entry.Name())
		if entry.IsDir() {
			err = removeDirs(root, below)
		} else if info, _ := root.Lstat(below); info != nil && info.Mode()&^0o444 == 0 && info.Size() == 0 {
			err = root.Remove(below)
		}
		if err != nil {
			return err
		}
	}
	return root.Remove(name)
}

// tidyPool removes, once, the records and folders that earlier services left of pooled containers
// that are gone. listed are the containers that Docker has. Where it did not answer at the start,
// this service may have a pool by now that is newer than the list.
func (e *Executor) tidyPool(listed []engine.Container) {
	has, is := map[string]bool{}, map[string]bool{}
	for _, found := range listed {
		has[filepath.Dir(spoolOf(found.Mounts))], is[found.ID] = true, true
	}
	e.mu.Lock()
	rest := e.inherited
	e.inherited = poolRest{}
	for c := range e.all {
		has[c.pool] = true
	}
	e.mu.Unlock()
	for _, id := range rest.bound {
		if is[id] {
			continue
		}
		if err := e.unbind(id); err != nil {
			e.cfg.Log.Warn().Err(err).Msg("cannot forget what a container of the pool was bound to")
		}
	}
	for _, dir := range rest.folders {
		if has[dir] {
			continue
		}
		if err := RemovePoolFolder(dir); err != nil {
			e.cfg.Log.Warn().Err(err).Str("dir", dir).Msg("a folder of the pool stays")
		}
	}
}
