package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// unitFile is deploy/sandboxd.service as directives, each with its words.
func unitFile(t *testing.T) map[string][]string {
	t.Helper()
	directives := map[string][]string{}
	for line := range strings.Lines(readText(t, "../deploy/sandboxd.service")) {
		if key, value, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			directives[key] = append(directives[key], strings.Fields(value)...)
		}
	}
	return directives
}

// systemd finds nothing wrong with the unit, and finds it confined.
func TestUnitFile(t *testing.T) {
	begin(t)
	unit := unitFile(t)
	var given []string
	for _, name := range unit["CapabilityBoundingSet"] {
		given = append(given, strings.TrimPrefix(name, "CAP_"))
	}
	slices.Sort(given)
	if !slices.Equal(given, composeCapabilities(t)) {
		t.Errorf("the unit has the capabilities %v, docker-compose.yml %v", given, composeCapabilities(t))
	}
	// systemd looks whether the program is there.
	file := filepath.Join(t.TempDir(), "sandboxd.service")
	text := strings.ReplaceAll(readText(t, "../deploy/sandboxd.service"), "/usr/local/bin", binaries)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	analyze := func(args ...string) []byte {
		out, err := exec.Command("systemd-analyze", args...).CombinedOutput()
		if err != nil {
			t.Errorf("systemd-analyze %s: %v (scripts/setup.sh tests installs it)\n%s", strings.Join(args, " "), err, out)
		}
		return out
	}
	verify := func() {
		t.Helper()
		if out := analyze("verify", "--man=no", file); len(bytes.TrimSpace(out)) > 0 {
			t.Errorf("%s", out)
		}
	}
	verify()
	for _, name := range []string{"sandboxd-fence.service", "sandboxd-etcd.service"} { // of a cluster
		other := filepath.Join(t.TempDir(), name)
		text := strings.NewReplacer("/usr/local/bin/etcd", "/bin/true", "/usr/local/bin", binaries).Replace(readText(t, "../deploy/"+name))
		if err := os.WriteFile(other, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if out := analyze("verify", "--man=no", other); len(bytes.TrimSpace(out)) > 0 {
			t.Errorf("%s: %s", name, out)
		}
	}
	protected := func(out []byte) bool {
		_, line, _ := strings.Cut(string(out), "ProtectControlGroups=")
		return strings.Contains(line[:strings.Index(line, "\n")], "cannot modify")
	}
	if out := analyze("security", "--offline=true", "--no-pager", "--threshold=35", file); !protected(out) { // in tenths; 31 when this was written
		t.Errorf("%s", out)
	}
	// With the drop-in it may write to control groups, and nothing else changes.
	dropIn := file + ".d/memory.conf"
	if err := errors.Join(os.Mkdir(file+".d", 0o755), os.WriteFile(dropIn, []byte(readText(t, "../deploy/sandboxd-memory.conf")), 0o644)); err != nil {
		t.Fatal(err)
	}
	verify()
	if out := analyze("security", "--offline=true", "--no-pager", "--threshold=36", file); protected(out) {
		t.Errorf("%s", out)
	}
}

// Under what the unit leaves it, the service runs commands under gVisor. Where systemd is not the first
// process it cannot start the unit, so Docker holds a container to the same: the capabilities and
// no new privileges, a root that is read-only but for its places, and the system calls.
func TestUnitConfinement(t *testing.T) {
	unit := unitFile(t)
	for key, value := range map[string]string{"NoNewPrivileges": "yes", "ProtectSystem": "strict", "SystemCallErrorNumber": "EPERM"} {
		if !slices.Equal(unit[key], []string{value}) {
			t.Errorf("%s is %v, not %s", key, unit[key], value)
		}
	}
	w := openWorld(t)
	d := newDeployment(t, w, "docker-compose.isolated.yml", "docker-compose.unit.yml")
	if err := os.WriteFile(d.path("project/seccomp.json"), seccompOf(t, unit), 0o644); err != nil {
		t.Fatal(err)
	}
	d.up(t)
	if err := d.probe(t, w, "unit"); err != nil {
		t.Error(err)
	}
	for name, run := range map[string]func(*testing.T, *deployment, *world){
		"exec": composeExec, "files": composeFiles, "egress": composeEgress, "process": composeProcess,
	} {
		t.Run(name, func(t *testing.T) { run(t, d, w) })
	}
}

// seccompOf is what the unit says of system calls, for Docker.
func seccompOf(t *testing.T, unit map[string][]string) []byte {
	t.Helper()
	type arg struct {
		Index uint   `json:"index"`
		Value uint64 `json:"value"`
		Op    string `json:"op"`
	}
	type rule struct {
		Names  []string `json:"names"`
		Action string   `json:"action"`
		Args   []arg    `json:"args,omitempty"`
	}
	families := map[string]uint64{"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}
	calls := map[string]bool{}
	for _, group := range unit["SystemCallFilter"] {
		addCalls(t, group, calls)
	}
	delete(calls, "socket")
	rules := []rule{{Names: slices.Sorted(maps.Keys(calls)), Action: "SCMP_ACT_ALLOW"}}
	for _, family := range unit["RestrictAddressFamilies"] {
		number, known := families[family]
		if !known {
			t.Errorf("RestrictAddressFamilies: %s is not known here", family)
		}
		rules = append(rules, rule{Names: []string{"socket"}, Action: "SCMP_ACT_ALLOW", Args: []arg{{0, number, "SCMP_CMP_EQ"}}})
	}
	profile, err := json.Marshal(map[string]any{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": rules})
	if err != nil {
		t.Fatal(err)
	}
	return profile
}

// addCalls adds the system calls of one of systemd's groups, with those of the groups in it.
func addCalls(t *testing.T, group string, calls map[string]bool) {
	t.Helper()
	out, err := exec.Command("systemd-analyze", "syscall-filter", "--no-pager", group).Output()
	if err != nil {
		t.Fatalf("systemd-analyze syscall-filter %s: %v (scripts/setup.sh tests installs it)", group, err)
	}
	for line := range strings.Lines(string(out)) {
		switch name := strings.TrimSpace(line); {
		case name == "" || name == group || strings.HasPrefix(name, "#"):
		case strings.HasPrefix(name, "@"):
			addCalls(t, name, calls)
		default:
			calls[name] = true
		}
	}
}

// The service tells who has started it that it listens.
func TestServiceSaysWhenItListens(t *testing.T) {
	name := filepath.Join(t.TempDir(), "notify")
	told, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer told.Close()
	l := newLab(t, "runsc", "NOTIFY_SOCKET="+name)
	if err := told.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	message := make([]byte, 100)
	if n, err := told.Read(message); err != nil || string(message[:n]) != "READY=1" {
		t.Errorf("%q %v", message[:n], err)
	}
	if _, err := l.client.Health(context.Background()); err != nil {
		t.Error(err)
	}
}

// Prometheus takes the alerts, and they say what alerts_test.yml expects, neither more nor later.
func TestAlerts(t *testing.T) {
	begin(t)
	for _, args := range [][]string{{"check", "rules", "alerts.yml"}, {"test", "rules", "alerts_test.yml"}} {
		cmd := exec.Command("promtool", args...)
		cmd.Dir = "../deploy/prometheus"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %q: %v\n%s", args, err, out)
		}
	}
}
