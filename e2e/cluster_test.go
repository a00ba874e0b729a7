package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// Three hosts answer as one, and a user is on one of them at a time.
func TestCluster(t *testing.T) {
	c := openCluster(t, cmp.Or(os.Getenv("SANDBOX_E2E_CLUSTER_RUNTIME"), "runsc"), cmp.Or(os.Getenv("SANDBOX_E2E_FROM"), previousVersion(t, "cluster")))
	const upgraded = "hosts are upgraded one after another" // to this version, by which all else is done
	parts := []struct {
		name  string
		story func(*testing.T, *clusterLab)
	}{
		{upgraded, upgradesLoseNoCall},
		{"any host answers", anyHostAnswers},
		{"new users come from the pool", newUsersComeFromThePool},
		{"a killed binding is no other host's", killedBindingIsNoOtherHosts},
		{"hosts say who they are", hostsSayWhoTheyAre},
		{"the console shows the hosts", consoleShowsTheHosts},
		{"all is sent on", allIsSentOn},
		{"egress is sent on", egressIsSentOn},
		{"tokens at every door", tokensAtEveryDoor},
		{"E2B by any host", e2bByAnyHost},
		{"E2B of a lost host", e2bOfALostHost},
		{"a persistent sandbox of a lost host", machineOfALostHost},
		{"etcd's disks are full", etcdsDisksAreFull},
		{"a clock jumps", aClockJumps},
		{"homes on one host", homesOnOneHost},
		{"no two hosts run a user", noTwoHostsRunAUser},
	}
	for _, part := range parts {
		if !t.Run(part.name, func(t *testing.T) {
			if part.name != upgraded {
				c.isUpgraded(t)
			}
			part.story(t, c)
		}) {
			return // the hosts are in any state
		}
	}
}

// holder is the host that holds a user, who has something on it.
func (c *clusterLab) holder(t *testing.T, user string) *clusterHost {
	t.Helper()
	var found *clusterHost
	eventually(t, user+" is on one host", func() bool {
		found = nil
		for _, h := range c.hosts {
			containers, err := h.listContainers()
			if err != nil {
				continue
			}
			for _, one := range containers {
				if h.userOf(one) == user && one.State == "running" {
					if found != nil && found != h {
						return false
					}
					found = h
				}
			}
		}
		return found != nil
	})
	return found
}

func (c *clusterLab) others(h *clusterHost) []*clusterHost {
	return slices.DeleteFunc(slices.Clone(c.hosts), func(o *clusterHost) bool { return o == h })
}

func anyHostAnswers(t *testing.T, c *clusterLab) {
	c.hosts[0].register(t, "ann")
	for i, h := range c.hosts { // one of them holds the user
		if got := h.sh(t, "ann", fmt.Sprintf("echo %d >> /home/seen; read -r first < /home/seen; echo $first", i)); got != "0" {
			t.Errorf("%s: %q", h.name, got)
		}
	}
	if text, err := os.ReadFile(filepath.Join(c.dir, "users/ann/home/seen")); string(text) != "0\n1\n2\n" {
		t.Errorf("%q, %v", text, err)
	}
	holder := c.holder(t, "ann")
	away := c.others(holder)[0]
	eventually(t, "all hosts say in time which containers they have", func() bool {
		list, err := away.client.AllContainers(t.Context())
		return err == nil && len(list.Unanswered) == 0 && slices.ContainsFunc(list.Containers, func(one types.Container) bool {
			return one.UserID == "ann" && one.Node == holder.name
		})
	})
	if seats, left, hosts := holder.metric(t, "sandboxd_cluster_seats"), holder.metric(t, "sandboxd_cluster_lease_left_seconds"), away.metric(t, "sandboxd_cluster_hosts"); seats < 1 || left <= 0 || hosts != 3 {
		t.Errorf("metrics: %v seats, %v s left, %v hosts", seats, left, hosts)
	}
	if forwarded := away.metric(t, "sandboxd_cluster_forwarded_calls_total"); forwarded < 1 {
		t.Errorf("%v calls were forwarded", forwarded)
	}
	large := strings.Repeat("x", 1<<20)
	if _, err := away.client.Write(t.Context(), "ann", types.Write{Target: types.Target{Path: "/home/large"}, Content: large}); err != nil {
		t.Fatal(err)
	}
	if got, err := away.client.Read(t.Context(), "ann", types.Read{Target: types.Target{Path: "/home/large"}}); err != nil || len(got.Content) == 0 {
		t.Errorf("%v", err)
	}
	if _, err := away.client.Exec(t.Context(), "nobody", types.Exec{Command: "true"}); !isKind(err, types.NotFound) {
		t.Errorf("not registered: %v", err)
	}
	nodes, err := away.client.Nodes(t.Context())
	if err != nil || len(nodes.Nodes) != 3 {
		t.Errorf("%+v, %v", nodes, err)
	}
}

func isKind(err error, kind types.Kind) bool {
	failure, is := errors.AsType[*client.Error](err)
	return is && failure.Kind == kind
}

// While one host after another is drained, ended, started again as this version and takes users anew, each call of each user at
// the others succeeds, and runs once.
func upgradesLoseNoCall(t *testing.T, c *clusterLab) {
	const users = 3
	for i := range users {
		c.hosts[0].register(t, fmt.Sprint("drain", i))
	}
	ctx, stop := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	var answered, away atomic.Int64
	for i := range users {
		calls.Go(func() {
			user := fmt.Sprint("drain", i)
			for n := 0; ctx.Err() == nil; n++ {
				h := c.hosts[(int(away.Load())+1+n%2)%len(c.hosts)]
				out, err := h.client.Exec(t.Context(), user, types.Exec{Permissions: workspace, Command: fmt.Sprintf("echo %d >> /home/calls", n)})
				if err != nil || out.Failed {
					t.Errorf("call %d of %s at %s: %v, %+v", n, user, h.name, err, out)
					return
				}
				answered.Add(1)
			}
		})
	}
	goOn := func() {
		now := answered.Load()
		eventually(t, "calls are answered", func() bool { return answered.Load() > now+2*users || t.Failed() })
	}
	for i, h := range c.hosts {
		away.Store(int64(i))
		goOn()
		c.upgrade(t, h)
		goOn()
	}
	stop()
	calls.Wait()
	ran := 0
	for i := range users {
		text, err := os.ReadFile(filepath.Join(c.dir, "users", fmt.Sprint("drain", i), "home/calls"))
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Fields(string(text))
		ran += len(lines)
		for n, line := range lines {
			if line != strconv.Itoa(n) {
				t.Errorf("call %d of user %d is missing or ran twice: %s", n, i, line)
				break
			}
		}
	}
	if ran != int(answered.Load()) {
		t.Errorf("%d calls ran, and %d were answered", ran, answered.Load())
	}
}

// isUpgraded has all hosts be of this version, if what does that one after another was not run.
func (c *clusterLab) isUpgraded(t *testing.T) {
	t.Helper()
	for _, h := range c.hosts {
		if h.from != os.Getenv("SANDBOX_E2E_FROM") {
			h.exchange(t)
			eventually(t, "the host is back", func() bool { return h.knows(c) })
		}
	}
}

// exchange has a host's service and fence be of this version.
func (h *clusterHost) exchange(t *testing.T) {
	t.Helper()
	h.from, h.environ = os.Getenv("SANDBOX_E2E_FROM"), h.current
	h.restart(t)
}

// restart starts a host's service and fence again.
func (h *clusterHost) restart(t *testing.T) {
	t.Helper()
	h.stop(syscall.SIGTERM)
	_ = h.fence.cmd.Process.Signal(syscall.SIGTERM)
	<-h.fence.exited
	h.startFence(t) // at once, for nobody else renews the lease
	if err := h.start(); err != nil {
		t.Fatal(err)
	}
}

// upgrade drains a host, exchanges its service and its fence, and has it take users again.
func (c *clusterLab) upgrade(t *testing.T, h *clusterHost) {
	t.Helper()
	other := c.others(h)[0]
	if err := other.client.SetDraining(t.Context(), h.name, true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the host has no users", func() bool { return c.usersOf(t, other, h.name) == 0 || t.Failed() })
	h.exchange(t)
	eventually(t, "the host is back", func() bool { return h.knows(c) && other.knows(c) })
	if err := other.client.SetDraining(t.Context(), h.name, false); err != nil {
		t.Fatal(err)
	}
}

func (c *clusterLab) usersOf(t *testing.T, asked *clusterHost, host string) int {
	list, err := asked.client.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range list.Nodes {
		if n.Name == host {
			return n.Users
		}
	}
	return 0
}
