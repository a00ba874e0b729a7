package e2e

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/docker/docker/api/types/container"

	"github.com/daycare-run/sandbox/api/types"
)

// What somebody has put where the pool's folder is, or the user's, is refused or harmless.
func TestPoolInTheWay(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		elsewhere := l.path("elsewhere")
		if err := errors.Join(os.MkdirAll(l.path("users"), 0o755), os.Mkdir(elsewhere, 0o777), os.Symlink(elsewhere, l.path("users/.pool"))); err != nil {
			t.Fatal(err)
		}
		l.firstCall(t, "linked", types.Exec{Command: "true"})
		eventually(t, "the link is refused", func() bool { return strings.Contains(l.log.String(), "cannot fill the pool") })
		if left, _ := os.ReadDir(elsewhere); len(left) != 0 {
			t.Errorf("behind the link: %v", left)
		}
		if err := errors.Join(os.Remove(l.path("users/.pool")), os.MkdirAll(l.path("users/folder"), 0o755), os.Symlink(elsewhere, l.path("users/behind")), os.WriteFile(l.path("users/folder/home"), nil, 0o644)); err != nil {
			t.Fatal(err)
		}
		l.ready(t, 1)
		for _, user := range []string{"folder", "behind"} {
			l.registerAs(t, user, types.Registration{UserID: user})
			if out, err := l.client.Exec(t.Context(), user, types.Exec{Permissions: workspace, Command: "true"}); err == nil {
				t.Errorf("%s: %+v", user, out)
			}
		}
		if left, _ := os.ReadDir(elsewhere); len(left) != 0 {
			t.Errorf("behind the user's link: %v", left)
		}
		for _, name := range []string{".pool", ".pool/x"} {
			if _, err := l.client.Put(t.Context(), "bad", types.Registration{UserID: name}); kindOf(err) != types.Invalid {
				t.Errorf("user %q: %v", name, err)
			}
		}
		_, err := l.client.Put(t.Context(), "bad", types.Registration{UserID: "bad", Mounts: []types.Mount{{Source: l.poolDirs(t)[0], Target: "/mnt/pool"}}})
		if kindOf(err) != types.Denied {
			t.Errorf("a home of the pool as a mount: %v", err)
		}
		l.stop(syscall.SIGTERM)
		l.poolOff(t)
	}, "SANDBOXD_POOL_SIZE=1")
}

// poolOff has a file system that cannot rename what is in the pool to elsewhere. Calls are run all the same, and after some
// of them the pool turns itself off until it is told to try again.
func (l *lab) poolOff(t *testing.T) {
	t.Helper()
	pool := l.path("users/.pool")
	if err := errors.Join(os.MkdirAll(pool, 0o700), syscall.Mount(pool, pool, "", syscall.MS_BIND, ""), l.start()); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		l.ready(t, 1)
		if out := l.firstCall(t, fmt.Sprintf("stays-%d", i), types.Exec{Command: "echo ok"}); !out.Cold || out.Stdout != "ok\n" {
			t.Errorf("%+v", out)
		}
	}
	eventually(t, "what waited is gone", func() bool { return l.metric(t, "sandboxd_pool_containers") == 0 && len(l.poolDirs(t)) == 0 })
	if h, err := l.client.Health(t.Context()); err != nil || l.metric(t, "sandboxd_pool_off") != 1 || !strings.Contains(fmt.Sprint(h.Warnings), "the pool is off") {
		t.Errorf("%+v, %v", h, err)
	}
	l.firstCall(t, "still", types.Exec{Command: "true"})
	if n := strings.Count(l.log.String(), "the pool is off"); n != 1 {
		t.Errorf("the log says so %d times", n)
	}
	if err := errors.Join(syscall.Unmount(pool, syscall.MNT_DETACH), l.daemon.Process.Signal(syscall.SIGHUP)); err != nil {
		t.Fatal(err)
	}
	l.ready(t, 1)
	if out := l.firstCall(t, "again", types.Exec{Command: "true"}); out.Cold {
		t.Error("the pool is off still")
	}
}

// A container that waits reaches nothing; bound, it reaches what its user's call names, and nothing else.
func TestPoolNetwork(t *testing.T) {
	eachOutsideOwn(t, func(t *testing.T, l *lab, w *world) {
		allowed, other := w.name(t, "pooled", w.shared), w.name(t, "other", w.shared)
		first := func(user, command string, domains ...string) types.Output {
			return l.firstCall(t, user, types.Exec{Command: command, Permissions: []string{"@network"}, AllowedDomains: domains, TimeoutMs: unhurried})
		}
		first("before", "true", allowed)
		l.ready(t, 1)
		ask := func(name string) string { return "curl -sS --max-time 20 http://" + name + "/hello; echo code $?" }
		var waits string
		for _, c := range l.pooled(t) {
			if strings.Contains(c.Names[0], ".pool-") { // and no user's
				waits = c.ID
			}
		}
		if got := l.insideAs(t, waits, container.ExecOptions{Cmd: []string{"bash", "-c", ask(allowed)}}); !strings.Contains(got, "code") || strings.Contains(got, "hello from") {
			t.Errorf("before it is bound: %q", got)
		}
		if n := len(w.arrivals(allowed)); n != 0 || w.DNS.Asked(allowed) != 0 {
			t.Errorf("before it was bound %d requests arrived", n)
		}
		out := first("after", ask(allowed)+"; "+ask(other), allowed)
		if out.Cold || !strings.Contains(out.Stdout, "hello from "+allowed) || strings.Contains(out.Stdout, "hello from "+other) {
			t.Errorf("cold %v, %q", out.Cold, out.Stdout)
		}
		if verdict, _ := refused(out, other); verdict != "denied" {
			t.Errorf("the result tells %+v", out.Egress)
		}
		if verdict, _ := refused(out, allowed); verdict != "" {
			t.Errorf("what was asked for before the binding is told: %+v", out.Egress)
		}
		if l.warmID(t, "after") != waits {
			t.Error("it is another container")
		}
		l.ready(t, 1)
		if out := first("later", ask(other)+"; "+ask(allowed), other); out.Cold || !strings.Contains(out.Stdout, "hello from "+other) || strings.Contains(out.Stdout, "hello from "+allowed) {
			t.Errorf("the next user: cold %v, %q", out.Cold, out.Stdout)
		}
		// All of the network is a kind like any other: it is there for the user, and not before.
		byAddress := func(seconds int) string {
			return fmt.Sprintf("curl -sS --max-time %d http://%s/hello; echo code $?", seconds, w.shared)
		}
		first("open", "true", "*")
		l.ready(t, 2)
		for _, c := range l.pooled(t) {
			if !strings.Contains(c.Names[0], ".pool-") {
				continue
			}
			if got := l.insideAs(t, c.ID, container.ExecOptions{Cmd: []string{"bash", "-c", byAddress(2)}}); !strings.Contains(got, "code") || strings.Contains(got, "hello from") {
				t.Errorf("%s reaches something before it is bound: %q", c.Names[0], got)
			}
		}
		if out := first("opened", ask(other)+"; "+ask(allowed)+"; "+byAddress(20), "*"); out.Cold || strings.Count(out.Stdout, "hello from ") != 3 {
			t.Errorf("open: cold %v, %q", out.Cold, out.Stdout)
		}
	}, "SANDBOXD_POOL_SIZE=1")
}
