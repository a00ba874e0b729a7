package dockerexec

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/dockerexec/networks"
)

// What the engine is asked to make of a Spec is the same, to the last field, in every version: a
// container that another version has made is reused. Files in the engine's testdata hold it, and
// its test holds what Docker is sent for them.
func TestTheEngineIsAskedForTheSame(t *testing.T) {
	session, process, persistent := fullSpec(), fullSpec(), fullSpec()
	session.Process, persistent.Process = Process{}, Process{}
	persistent.Persistent = "l-1"
	root, offline, spaces := persistent, session, session
	root.Root, root.Platform.GVisor = true, true
	offline.Egress, offline.Platform.Offline = Egress{}, "runsc-offline"
	spaces.Platform.Unconfined = false
	at := networks.Wiring{
		Network: "daycare-isolated", Addr: netip.MustParseAddr("10.1.2.3"),
		Gateway: netip.MustParseAddr("10.1.2.1"), ResolvConf: "/data/resolv.conf",
	}
	prepared := Prepared{
		Mounts: []Mount{{Source: "/data/x", Target: "/home/x"}},
		Masks:  []Mask{{Target: "/home/y"}},
	}
	for name, tt := range map[string]struct {
		spec     Spec
		prepared Prepared
		net      networks.Wiring
	}{
		"empty": {}, "session": {spec: session}, "process": {spec: process},
		"persistent": {spec: persistent}, "root": {spec: root},
		"prepared": {spec: session, prepared: prepared}, "network": {spec: session, net: at},
		"offline": {spec: offline}, "namespaces": {spec: spaces},
	} {
		t.Run(name, func(t *testing.T) {
			made := tt.spec.engineSpec("/data/users/alice/.spool-1", tt.prepared, tt.net)
			made.CgroupParent = "daycare.slice"
			if made.Seccomp == namespaceProfile() {
				made.Seccomp = "PROFILE" // it differs with the architecture
			}
			got, err := json.MarshalIndent(made, "", "\t")
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("../internal/engine/testdata/create", name+".spec.json")
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)+"\n"); diff != "" {
				t.Errorf("want (-), got (+):\n%s", diff)
			}
		})
	}
}
