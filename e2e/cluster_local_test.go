package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
)

// With homes that one host alone sees, any host answers while the one that has the home is there. A user of one that is lost waits for
// it, and is told so; nobody takes the user over.
func homesOnOneHost(t *testing.T, c *clusterLab) {
	own := func(h *clusterHost) string { return filepath.Join(c.dir, "own-"+h.name) }
	shared := map[*clusterHost][]string{}
	for _, h := range c.hosts {
		mkdir(t, own(h))
		shared[h] = h.environ
		h.environ = append(slices.Clone(h.environ), "SANDBOXD_CLUSTER_HOMES=local", "SANDBOXD_USERS_DIR="+own(h))
	}
	c.restartAll(t)
	const user = "rooted"
	c.hosts[0].register(t, user)
	for i, h := range c.hosts {
		h.sh(t, user, fmt.Sprintf("echo %d >> /home/seen", i))
	}
	h := c.holder(t, user)
	seen := func(want string) {
		t.Helper()
		for _, any := range c.hosts {
			text, err := os.ReadFile(filepath.Join(own(any), user, "home/seen"))
			if any == h && string(text) != want || any != h && !os.IsNotExist(err) {
				t.Errorf("%s, and %s holds the user: %q, %v", any.name, h.name, text, err)
			}
		}
	}
	seen("0\n1\n2\n")

	c.cut(t, h, true)
	for _, other := range c.others(h) {
		eventually(t, "it is said where the home is", func() bool {
			_, err := other.client.Exec(t.Context(), user, types.Exec{Permissions: workspace, Command: "true"})
			return isKind(err, types.Unavailable) && strings.Contains(err.Error(), fmt.Sprintf("on host %q alone", h.name))
		})
		other.register(t, "beside-"+other.name)
		other.sh(t, "beside-"+other.name, "true")
		if c.has(t, other, user) {
			t.Errorf("%s has taken the user over", other.name)
		}
	}
	c.come(t, h)
	c.others(h)[0].sh(t, user, "echo back >> /home/seen")
	if now := c.holder(t, user); now != h {
		t.Errorf("%s holds the user", now.name)
	}
	seen("0\n1\n2\nback\n")
	for _, h := range c.hosts {
		h.environ = shared[h]
	}
	c.restartAll(t)
}

// restartAll has all hosts be as their environments say.
func (c *clusterLab) restartAll(t *testing.T) {
	t.Helper()
	for _, h := range c.hosts {
		h.restart(t)
	}
	for _, h := range c.hosts {
		eventually(t, "each host knows all", func() bool { return h.knows(c) })
	}
}
