package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/api/types"
)

// fillPools has a container of each host wait for a new user.
func (c *clusterLab) fillPools(t *testing.T) {
	t.Helper()
	for n := 0; ; n++ {
		without := c.hosts[:0:0]
		for _, h := range c.hosts {
			if h.metric(t, "sandboxd_pool_classes") == 0 {
				without = append(without, h)
			}
		}
		if len(without) == 0 {
			break
		}
		if n == 12 {
			t.Fatal("new users are not placed on all hosts")
		}
		without[0].firstCall(t, fmt.Sprint("filling-", n), types.Exec{Command: "true"})
	}
	for _, h := range c.hosts {
		h.ready(t, 1)
	}
}

func (h *clusterHost) ready(t *testing.T, n int) {
	t.Helper()
	h.readyAt(t, h.name, n)
}

// hits is how many new users the pools of all hosts have had.
func (c *clusterLab) hits(t *testing.T) (n float64) {
	for _, h := range c.hosts {
		n += h.metric(t, `sandboxd_pool_first_calls_total{outcome="hit"}`)
	}
	return n
}

// waiting are the folders of a host's pool, by its own name for them: of containers that wait, and empty ones of those that were
// given to users.
func (c *clusterLab) waiting(t *testing.T, h *clusterHost) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(c.dir, "users/.pool", h.name+".*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// Each host has containers that wait for new users, with homes that are nobody's on the filesystem that all share. Who comes gets
// one of the host that holds the user, and all hosts see the home.
func newUsersComeFromThePool(t *testing.T, c *clusterLab) {
	c.fillPools(t)
	for _, h := range c.hosts {
		if len(c.waiting(t, h)) == 0 {
			t.Errorf("%s has no home for who is still to come", h.name)
		}
	}
	for i, door := range c.hosts {
		for _, h := range c.hosts {
			h.ready(t, 1)
		}
		user, before, begun := fmt.Sprint("fresh-", i), c.hits(t), time.Now()
		out := door.firstCall(t, user, types.Exec{Command: "echo mine > file"})
		took := time.Since(begun)
		holder := c.holder(t, user)
		t.Logf("%s at %s is held by %s: PUT and first command took %.1f ms", user, door.name, holder.name, float64(took.Microseconds())/1e3)
		if out.Cold || out.Failed || c.hits(t) != before+1 {
			t.Errorf("%s: %+v, %v hits more", user, out, c.hits(t)-before)
		}
		for _, h := range c.hosts {
			eventually(t, h.name+" sees the home", func() bool {
				text, err := os.ReadFile(filepath.Join(c.homesAt(h), user, "home/file"))
				return err == nil && string(text) == "mine\n"
			})
			if out := h.run(t, user, types.Exec{Command: "read -r line < file; echo $line"}); out.Cold || out.Stdout != "mine\n" {
				t.Errorf("%s through %s: cold %t, %q", user, h.name, out.Cold, out.Stdout)
			}
		}
	}
}

// A host is killed when it has written down what it binds, and before the home is the user's. Another takes the user meanwhile, so
// what the first one finds when it is back is not the user's any more; what waited there goes.
func killedBindingIsNoOtherHosts(t *testing.T, c *clusterLab) {
	c.fillPools(t)
	const user = "half"
	out := c.hosts[0].firstCall(t, user, types.Exec{Command: "true"})
	h := c.holder(t, user)
	records, err := filepath.Glob(h.path("data/pool/bound/*.json"))
	if out.Cold || err != nil || len(records) == 0 {
		t.Fatalf("cold %t, %q, %v", out.Cold, records, err)
	}
	h.ready(t, 1)
	h.stop(syscall.SIGKILL)
	c.cut(t, h, true)
	if err := os.Rename(filepath.Join(c.dir, "users", user), filepath.Join(c.dir, "users", pooledAs(t, records, user))); err != nil {
		t.Fatal(err)
	}
	left := c.waiting(t, h)
	if len(left) < 2 {
		t.Fatalf("%q", left)
	}
	other := c.others(h)[0]
	eventually(t, "another host takes the user", func() bool {
		out, err := other.client.Exec(t.Context(), user, types.Exec{Permissions: workspace, Command: "echo theirs > file"})
		return err == nil && !out.Failed
	})
	c.come(t, h)
	eventually(t, "what the host had left is gone", func() bool {
		now := c.waiting(t, h)
		return !slices.ContainsFunc(left, func(folder string) bool { return slices.Contains(now, folder) })
	})
	for _, any := range c.hosts {
		if out := any.run(t, user, types.Exec{Command: "read -r line < file; echo $line"}); out.Cold || out.Stdout != "theirs\n" {
			t.Errorf("%s: cold %t, %q", any.name, out.Cold, out.Stdout)
		}
	}
	if now := c.holder(t, user); now == h {
		t.Errorf("it is on %s again", h.name)
	}
}

// pooledAs is the path in usersDir that the folder of a user had who came from the pool.
func pooledAs(t *testing.T, records []string, user string) string {
	t.Helper()
	for _, name := range records {
		var record struct {
			Pooled string
			Spec   struct{ User string }
		}
		if err := json.Unmarshal([]byte(holds(name)), &record); err != nil {
			t.Fatal(err)
		}
		if record.Spec.User == user {
			return record.Pooled
		}
	}
	t.Fatalf("nothing is bound to %s", user)
	return ""
}
