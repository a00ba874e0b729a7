// Package version tells which build this is.
package version

import "runtime/debug"

// Version is set by the linker for a release: -X github.com/daycare-run/sandbox/version.Version=v1.2.3.
var Version = "dev"

// String is the version with the commit that it was built from, where that is known.
func String() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return Version
	}
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" && len(setting.Value) >= 12 {
			return Version + " (" + setting.Value[:12] + ")"
		}
	}
	return Version
}
