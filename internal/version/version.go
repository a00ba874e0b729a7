// Package version says which build this is.
package version

import (
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"
)

// Release is the newest release in CHANGELOG.md.
const Release = "0.1.0"

// Version may be set by the linker, for a packager's own:
// -X github.com/daycare-run/sandbox/internal/version.Version=1.2.3-4.
var Version = Release

// Info is what a build knows about itself. What it does not know is empty.
type Info struct {
	// Version is the release; a build of a later commit tells it by its Revision.
	Version string `json:"version"`
	// Revision is the commit that it was built from, and Modified says that there were changes
	// beside it.
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitzero"`
	// Time is when that commit was made.
	Time time.Time `json:"time,omitzero"`
	// Go is the toolchain, Platform the system and architecture that it was built for.
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// String returns the version, with the commit that it was built from if that is known.
func (i Info) String() string {
	if len(i.Revision) < 12 {
		return i.Version
	}
	return i.Version + " (" + i.Revision[:12] + ")"
}

// String returns the version of this build.
func String() string { return Read().String() }

// Read returns the Info of this build.
var Read = sync.OnceValue(func() Info {
	build, ok := debug.ReadBuildInfo()
	if !ok {
		build = &debug.BuildInfo{}
	}
	return read(Version, build)
})

func read(version string, build *debug.BuildInfo) Info {
	i := Info{Version: version, Go: runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH}
	for _, setting := range build.Settings {
		switch setting.Key {
		case "vcs.revision":
			i.Revision = setting.Value
		case "vcs.modified":
			i.Modified = setting.Value == "true"
		case "vcs.time":
			i.Time, _ = time.Parse(time.RFC3339, setting.Value)
		}
	}
	// A build by `go install …@v1.2.3` knows its module's version, but no commit.
	if main := build.Main.Version; version == Release && i.Revision == "" && main != "" &&
		main != "(devel)" {
		i.Version = strings.TrimPrefix(main, "v")
	}
	return i
}
