package e2e

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/api/types"
)

// stretch is a time in which one start of a process has written.
type stretch struct{ first, last float64 }

// runs are those of the lines "id seconds" in a file. All hosts of the lab have one clock, which under gVisor only that of the
// day shows.
func runs(t *testing.T, name string) map[string]stretch {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		return nil
	}
	all := map[string]stretch{}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) != 2 || !strings.HasSuffix(line, "\n") {
			continue // it is being written
		}
		at, err := strconv.ParseFloat(fields[1], 64)
		if err != nil {
			t.Fatalf("%q", line)
		}
		r, known := all[fields[0]]
		if !known {
			r.first = at
		}
		r.last = max(r.last, at)
		all[fields[0]] = r
	}
	return all
}

// writes starts a process of a new user's that writes who it is and the time without end, to a file that runs reads.
func (c *clusterLab) writes(t *testing.T, user string) (process, file string) {
	t.Helper()
	c.hosts[0].register(t, user)
	return c.writesAs(t, user, types.StartProcess{Permissions: workspace})
}

func (c *clusterLab) writesAs(t *testing.T, user string, asked types.StartProcess) (process, file string) {
	t.Helper()
	asked.KeepAlive = true
	asked.Command = `read -r id < /proc/sys/kernel/random/uuid; while :; do echo $id $(date +%s.%N) >> /home/runs; done`
	started, err := c.hosts[0].client.StartProcess(t.Context(), user, asked)
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(c.dir, "users", user, "home/runs")
	eventually(t, "the process runs", func() bool { return len(runs(t, file)) > 0 })
	return started.ID, file
}

// linkCuts is how often a link is cut.
func linkCuts() int {
	n, err := strconv.Atoi(os.Getenv("SANDBOX_E2E_FAULTS"))
	if err != nil {
		return 1
	}
	return n
}

// A persistent sandbox goes on from its home on another host, with its process, and never on two.
func machineOfALostHost(t *testing.T, c *clusterLab) {
	const user = "two"
	c.hosts[0].registerPersistent(t, user)
	_, file := c.writesAs(t, user, types.StartProcess{In: types.InSandbox})
	lost := c.holder(t, user)
	other := c.others(lost)[0]
	other.shIn(t, user, "echo kept > file; echo gone > /tmp/file")
	before := runs(t, file)
	c.cut(t, lost, true)
	anotherWrites(t, file, before, "its host is cut off")
	if got := other.shIn(t, user, "cat file; [ -e /tmp/file ] || echo fresh"); got != "kept\nfresh" {
		t.Errorf("on another host it has %q", got)
	}
	c.come(t, lost)
	noneOverlap(t, file, 2)
	if err := other.client.Delete(t.Context(), user); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it has gone with its sandbox", func() bool {
		return !slices.ContainsFunc(c.hosts, func(h *clusterHost) bool { return c.has(t, h, user) })
	})
}

// A process writes who it is and the time without end, and whatever is done to the host that holds its user, no other
// start of it writes before that has ended, and another goes on.
func noTwoHostsRunAUser(t *testing.T, c *clusterLab) {
	_, file := c.writes(t, "one")
	faults := []struct {
		name string
		do   func(h *clusterHost)
		same bool // it goes on where it is
	}{
		{"sandboxd is killed", func(h *clusterHost) { h.stop(syscall.SIGKILL) }, true},
		{"its engine is killed", func(h *clusterHost) { killed(h.engine.cmd) }, false},
		{"its fence is killed, and its sandboxd", func(h *clusterHost) { h.fence.kill(); h.stop(syscall.SIGKILL) }, false},
		{"its fence is killed", func(h *clusterHost) { h.fence.kill() }, false}, // and nobody starts it again
		{"its etcd is killed", func(h *clusterHost) { h.etcd.kill() }, true},
		{"all its processes are killed", func(h *clusterHost) { h.killAll(t) }, false},
	}
	cuts := linkCuts()
	c.cutLinks(t, "one", file, cuts)
	for _, fault := range faults {
		h := c.holder(t, "one")
		before := runs(t, file)
		begun := time.Now()
		fault.do(h)
		if !fault.same {
			anotherWrites(t, file, before, fault.name)
			t.Logf("%s: it goes on elsewhere after %s", fault.name, time.Since(begun).Round(100*time.Millisecond))
		}
		c.come(t, h)
		if fault.same {
			writesOn(t, file, before, fault.name)
		}
	}
	noneOverlap(t, file, 1+cuts+4)
	standsStill(t, c, file)
	fencedOff(t, c, file)
}

// cutLinks cuts the link of the host that holds a user, again and again. In between each other host answers calls of the user's.
func (c *clusterLab) cutLinks(t *testing.T, user, file string, times int) {
	var answered []time.Duration
	for range times {
		h := c.holder(t, user)
		before := runs(t, file)
		begun := time.Now()
		c.cut(t, h, true)
		for _, other := range c.others(h) {
			other.answersFor(t, user)
			if other == c.others(h)[0] {
				answered = append(answered, time.Since(begun).Round(100*time.Millisecond))
			}
		}
		anotherWrites(t, file, before, "its link is cut")
		t.Logf("its link is cut: a call is answered elsewhere after %s, and the process goes on after %s", answered[len(answered)-1], time.Since(begun).Round(100*time.Millisecond))
		c.come(t, h)
	}
	slices.Sort(answered)
	if median, worst := answered[(len(answered)-1)/2], answered[len(answered)-1]; times > 1 {
		t.Logf("%d links were cut: the first answer came after %s in the median, %s at worst", times, median, worst)
	}
}

// answersFor makes sure that a host answers the next call of a user whose host was cut off: while that is lost, the call waits for as
// long as docs/guarantees.md tells, which no test measures here, and fails after that. One call may have been sent to the host before
// anybody knew that it is lost.
func (h *clusterHost) answersFor(t *testing.T, user string) {
	t.Helper()
	call := func() (types.Output, error) {
		return h.client.Exec(t.Context(), user, types.Exec{Permissions: workspace, Command: "echo there"})
	}
	out, err := call()
	if isKind(err, types.Unavailable) && strings.Contains(err.Error(), "how far it got is not known, and it is not repeated") {
		out, err = call()
	}
	if err != nil || out.Stdout != "there\n" {
		t.Fatalf("%s does not answer: %+v, %v", h.name, out, err)
	}
}

// anotherWrites waits until another start of the process writes.
func anotherWrites(t *testing.T, file string, before map[string]stretch, after string) {
	t.Helper()
	eventually(t, "another start of the process writes after: "+after, func() bool { return len(runs(t, file)) > len(before) })
}

// writesOn waits until the process writes on, and makes sure that no further start of it has written.
func writesOn(t *testing.T, file string, before map[string]stretch, after string) {
	t.Helper()
	last := func() (at float64) {
		for _, r := range runs(t, file) {
			at = max(at, r.last)
		}
		return at
	}
	now := last()
	eventually(t, "the process writes on after: "+after, func() bool { return last() > now })
	if n := len(runs(t, file)); n != len(before) {
		t.Errorf("%s: %d starts, and %d before", after, n, len(before))
	}
}

// noneOverlap makes sure that no start of the process wrote before the one before it had ended.
func noneOverlap(t *testing.T, file string, atLeast int) {
	t.Helper()
	var all []stretch
	for _, r := range runs(t, file) {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b stretch) int { return int((a.first - b.first) * 1000) })
	for i := 1; i < len(all); i++ {
		if all[i].first < all[i-1].last {
			t.Errorf("two of them ran at the same time: %+v and %+v", all[i-1], all[i])
		}
	}
	if len(all) < atLeast {
		t.Errorf("%d starts", len(all))
	}
}

// A host that stands still and goes on later kills nothing while it does: what ran there writes beside its successor until
// the fence or its guard has its turn, or the service. How long that is nobody can promise; that it ends is shown.
func standsStill(t *testing.T, c *clusterLab, file string) {
	h := c.holder(t, "one")
	before := runs(t, file)
	fenced := func() int { // which may have happened in an earlier fault, too
		return h.fence.log.count("its lease could not be renewed") + h.fence.log.count("renewed too late") + h.fence.log.count("lease has ended")
	}
	earlier := fenced()
	all := h.processes()
	signalAll(all, syscall.SIGSTOP)
	anotherWrites(t, file, before, "the host stands still")
	signalAll(all, syscall.SIGCONT)
	goesOn := float64(time.Now().UnixMilli()) / 1000
	eventually(t, "the fence has killed what ran", func() bool { return fenced() > earlier })
	c.come(t, h)
	now := runs(t, file)
	for id := range before {
		if late := now[id].last - goesOn; late > 0 {
			t.Logf("a host that stood still wrote for %.2f s after it went on", late)
		}
	}
	eventually(t, "one start of the process alone writes", func() bool {
		now := runs(t, file)
		time.Sleep(time.Second)
		writing := 0
		for id, r := range runs(t, file) {
			if r.last > now[id].last {
				writing++
			}
		}
		return writing == 1
	})
}

// Where a command fences a lost host off, as a power switch does, nothing of one that stood still is left when another goes on.
// It is for those, too, who were held before it was set.
func fencedOff(t *testing.T, c *clusterLab, file string) {
	before := len(runs(t, file))
	program := c.powerSwitch(t)
	for _, h := range c.hosts {
		h.stop(syscall.SIGKILL)
		h.environ = append(h.environ, "SANDBOXD_CLUSTER_FENCE_COMMAND="+program)
		if err := h.start(); err != nil {
			t.Fatal(err)
		}
	}
	c.hosts[0].sh(t, "one", "true")
	h := c.holder(t, "one")
	if n := len(runs(t, file)); n != before {
		t.Fatalf("%d starts, not %d", n, before)
	}
	all := h.processes()
	signalAll(all, syscall.SIGSTOP)
	h.wire(t, program)
	noLonger := runs(t, file)
	anotherWrites(t, file, noLonger, "the host stands still and is fenced off")
	now := runs(t, file)
	signalAll(all, syscall.SIGCONT) // whoever is left would go on beside it
	ran := 0.0
	for _, other := range c.others(h) {
		ran += other.metric(t, `sandboxd_cluster_fence_commands_total{outcome="ok"}`)
	}
	if ran < 1 {
		t.Errorf("the command ran %v times", ran)
	}
	goesOn := float64(time.Now().UnixMilli()) / 1000
	eventually(t, "something goes on writing", func() bool {
		return slices.ContainsFunc(slices.Collect(maps.Values(runs(t, file))), func(r stretch) bool { return r.last > goesOn+1 })
	})
	for id := range noLonger {
		if late := runs(t, file)[id].last - now[id].last; late > 0 {
			t.Errorf("a host that was fenced off wrote for %.2f s more", late)
		}
	}
	c.come(t, h)
}

func signalAll(pids []int, what syscall.Signal) {
	for _, pid := range pids {
		_ = syscall.Kill(pid, what)
	}
}
