package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/api/types"
)

// jumpingPrograms makes ours anew so that what they take for the time of day is as many seconds ahead of the machine's as a file
// says. Setting the machine's would be felt by all else that runs there. Package time alone is compiled, without a new name or line, so that
// it can be linked with the others as they were compiled before.
func jumpingPrograms(t *testing.T, clock string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	list := func(of string, flags ...string) string {
		cmd := exec.Command("go", slices.Concat([]string{"list", "-trimpath", "-export"}, flags, []string{of})...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go list %s: %v", of, err)
		}
		return strings.TrimSpace(string(out))
	}
	standard, changed := list("time", "-f", "{{.Dir}}"), map[string]string{}
	change := func(name, usual, more string) {
		text := holds(standard + name)
		if strings.Count(text, usual) != 1 {
			t.Fatalf("%s is not as it was: look how time.Now gets the time of day", standard+name)
		}
		changed[standard+name] = dir + name
		putFile(t, dir+name, strings.Replace(text, usual, usual+more, 1))
	}
	// Now is called by the scheduler, too, so it does not read the file itself. Nothing is dialed or asked of etcd without a limit, which
	// is a function to call later. What the two share is a place that nobody else looks at.
	change("/time.go", "sec, nsec, mono := runtimeNow()", "; sec += utcLoc.cacheStart")
	change("/sleep.go", "func AfterFunc(d Duration, f func()) *Timer {", ` if file, err := open("`+clock+`"); err == nil { `+
		`var text [20]byte; n, _ := read(file, text[:]); closefd(file); `+
		`ahead := int64(0); for _, digit := range text[:max(n, 0)] { ahead = 10*ahead + int64(digit-'0') }; utcLoc.cacheStart = ahead };`)
	overlay, err := json.Marshal(map[string]any{"Replace": changed})
	if err != nil {
		t.Fatal(err)
	}
	putFile(t, dir+"/overlay.json", string(overlay))
	const packages = "{{if .Export}}packagefile {{.ImportPath}}={{.Export}}{{end}}"
	all := list("../cmd/sandboxd", "-deps", "-f", packages)
	usual, jumping := list("time", "-f", packages), list("time", "-overlay", dir+"/overlay.json", "-f", packages)
	if !strings.Contains(all, usual+"\n") || usual == jumping {
		t.Fatalf("%s and %s are not two of package time", usual, jumping)
	}
	putFile(t, dir+"/packages", strings.Replace(all, usual, jumping, 1))
	_, program, _ := strings.Cut(all[strings.LastIndex(all, "\n"):], "=")
	if out, err := exec.Command("go", "tool", "link", "-s", "-w", "-importcfg", dir+"/packages", "-o", dir+"/sandboxd", program).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, name := range []string{"sandbox", "sandbox-agent"} {
		if err := os.Link(filepath.Join(binaries, name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// The clock of the host that holds a user jumps hours ahead and back. While it has its lease, that changes nothing; when it is cut
// off, it has as little time as without.
func aClockJumps(t *testing.T, c *clusterLab) {
	const user = "late"
	process, file := c.writes(t, user)
	h := c.holder(t, user)
	other := c.others(h)[0]
	clock := h.path("clock")
	set := func(ahead time.Duration) {
		t.Helper()
		putFile(t, clock, strconv.Itoa(int(ahead.Seconds())))
		found := "at most " // they are apart
		if ahead != 0 {
			found = fmt.Sprintf("the clock of %s is %dh", h.name, int(ahead.Hours()))
		}
		eventually(t, "its clock has jumped", func() bool {
			return strings.HasPrefix(other.clusterFindings(t)["cluster clocks"].Found, found)
		})
	}
	set(0)
	from := h.from
	h.from = jumpingPrograms(t, clock)
	h.restart(t)
	eventually(t, "the host is back", func() bool { return h.knows(c) && other.knows(c) })
	fenced := h.metric(t, "sandboxd_cluster_fences_total")
	for _, ahead := range []time.Duration{5*time.Hour + 30*time.Minute, 0, 3*time.Hour + 30*time.Minute} {
		set(ahead)
		for begun := time.Now(); time.Since(begun) < 8*time.Second; { // longer than a lease may be without a renewal
			if left := h.metric(t, "sandboxd_cluster_lease_left_seconds"); left <= 0 || left > 6 {
				t.Fatalf("its clock is %s ahead: %v s of the lease are left", ahead, left)
			}
			other.sh(t, user, "true")
		}
		if n, now := len(runs(t, file)), h.metric(t, "sandboxd_cluster_fences_total"); n != 1 || now != fenced || c.holder(t, user) != h {
			t.Fatalf("its clock is %s ahead: %d starts, fenced %v times", ahead, n, now-fenced)
		}
	}
	before := runs(t, file)
	c.cut(t, h, true)
	putFile(t, clock, "0") // hours back, with seconds to go
	anotherWrites(t, file, before, "its link is cut and its clock jumps back")
	noneOverlap(t, file, 2)
	c.come(t, h)
	h.from = from
	h.restart(t)
	c.come(t, h)
	if _, err := c.hosts[0].client.StopProcess(t.Context(), user, process, ""); err != nil {
		t.Error(err)
	}
	c.certificatesExpire(t)
}

// certificatesExpire has all certificates have expired by the clock of a host: it is as one that is cut off.
func (c *clusterLab) certificatesExpire(t *testing.T) {
	const user = "expired"
	process, file := c.writes(t, user)
	h := c.holder(t, user)
	before, from := runs(t, file), h.from
	h.from = jumpingPrograms(t, h.path("clock"))
	putFile(t, h.path("clock"), strconv.Itoa(int((3 * 365 * 24 * time.Hour).Seconds())))
	h.restart(t)
	eventually(t, "it places nobody any more", func() bool { return isKind(h.places(t, "late-guest"), types.Unavailable) })
	anotherWrites(t, file, before, "its certificates have expired")
	noneOverlap(t, file, 2)
	h.from = from
	h.restart(t)
	c.come(t, h)
	if _, err := c.others(h)[0].client.StopProcess(t.Context(), user, process, ""); err != nil {
		t.Error(err)
	}
}
