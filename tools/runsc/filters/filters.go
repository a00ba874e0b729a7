// Package filters has seccomp programs of gVisor's that were compiled ahead, so that a container's
// start need not compile them. Upstream's own build embeds them; its Go module has none.
//
//	filters.go       Register gives the programs to gVisor
//	maps.s           the addresses of gVisor's maps, which are not exported
//	generate         makes the programs_*.go, one for each architecture, from gVisor's rules
package filters

import (
	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	sentry "gvisor.dev/gvisor/runsc/boot/filter"
	gofer "gvisor.dev/gvisor/runsc/fsgofer/filter"
)

//go:generate go run ./generate

// Where gVisor keeps its precompiled programs, by their names. The linker fills in the addresses
// (maps.s), and fails if gVisor has no such variable.
var sentryMap, goferMap *map[string]precompiledseccomp.Program

// Register gives the programs to gVisor, which takes the one whose name fits a container's
// configuration. For any other configuration it compiles a program, as before. Register must be
// called before anything of gVisor's runs.
func Register() {
	// These calls make the maps, once.
	sentry.ListPrecompiled()
	gofer.ListPrecompiled()
	for _, p := range sentryPrograms {
		(*sentryMap)[p.Name] = p
	}
	for _, p := range goferPrograms {
		(*goferMap)[p.Name] = p
	}
}
