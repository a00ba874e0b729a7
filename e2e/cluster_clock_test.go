package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// jumpingPrograms builds ours so that what they take for the time of day is as many seconds from the machine's as a file says
// whose name is in E2E_CLOCK. Setting the machine's would be felt by all else that runs there.
func jumpingPrograms(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	standard := filepath.Join(strings.TrimSpace(string(root)), "src/time/time.go")
	text := holds(standard)
	const reads = "sec, nsec, mono := runtimeNow()\n"
	if !strings.Contains(text, "func Now() Time {\n\t"+reads) {
		t.Fatalf("%s is not as it was: look how time.Now gets the time of day", standard)
	}
	putFile(t, dir+"/time.go", strings.Replace(text, reads, reads+"\tsec += jumped\n", 1)+"\n//go:linkname jumped\nvar jumped int64\n")
	putFile(t, dir+"/clock.go", `package main

import (
	"os"
	"strconv"
	"strings"
	"time"
	_ "unsafe"
)

//go:linkname jumped time.jumped
var jumped int64

func init() {
	go func() {
		for ; ; time.Sleep(10 * time.Millisecond) {
			text, _ := os.ReadFile(os.Getenv("E2E_CLOCK"))
			jumped, _ = strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		}
	}()
}
`)
	source, err := filepath.Abs("../cmd/sandboxd")
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{standard: dir + "/time.go", source + "/clock.go": dir + "/clock.go"}})
	if err != nil {
		t.Fatal(err)
	}
	putFile(t, dir+"/overlay.json", string(overlay))
	build := exec.Command("go", "build", "-trimpath", "-overlay", dir+"/overlay.json", "-o", dir+"/", "../cmd/sandboxd")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
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
		eventually(t, "its clock has jumped", func() bool {
			return strings.Contains(other.clusterFindings(t)["cluster clocks"].Found, fmt.Sprintf("%s is %dh", h.name, int(ahead.Hours()))) == (ahead != 0)
		})
	}
	set(0)
	from, environ := h.from, h.environ
	h.from, h.environ = jumpingPrograms(t), append(h.environ, "E2E_CLOCK="+clock)
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
	h.from, h.environ = from, environ
	h.restart(t)
	c.come(t, h)
	if _, err := c.hosts[0].client.StopProcess(t.Context(), user, process, ""); err != nil {
		t.Error(err)
	}
}
