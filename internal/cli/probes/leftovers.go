package probes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/engine"
)

// leftovers returns the belongings in Docker of services whose dataDir is gone or now has another
// service, and the shims of containers that Docker has forgotten.
func leftovers(belongings []dockerexec.Belonging, shims []engine.Shim) (left []string) {
	for _, b := range belongings {
		if why := whyAbandoned(b.Owner); why != "" {
			left = append(left, fmt.Sprintf("%s, %s", b, why))
		}
	}
	slices.Sort(left)
	for _, s := range shims {
		left = append(left,
			fmt.Sprintf("the shim of a container %.12s that Docker does not have (kill -9 %d)",
				s.Container, s.PID))
	}
	return left
}

// whyAbandoned returns why o no longer exists, or "" if it may still exist.
func whyAbandoned(o dockerexec.Owner) string {
	if o.DataDir == "" {
		return "of an instance " + o.Instance + " that names no dataDir"
	}
	now, err := os.ReadFile(filepath.Join(o.DataDir, "instance"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "of dataDir " + o.DataDir + ", which is gone"
	case err == nil && strings.TrimSpace(string(now)) != o.Instance:
		return "of dataDir " + o.DataDir + ", which another service uses now"
	}
	return ""
}
