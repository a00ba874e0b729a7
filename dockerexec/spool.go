package dockerexec

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// spoolPrefix begins the name of every spool file on the host.
const spoolPrefix = ".spool-"

// SpoolPattern returns a pattern for the names of an instance's spool files: services of other
// hosts may have theirs beside them.
func (o Owner) SpoolPattern() string { return spoolPrefix + o.Instance + "-*" }

// makeSpool makes a spool file, which belongs to the agent, for a container that is about to be
// created.
func makeSpool(spec Spec) (path string, err error) {
	return session.CreateSpool(spec.SpoolDir, spec.Platform.owner().SpoolPattern(), spec.UID,
		spec.GID)
}

// spoolOf returns the path of an existing container's spool file; empty if it has none.
func spoolOf(mounts []specs.Mount) string {
	for _, m := range mounts {
		if m.Destination == wire.SpoolPath &&
			strings.HasPrefix(filepath.Base(m.Source), spoolPrefix) {
			return m.Source
		}
	}
	return ""
}

func removeSpool(path string) error {
	if path == "" {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot remove the spool: %w", err)
	}
	return nil
}
