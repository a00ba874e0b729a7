package e2e

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/cli/doctor"
)

// Each host says which it is, and finds nothing wrong with the others.
func hostsSayWhoTheyAre(t *testing.T, c *clusterLab) {
	c.hosts[0].register(t, "dan")
	c.hosts[0].sh(t, "dan", "true")
	holder := c.holder(t, "dan")
	for _, h := range c.hosts {
		if e, err := h.client.Explain(t.Context(), "dan", types.Explain{}); err != nil || e.Node != holder.name {
			t.Errorf("%s: %+v, %v", h.name, e, err)
		}
	}
	h := c.hosts[1]
	cmd := exec.Command(filepath.Join(binaries, "sandboxd"), "doctor", "--offline", "--cluster", "--json")
	cmd.Env = h.environ
	var out []byte
	_ = h.place.do(func() (err error) { out, err = cmd.Output(); return err }) // other checks may have faults here
	var report doctor.Report
	if err := json.Unmarshal(out, &report); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	looked := 0
	for _, f := range report.Findings {
		if strings.HasPrefix(f.Check, "cluster ") {
			if looked++; f.Level == doctor.Fault {
				t.Errorf("%+v", f)
			}
		}
	}
	if looked != 10 {
		t.Errorf("%d checks of the cluster: %s", looked, out)
	}
}
