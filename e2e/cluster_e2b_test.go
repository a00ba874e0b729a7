package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/daycare-run/sandbox/api/types"
)

// e2bDoors are where the hosts listen for clients of E2B.
func (c *clusterLab) e2bDoors() string {
	var doors []string
	for _, h := range c.hosts {
		doors = append(doors, "https://"+h.address+":7482")
	}
	return strings.Join(doors, ",")
}

// stock is the stock client of E2B on a host.
func (c *clusterLab) stock(t *testing.T, h *clusterHost, argv ...string) *program {
	t.Helper()
	environ := append(os.Environ(), "E2B_TEST_DOORS="+c.e2bDoors(), "E2B_API_KEY=e2b_"+annesKey, "E2B_TEST_OTHER_KEY=e2b_"+bensKey,
		"NODE_EXTRA_CA_CERTS="+filepath.Join(c.dir, "certificates/ca.crt"))
	script := filepath.Join(stockClients(t), "cluster.mjs")
	return h.engine.place.program(t, environ, append([]string{"node", script}, argv...)...)
}

// stockSays is what it prints by its end.
func (c *clusterLab) stockSays(t *testing.T, h *clusterHost, argv ...string) string {
	t.Helper()
	p := c.stock(t, h, argv...)
	select {
	case <-p.exited:
	case <-time.After(4 * time.Minute): // each of its waits has a limit of its own
		p.kill()
	}
	if !p.cmd.ProcessState.Success() {
		t.Fatalf("%q: %v\n%s", argv, p.cmd.ProcessState, p.log)
	}
	return p.log.String()
}

// The stock client has a sandbox by any host, whichever holds it.
func e2bByAnyHost(t *testing.T, c *clusterLab) {
	before, seats := 0.0, c.seats(t)
	for _, h := range c.hosts {
		before += h.metric(t, "sandboxd_cluster_forwarded_calls_total")
	}
	c.stockSays(t, c.hosts[0], "answers")
	for _, h := range c.hosts {
		before -= h.metric(t, "sandboxd_cluster_forwarded_calls_total")
	}
	if before > -100 {
		t.Errorf("%v calls were sent on", -before)
	}
	c.noneLeft(t, seats)
}

// noneLeft waits until nothing is left of sandboxes that have ended: neither homes nor seats.
func (c *clusterLab) noneLeft(t *testing.T, seats int) {
	t.Helper()
	eventually(t, "no home of a sandbox is left", func() bool { return len(c.boxes(t)) == 0 })
	eventually(t, "no seat of a sandbox is left", func() bool { return c.seats(t) <= seats }) // those of a lost host are gone
}

// boxes are the homes of sandboxes of E2B's clients.
func (c *clusterLab) boxes(t *testing.T) []string {
	t.Helper()
	homes, err := filepath.Glob(c.dir + "/users/s???????????????????")
	if err != nil {
		t.Fatal(err)
	}
	return homes
}

func (c *clusterLab) seats(t *testing.T) (n int) {
	for _, h := range c.hosts {
		n += c.usersOf(t, c.hosts[0], h.name)
	}
	return n
}

// A host is lost. Its sandboxes are found on others with their homes alone, and say so; deadlines are kept.
func e2bOfALostHost(t *testing.T, c *clusterLab) {
	answers := func(h *clusterHost) bool {
		_, err := h.client.Put(t.Context(), "asker", types.Registration{UserID: "asker"})
		return err == nil
	}
	eventually(t, "calls are answered", func() bool { return answers(c.hosts[0]) })
	seats := c.seats(t)
	var left struct{ Persistent, Paused, Short []string }
	if err := json.Unmarshal([]byte(c.stockSays(t, c.hosts[0], "leave")), &left); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if homes := c.boxes(t); len(homes) < len(left.Persistent)+len(left.Paused) {
		t.Fatalf("of %+v only these homes are seen: %q", left, homes)
	}
	lost := c.holder(t, left.Persistent[0])
	there := c.others(lost)[0]
	door := strconv.Itoa(slices.Index(c.hosts, there))
	var moved []string
	for _, user := range slices.Concat(left.Persistent, left.Paused, left.Short) {
		if c.has(t, lost, user) {
			moved = append(moved, user)
		}
	}
	follower := c.stock(t, there, "follow", left.Persistent[0], door)
	eventually(t, "a command runs", func() bool { return strings.Contains(follower.log.String(), "begun") })
	c.cut(t, lost, true)
	cut := time.Now()
	for _, user := range slices.Concat(left.Persistent, left.Paused) {
		want := "any"
		if slices.Contains(moved, user) {
			want = "moved"
		}
		told := c.stockSays(t, there, "find", user, door, want)
		t.Logf("%s (%s) is found after %s: %s", user, want, time.Since(cut).Round(100*time.Millisecond), told)
	}
	select {
	case <-follower.exited:
		t.Logf("who followed a command was told: %s", follower.log)
		if !follower.cmd.ProcessState.Success() {
			t.Errorf("who followed a command of a lost host has lost no connection: %s", follower.log)
		}
	case <-time.After(time.Minute):
		follower.kill()
		t.Errorf("who followed a command of a lost host waits on: %s", follower.log)
	}
	eventually(t, "those whose time has come are gone, whoever had them", func() bool {
		return !slices.ContainsFunc(left.Short, func(user string) bool { return exists(filepath.Join(c.dir, "users", user)) })
	})
	t.Logf("the last of those with 30 s was gone after %s", time.Since(begun).Round(100*time.Millisecond))
	c.come(t, lost)
	eventually(t, "the host takes calls again", func() bool { return answers(lost) }) // others knew of it before
	c.stockSays(t, there, append([]string{"end"}, slices.Concat(left.Persistent, left.Paused)...)...)
	c.noneLeft(t, seats)
}

// has reports whether a host has a container of a user's.
func (c *clusterLab) has(t *testing.T, h *clusterHost, user string) bool {
	t.Helper()
	all, err := h.listContainers()
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(all, func(one container.Summary) bool { return h.userOf(one) == user })
}
