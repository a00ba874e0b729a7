package e2e

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
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
	var looked map[string]doctor.Finding
	eventually(t, "nothing is wrong with any", func() bool { // which have three seconds for an answer
		looked = c.hosts[1].clusterFindings(t)
		for _, f := range looked {
			if f.Level == doctor.Fault {
				t.Logf("%+v", f)
				return false
			}
		}
		return true
	})
	if f := looked["cluster connections"]; f.Level != doctor.OK {
		t.Errorf("%+v", f)
	}
	if len(looked) != 11 {
		t.Errorf("%d checks of the cluster: %+v", len(looked), looked)
	}
	silent, asked := c.others(holder)[0], c.others(holder)[1]
	asked.lists(t, "dan", holder)
	silent.stop(syscall.SIGKILL)
	asked.lists(t, "dan", holder, silent)
	if err := silent.start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the host answers", func() bool { return silent.knows(c) })
}

// lists waits until an operator's lists have the host of a user's container, and name those alone that do not answer, as one
// that is busy may not in time.
func (h *clusterHost) lists(t *testing.T, user string, holder *clusterHost, silent ...*clusterHost) {
	t.Helper()
	for list, row := range map[string]string{"ps": "(?m)^" + holder.name + " +" + user + " ", "egress log": ""} {
		want := ""
		for _, s := range silent {
			want += "host " + s.name + " does not answer"
		}
		eventually(t, "sandbox "+list+" tells of all hosts, and who is silent", func() bool {
			var said strings.Builder
			cmd := h.cli(strings.Fields(list)...)
			cmd.Stderr = &said
			out, err := cmd.Output()
			is := err == nil && regexp.MustCompile(row).Match(out) && strings.HasPrefix(said.String(), want) && (want != "" || said.Len() == 0)
			if !is {
				t.Logf("sandbox %s: %v\n%s%s", list, err, out, &said)
			}
			return is
		})
	}
}

// clusterFindings are what a host's doctor finds that is about several hosts, by the check.
func (h *clusterHost) clusterFindings(t *testing.T) map[string]doctor.Finding {
	t.Helper()
	cmd := exec.Command(filepath.Join(binaries, "sandboxd"), "doctor", "--offline", "--cluster", "--json")
	cmd.Env = h.environ
	var out []byte
	_ = h.place.do(func() (err error) { out, err = cmd.Output(); return err }) // other checks may have faults here
	var report doctor.Report
	if err := json.Unmarshal(out, &report); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	found := map[string]doctor.Finding{}
	for _, f := range report.Findings {
		if strings.HasPrefix(f.Check, "cluster ") {
			found[f.Check] = f
		}
	}
	return found
}
