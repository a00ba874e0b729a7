// Package durable writes the service's records so that a crash or a power cut leaves the old file or the new
// one, whole, and never none, half of one or an empty one.
package durable

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"

	"github.com/google/renameio/v2"
)

// WriteFile puts a file in place. When it returns, file and name are on the disk. The umask does not count.
func WriteFile(name string, content []byte, mode fs.FileMode) error {
	dir := filepath.Dir(name)
	// Beside the file: the library would try TMPDIR first, which is others' to write to.
	err := renameio.WriteFile(name, content, mode, renameio.WithTempDir(dir), renameio.WithStaticPermissions(mode))
	if err != nil {
		return err
	}
	return SyncDir(dir) // which renameio leaves to its callers
}

// Keep is WriteFile, into a directory that it makes, for a file that is named after its content: where that is there
// already, whole, it stays.
func Keep(name string, content []byte, mode fs.FileMode) error {
	if there, err := os.ReadFile(name); err == nil && bytes.Equal(there, content) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return WriteFile(name, content, mode)
}

// SyncDir waits until the names in a directory are on the disk.
func SyncDir(name string) error {
	dir, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// temporary is the form of the names that renameio gives until a file is in place.
var temporary = regexp.MustCompile(`^\..+[0-9]+$`)

// Sweep removes what writes have left in a directory that did not come to their end. Nobody may write there.
func Sweep(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("cannot look for unfinished files: %w", err)
	}
	var faults []error
	for _, entry := range entries {
		if entry.Type().IsRegular() && temporary.MatchString(entry.Name()) {
			faults = append(faults, os.Remove(filepath.Join(dir, entry.Name())))
		}
	}
	return errors.Join(faults...)
}
