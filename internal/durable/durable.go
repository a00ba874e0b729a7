// Package durable writes the service's records so that a crash or a power cut leaves either the old
// file or the new one, complete: never a missing, partial or empty file.
package durable

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"

	"github.com/google/renameio/v2"
)

// WriteFile replaces a file atomically. When it returns, its content and its name are on disk. The
// umask is not applied.
func WriteFile(name string, content []byte, mode fs.FileMode) error {
	dir := filepath.Dir(name)
	// In the same directory: the library would try TMPDIR first, which others can write to.
	err := renameio.WriteFile(name, content, mode, renameio.WithTempDir(dir),
		renameio.WithStaticPermissions(mode))
	if err != nil {
		return err
	}
	return SyncDir(dir) // which renameio leaves to its callers
}

// Keep writes a file that is named after its content, in a directory that it makes. A file that is
// already there with this content is left alone.
func Keep(name string, content []byte, mode fs.FileMode) error {
	if there, err := os.ReadFile(name); err == nil && bytes.Equal(there, content) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return WriteFile(name, content, mode)
}

// KeepProgram copies a program into a directory, under a name that consists of prefix and a hash of
// its content, and returns its path there.
func KeepProgram(program, dir, prefix string) (string, error) {
	content, err := os.ReadFile(program)
	if err != nil {
		return "", err
	}
	defer debug.FreeOSMemory() // programs are larger than all else that the service holds
	sum := sha256.Sum256(content)
	path := filepath.Join(dir, prefix+hex.EncodeToString(sum[:8]))
	return path, errors.Join(Keep(path, content, 0o555), Sweep(dir))
}

// SyncDir waits until the names in a directory are on the disk.
func SyncDir(name string) error {
	dir, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// temporary matches the names that renameio gives to files until they are in place.
var temporary = regexp.MustCompile(`^\..+[0-9]+$`)

// Sweep removes what unfinished writes have left in a directory. Nobody may be writing there.
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
