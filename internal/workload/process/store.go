package process

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/daycare-run/sandbox/internal/durable"
)

// store keeps the records on disk, each in a directory of its own. Directories and the files in
// them appear and disappear whole.
type store struct{ dir string }

// Files in a process's directory.
const (
	recordFile  = "record.json"
	appliedFile = "sandbox.json"
	secretsFile = "secrets"
)

// Suffixes of directories that do not hold a process.
const (
	unborn  = ".new"     // being made when the service ended
	buried  = ".removed" // being removed
	damaged = ".damaged" // set aside
)

func (s store) path(id string, name ...string) string {
	return filepath.Join(append([]string{s.dir, id}, name...)...)
}

// load reads all records. What is damaged is set aside and listed in problems; the others load.
func (s store) load() (records []Record, problems []string, _ error) {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("cannot open the process records: %w", err)
	}
	if err := durable.Sweep(s.dir); err != nil {
		return nil, nil, fmt.Errorf("cannot open the process records: %w", err)
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot open the process records: %w", err)
	}
	for _, entry := range entries {
		name := entry.Name()
		id, _, _ := strings.Cut(name, ".")
		if !idPattern.MatchString(id) {
			continue
		}
		switch strings.TrimPrefix(name, id) {
		case unborn, buried:
			if err := os.RemoveAll(s.path(name)); err != nil {
				problems = append(problems,
					fmt.Sprintf("cannot remove what is left of process %s: %v", id, pathless(err)))
			}
		case "":
			r, err := s.read(id)
			if err == nil {
				err = pathless(durable.Sweep(s.path(id)))
			}
			if err == nil {
				records = append(records, r)
				continue
			}
			problems = append(problems, s.setAside(id, err))
		default:
			problems = append(problems, fmt.Sprintf("process %s was set aside earlier as %s", id,
				name))
		}
	}
	return records, problems, nil
}

func (s store) read(id string) (Record, error) {
	text, err := os.ReadFile(s.path(id, recordFile))
	if err != nil {
		return Record{}, pathless(err)
	}
	return decode(id, text)
}

// setAside renames the directory of a damaged record, and returns a message about it.
func (s store) setAside(id string, why error) string {
	aside := id + damaged
	for n := 2; ; n++ {
		if _, err := os.Lstat(s.path(aside)); errors.Is(err, fs.ErrNotExist) {
			break
		}
		aside = fmt.Sprintf("%s.%d%s", id, n, damaged)
	}
	if err := os.Rename(s.path(id), s.path(aside)); err != nil {
		return fmt.Sprintf("the record of process %s is damaged (%v) and cannot be set aside: %v",
			id, why, pathless(err))
	}
	return fmt.Sprintf("the record of process %s is damaged (%v); it was set aside as %s", id, why,
		aside)
}

// create makes a process's directory; sealed may be nil.
func (s store) create(r Record, sealed []byte) (err error) {
	text, err := r.encode()
	if err != nil {
		return err
	}
	dir := s.path(r.ID + unborn)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return pathless(err)
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(dir)
			err = pathless(err)
		}
	}()
	if sealed != nil {
		if err := durable.WriteFile(filepath.Join(dir, secretsFile), sealed, 0o600); err != nil {
			return err
		}
	}
	if err := durable.WriteFile(filepath.Join(dir, recordFile), text, 0o600); err != nil {
		return err
	}
	if err := os.Rename(dir, s.path(r.ID)); err != nil {
		return err
	}
	return durable.SyncDir(s.dir)
}

// fits finds room for every process: its size is bounded where it comes from.
func (s store) fits(Record, []byte) error { return nil }

// write replaces a process's record.
func (s store) write(r Record) error {
	text, err := r.encode()
	if err != nil {
		return err
	}
	return pathless(durable.WriteFile(s.path(r.ID, recordFile), text, 0o600))
}

// writeApplied replaces sandbox.json; nil leaves it.
func (s store) writeApplied(id string, applied []byte) error {
	if applied == nil {
		return nil
	}
	return pathless(durable.WriteFile(s.path(id, appliedFile), applied, 0o600))
}

var errNoSecrets = errors.New("its secrets are gone; start it again with its secrets")

func (s store) sealed(r Record) ([]byte, error) {
	sealed, err := os.ReadFile(s.path(r.ID, secretsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errNoSecrets
	}
	return sealed, pathless(err)
}

// dropSecrets deletes the secrets of a process that will not be started again.
func (s store) dropSecrets(r Record) error {
	if err := os.Remove(s.path(r.ID, secretsFile)); !errors.Is(err, fs.ErrNotExist) {
		return pathless(err)
	}
	return nil
}

// remove deletes a process's directory, after that of its log. After a crash there is still a
// record or, from the next start on, nothing.
func (s store) remove(r Record) error {
	gone := s.path(r.ID + buried)
	if err := os.Rename(s.path(r.ID), gone); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return pathless(err)
	}
	return pathless(errors.Join(durable.SyncDir(s.dir), os.RemoveAll(gone)))
}

// pathless returns an error without the host path that it names.
func pathless(err error) error {
	if path, is := errors.AsType[*fs.PathError](err); is {
		return fmt.Errorf("cannot %s: %w", path.Op, path.Err)
	}
	if link, is := errors.AsType[*os.LinkError](err); is {
		return fmt.Errorf("cannot %s: %w", link.Op, link.Err)
	}
	return err
}

// byCreation sorts records by creation time.
func byCreation(records []Record) {
	slices.SortFunc(records, func(a, b Record) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), strings.Compare(a.ID, b.ID))
	})
}
