package engine

import (
	"testing"

	"github.com/docker/docker/api/types/system"
)

func TestOfflineOf(t *testing.T) {
	const runsc = "/usr/local/bin/runsc"
	runtimes := map[string]system.RuntimeWithStatus{}
	for name, argv := range map[string][]string{
		"runc": {"runc"}, "old": {"/opt/runc"}, "kata": {"/usr/bin/kata"},
		"runsc": {runsc}, "runsc-offline": {runsc, "--network=none"},
		"kvm": {runsc, "--platform=kvm"}, "kvm-offline": {runsc, "--platform=kvm", "--network=none"},
		"other": {runsc, "--platform=kvm"}, "other-offline": {runsc, "--network=none"},
		"host": {runsc}, "host-offline": {runsc, "--network=host"},
		"exchanged": {runsc}, "exchanged-offline": {"/usr/bin/runc", "--network=none"},
		"shim": {""}, "shim-offline": {"", "--network=none"},
		"ours": {"/opt/runsc-freezer"}, "ours-offline": {"/opt/runsc-offline"},
		"mixed": {"/opt/runsc-freezer"}, "mixed-offline": {"/usr/bin/runsc-offline"},
		"more": {"/opt/runsc-freezer", "--debug"}, "more-offline": {"/opt/runsc-offline", "--debug"},
		"less": {"/opt/runsc-freezer", "--debug"}, "less-offline": {"/opt/runsc-offline"},
		"ours-linked": {"/opt/runsc-linked"}, "mixed-linked": {"/opt/runsc-offline"}, "runsc-linked": {"/usr/local/bin/runsc-linked"},
	} {
		runtimes[name] = system.RuntimeWithStatus{Runtime: system.Runtime{Path: argv[0], Args: argv[1:]}}
	}
	for name, want := range map[string]string{
		"runc": "runc", "old": "old", "kata": "", "runsc": "runsc-offline", "runsc-offline": "", "kvm": "kvm-offline", "other": "",
		"host": "", "exchanged": "", "shim": "", "unknown": "", "ours": "ours-offline", "mixed": "", "more": "more-offline", "less": "",
	} {
		if got := offlineOf(name, runtimes); got != want {
			t.Errorf("%s: %q, not %q", name, got, want)
		}
	}
	for name, want := range map[string]bool{"ours": true, "mixed": false, "runsc": false, "unknown": false} {
		if got := isBeside(runtimes[name], runtimes[name+"-linked"], "runsc-linked"); got != want {
			t.Errorf("%s is linked: %v", name, got)
		}
	}
}
