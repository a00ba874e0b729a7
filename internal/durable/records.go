package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Records are JSON documents in a directory of the service's own, each in a file <id>.json.
type Records struct{ Dir string }

// Load makes the directory, removes what unfinished writes left there, and calls read for each
// record. A record that cannot be read, or that read refuses, is set aside as <id>.json.damaged,
// after a call of told.
func (r Records) Load(read func(id string, text []byte) error,
	told func(why error, file, aside string)) error {
	if err := os.MkdirAll(r.Dir, 0o700); err != nil {
		return err
	}
	if err := Sweep(r.Dir); err != nil {
		return err
	}
	entries, err := os.ReadDir(r.Dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		id, is := strings.CutSuffix(entry.Name(), ".json")
		if !is {
			continue
		}
		file := r.file(id)
		text, err := os.ReadFile(file)
		if err == nil {
			err = read(id, text)
		}
		if err == nil {
			continue
		}
		aside := file + ".damaged"
		told(err, file, aside)
		if err := os.Rename(file, aside); err != nil {
			return fmt.Errorf("cannot set a damaged record aside: %w", err)
		}
	}
	return nil
}

// Write replaces a record.
func (r Records) Write(id string, text []byte) error { return WriteFile(r.file(id), text, 0o600) }

// Remove removes a record if it exists. A power cut does not bring it back.
func (r Records) Remove(id string) error {
	if err := os.Remove(r.file(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return SyncDir(r.Dir)
}

func (r Records) file(id string) string { return filepath.Join(r.Dir, id+".json") }
