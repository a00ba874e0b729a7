package e2e

import (
	"bufio"
	"fmt"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
)

// A browser sees the hosts by the console of one of them, and what becomes of the others.
func consoleShowsTheHosts(t *testing.T, c *clusterLab) {
	from, other := c.hosts[0], c.hosts[2]
	b := openHostConsole(t, from)
	row := func(h *clusterHost, state string) {
		t.Helper()
		b.is(h.name+" is shown as: "+state, fmt.Sprintf(
			`[...document.querySelectorAll("main tbody tr")].some((r) => r.cells[0].textContent === %q && r.cells[3].textContent.startsWith(%q))`, h.name, state))
	}
	lately := func(h *clusterHost, what string) {
		t.Helper()
		b.is("of "+h.name+" it is said: "+what, fmt.Sprintf(
			`[...document.querySelectorAll("[aria-label='Recent events'] .list [role=row]")].some((r) => r.childNodes[1].textContent === %q && r.childNodes[2].textContent.startsWith(%q))`, h.name, what))
	}
	all := func() {
		t.Helper()
		for _, h := range c.hosts {
			row(h, "takes users")
		}
	}
	all()
	b.shows(from.address+":7483", other.address+":7483")
	for _, draining := range []bool{true, false} {
		if err := from.client.SetDraining(t.Context(), other.name, draining); err != nil {
			t.Fatal(err)
		}
		row(other, map[bool]string{true: "draining", false: "takes users"}[draining])
		lately(other, map[bool]string{true: "draining", false: "takes users"}[draining])
	}
	other.stop(syscall.SIGKILL)
	row(other, "does not answer") // its fence has the lease
	if err := other.start(); err != nil {
		t.Fatal(err)
	}
	all()
	theirs := c.heldBy(t, other)
	lately(other, "holds "+theirs+" now")
	other.stop(syscall.SIGTERM)
	_ = other.fence.cmd.Process.Signal(syscall.SIGTERM)
	<-other.fence.exited
	row(other, "lost")
	lately(other, "lost")
	from.sh(t, theirs, "true")
	lately(c.holder(t, theirs), "holds "+theirs+" now, taken over from "+other.name)
	if err := from.client.RemoveNode(t.Context(), from.name); !isKind(err, types.Conflict) {
		t.Errorf("removing a host that lives: %v", err)
	}
	if err := from.client.RemoveNode(t.Context(), other.name); err != nil {
		t.Error(err)
	}
	b.is(other.name+" is not shown", fmt.Sprintf(`![...document.querySelectorAll("main tbody tr")].some((r) => r.cells[0].textContent === %q)`, other.name))
	lately(other, "away")
	c.come(t, other)
	all()
	b.isClean()
}

// heldBy makes users until a host holds one.
func (c *clusterLab) heldBy(t *testing.T, h *clusterHost) string {
	t.Helper()
	for i := range 20 {
		user := fmt.Sprintf("shown-%d", i)
		c.hosts[0].register(t, user)
		c.hosts[0].sh(t, user, "true")
		if c.holder(t, user) == h {
			return user
		}
	}
	t.Fatalf("%s gets no user", h.name)
	return ""
}

// openHostConsole has a browser sign in with the link of a host's `sandbox console`, and open the view of the hosts.
func openHostConsole(t *testing.T, h *clusterHost) *browser {
	t.Helper()
	cmd := exec.Command(filepath.Join(binaries, "sandbox"), "--socket", h.path("sandboxd.sock"), "console")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	link, err := url.Parse(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	b := openBrowser(t, "http://"+link.Host)
	b.open("#" + link.Fragment)
	b.is("to be signed in", `!document.getElementById("out").hidden`)
	b.is("a way to the hosts", `(() => { const a = document.querySelector('a[href="#/hosts"]'); a?.click(); return Boolean(a); })()`)
	return b
}
