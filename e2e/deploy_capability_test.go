package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"

	"github.com/daycare-run/sandbox/api/types"
)

// capabilityBits are those of linux/capability.h that we know by name.
var capabilityBits = map[string]int{
	"CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "SETGID": 6, "SETUID": 7, "NET_BIND_SERVICE": 10, "NET_ADMIN": 12,
}

// capabilityMask is a set as /proc tells it.
func capabilityMask(t *testing.T, names []string) string {
	t.Helper()
	mask := uint64(0)
	for _, name := range names {
		bit, known := capabilityBits[name]
		if !known {
			t.Errorf("capability %s is not known here", name)
		}
		mask |= 1 << bit
	}
	return fmt.Sprintf("%016x", mask)
}

// statusOf is what /proc tells of a process.
func statusOf(t *testing.T, pid int) map[string]string {
	t.Helper()
	status := map[string]string{}
	for line := range strings.Lines(readText(t, fmt.Sprintf("/proc/%d/status", pid))) {
		key, value, _ := strings.Cut(line, ":")
		status[key] = strings.TrimSpace(value)
	}
	return status
}

func readText(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// composeCapabilities are those that docker-compose.yml adds, sorted.
func composeCapabilities(t *testing.T) (names []string) {
	t.Helper()
	_, rest, _ := strings.Cut(readText(t, "../docker-compose.yml"), "\n    cap_add:")
	for line := range strings.Lines(rest) {
		if item := strings.Fields(line); len(item) > 1 && item[0] == "-" {
			names = append(names, item[1])
		} else if len(names) > 0 {
			break
		}
	}
	slices.Sort(names)
	return names
}

// Each capability of the deployment is needed: without it something fails, and says so.
func TestEveryCapabilityIsNeeded(t *testing.T) {
	want := map[string]string{
		"CHOWN":            "cannot open the home",
		"DAC_OVERRIDE":     "cannot make the file that hides others",
		"FOWNER":           "cannot verify the mount",
		"NET_ADMIN":        "CAP_NET_ADMIN",
		"NET_BIND_SERVICE": "CAP_NET_BIND_SERVICE",
		"SETGID":           "may not act as the owner",
		"SETUID":           "may not act as the owner",
	}
	given := composeCapabilities(t)
	if known := slices.Sorted(maps.Keys(want)); !slices.Equal(given, known) {
		t.Fatalf("docker-compose.yml gives %v, and what is known here is %v", given, known)
	}
	w := openWorld(t)
	d := newDeployment(t, w, "docker-compose.isolated.yml")
	d.up(t)
	if err := d.probe(t, w, "all"); err != nil {
		t.Fatalf("with all of them: %v", err)
	}
	compose := readText(t, d.path("project/docker-compose.yml"))
	for _, name := range given {
		without := regexp.MustCompile(`(?m)^ +- `+name+` .*\n`).ReplaceAllString(compose, "")
		if err := os.WriteFile(d.path("project/docker-compose.yml"), []byte(without), 0o644); err != nil {
			t.Fatal(err)
		}
		d.compose(t, "up", "--detach") // what is built is the same
		d.client.Close()
		user := strings.ToLower(strings.ReplaceAll(name, "_", "-"))
		if says := d.fault(t, w, user); !strings.Contains(says, want[name]) {
			t.Errorf("without %s: %q, not %q", name, says, want[name])
		}
	}
}

// fault is what a service that lacks something says: when it ends, or when it is asked.
func (d *deployment) fault(t *testing.T, w *world, user string) (says string) {
	t.Helper()
	eventually(t, "the service answers or ends", func() bool {
		if d.service(t).State.Status == container.StateExited {
			says, _ = d.try("logs", "--no-color", "--tail", "3")
			return true
		}
		if _, err := d.client.Health(context.Background()); err != nil {
			return false
		}
		says = fmt.Sprint(d.probe(t, w, user))
		return true
	})
	return says
}

// probe does what needs capabilities, for a user who is new, and returns what fails first.
func (d *deployment) probe(t *testing.T, w *world, user string) error {
	t.Helper()
	d.registerAs(t, user, types.Registration{UserID: user, Permissions: types.Permissions{Network: true}})
	name := w.name(t, "probe", w.shared)
	for _, call := range []types.Exec{
		{Command: "mkdir -m 700 own && echo x > own/file", Permissions: workspace},
		{Command: hello("http://" + name), Permissions: []string{"@network"}, AllowedDomains: []string{name}},
	} {
		out, err := d.client.Exec(t.Context(), user, call)
		if err == nil && out.Failed {
			err = fmt.Errorf("%s: %s", exitText(out), out.Stderr)
		}
		if err != nil {
			return err
		}
	}
	_, err := d.client.Read(t.Context(), user, types.Read{Target: types.Target{Path: "own/file"}})
	return err
}
