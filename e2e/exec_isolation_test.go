package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
)

func TestUsersAreApart(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.register(t, "apart-a")
		l.register(t, "apart-b")
		l.sh(t, "apart-a", "echo secret > /home/note; echo secret > /tmp/note; echo secret > /dev/shm/note")
		if got := l.sh(t, "apart-b", "ls -A /home /tmp /dev/shm /var/tmp | grep note || true"); got != "" {
			t.Errorf("b sees a's files: %s", got)
		}
		started := make(chan struct{})
		go func() {
			close(started)
			_, _ = l.client.Exec(t.Context(), "apart-a", types.Exec{Permissions: workspace, Command: "sleep 7100"})
		}()
		<-started
		eventually(t, "a sees its own process", func() bool { return sleeping(t, l, "apart-a", "7100") != "" })
		if got := sleeping(t, l, "apart-b", "7100"); got != "" {
			t.Errorf("b sees a's process: %s", got)
		}
	})
}

func TestFilesBelongToTheHomesOwner(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.register(t, "owner")
		l.sh(t, "owner", "mkdir -p a/b && echo hi > a/b/file")
		for _, name := range []string{"", "a", "a/b", "a/b/file"} {
			info, err := os.Stat(filepath.Join(l.home("owner"), name))
			if err != nil {
				t.Fatal(err)
			}
			if stat := info.Sys().(*syscall.Stat_t); stat.Uid != l.owner("owner") || stat.Uid == 0 || stat.Gid != stat.Uid {
				t.Errorf("%q belongs to %d:%d", name, stat.Uid, stat.Gid)
			}
		}
		// And what the host writes is seen inside at once.
		if err := os.WriteFile(filepath.Join(l.home("owner"), "from-host"), []byte("hello"), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := l.sh(t, "owner", "cat from-host"); got != "hello" {
			t.Errorf("inside: %q", got)
		}
	})
}

func TestCommandsAreConfined(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.register(t, "limits")
		l.sh(t, "limits", "true") // makes the home
		for _, c := range []struct{ name, command, want string }{
			{"user and groups", "id -u; id -g; id -G; id -un; id -gn", fmt.Sprintf("%[1]d\n%[1]d\n%[1]d\nuser\nuser", l.owner("limits"))},
			{"no capabilities", "grep -E 'Cap(Inh|Prm|Eff|Bnd|Amb)' /proc/self/status | awk '{print $2}' | sort -u", "0000000000000000"},
			{"no new privileges", "grep NoNewPrivs /proc/self/status | awk '{print $2}'", "1"},
			{"no core files, and so many descriptors", "ulimit -c; ulimit -Hc; ulimit -n; ulimit -Hn", "0\n0\n16384\n16384"},
			// gVisor's own hierarchy, which is no part of the host's, has the container's id in it.
			{"no cgroup of the host", `cut -d: -f3- /proc/self/cgroup | sed -E 's|^/[0-9a-f]{64}$|/|' | sort -u`, "/"},
			{"read-only root", "for d in / /etc /usr/bin /opt /root /.daycare; do touch $d/x 2>/dev/null && echo $d; done; true", ""},
			{"writable places", "for d in /home /tmp /var/tmp /dev/shm; do touch $d/x && echo ok; done", "ok\nok\nok\nok"},
			{"no engine", "find / -xdev -name 'docker*.sock' 2>/dev/null; ls /var/run/docker.sock /run/docker.sock 2>/dev/null | cat", ""},
			{"no network", "ls /sys/class/net | grep -v '^lo$' || true", ""},
			{"the agent cannot be changed", "echo x 2>/dev/null > /.daycare/agent || echo refused", "refused"},
			{"no more descriptors than three", "ls /proc/self/fd | wc -l", "4"},        // ls has one of its own
			{"the agent is seen", "test -n \"" + agentPid + "\" && echo seen", "seen"}, // or nothing that is tried on it shows anything
			{"the agent's descriptors", "ls /proc/" + agentPid + "/fd 2>/dev/null || echo refused", "refused"},
			{"the agent's files", "cat /.daycare/spool 2>/dev/null || echo refused", "refused"},
			{"it goes before the agent without memory", "cat /proc/self/oom_score_adj | sed 's/^1000$/100/'", "100"}, // gVisor's own begin at 0
			{"its own session", `test "$(ps -o sid= -p $$ | tr -d ' ')" = "$$" && echo own`, "own"},
		} {
			t.Run(c.name, func(t *testing.T) {
				if got := l.sh(t, "limits", c.command); got != c.want {
					t.Errorf("%s: got %q, want %q", c.command, got, c.want)
				}
			})
		}
		t.Run("as Docker has it", func(t *testing.T) {
			found, err := l.engine.ContainerInspect(t.Context(), l.containerOf(t, "limits").ID)
			if err != nil {
				t.Fatal(err)
			}
			host := found.HostConfig
			if host.Privileged || !host.ReadonlyRootfs || host.NetworkMode != "none" || len(host.PortBindings) > 0 ||
				host.PidMode != "" || string(host.IpcMode) != "private" || *host.PidsLimit <= 0 || host.Memory <= 0 || host.NanoCPUs <= 0 {
				t.Errorf("host config: %+v", host)
			}
			for _, mount := range found.Mounts {
				// /tmp is the user's volume of Docker's; all else is the lab's.
				if own := mount.Type == "volume" && mount.Destination == "/tmp"; !own && !strings.HasPrefix(mount.Source, l.dir) {
					t.Errorf("mounted from elsewhere: %+v", mount)
				}
			}
		})
	})
}

// A host that has no memory left ends what tenants run before its own programs: all of a container, which no command can
// change, also when the service that made it is gone.
func TestOOMKillsTenantsFirst(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		l.register(t, "memory")
		for range 2 {
			l.sh(t, "memory", "echo 0 2>/dev/null > /proc/self/oom_score_adj || true")
			id, found := l.containerOf(t, "memory").ID, 0
			groups, err := filepath.Glob("/proc/[0-9]*/cgroup")
			if err != nil {
				t.Fatal(err)
			}
			for _, group := range groups {
				if text, err := os.ReadFile(group); err != nil || !strings.Contains(string(text), id) {
					continue
				}
				name, _ := os.ReadFile(filepath.Join(filepath.Dir(group), "cmdline"))
				score, err := os.ReadFile(filepath.Join(filepath.Dir(group), "oom_score_adj"))
				if err != nil || len(name) == 0 {
					continue // it has ended, or is a part of gVisor's kernel, which has this and ends with it
				}
				found++
				if n, err := strconv.Atoi(strings.TrimSpace(string(score))); err != nil || n < 900 {
					t.Errorf("%.100q has %s", name, score)
				}
			}
			if found == 0 {
				t.Error("no programs of the container were found")
			}
			l.stop(syscall.SIGKILL)
			if err := l.start(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// The kernel that a command sees is gVisor's under runsc, and under runc it is not.
func TestWhichKernelItIs(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.register(t, "kernel")
		got := strings.Contains(l.sh(t, "kernel", "uname -a"), "gvisor")
		if want := strings.HasSuffix(t.Name(), "runsc"); got != want {
			t.Errorf("gVisor: %v, want %v", got, want)
		}
	})
}

// A call without a network has a loopback of its own and nothing else, in a container that Docker gives no network at all.
func TestNoNetworkButALoopback(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.register(t, "offline")
		const serve = `python3 -m http.server --bind 127.0.0.1 8000 >/dev/null 2>&1 & while ! curl -sf http://localhost:8000/ >/dev/null; do sleep 0.05; done; echo served
tail -n +3 /proc/net/dev | cut -d: -f1; getent hosts sandbox.invalid || echo unknown`
		if got := l.sh(t, "offline", serve); strings.Join(strings.Fields(got), " ") != "served lo unknown" {
			t.Errorf("%q", got)
		}
		// Its /etc/hosts is one file of the service's for all of them.
		const change = `grep -q ' /etc/hosts [^ ]* ro[, ]' /proc/self/mounts || echo writable
try() { "$@" 2>/dev/null && echo "done: $*"; }
try eval 'echo 192.0.2.1 localhost >> /etc/hosts'; try chmod 666 /etc/hosts; try mv /etc/hosts /tmp/hosts; try rm -f /etc/hosts
try touch /etc/hosts; try mount -o remount,rw /etc/hosts; try umount /etc/hosts; cat /etc/hosts`
		if want, err := os.ReadFile(l.path("data/masks/hosts-offline")); err != nil || !strings.Contains(string(want), "localhost") || l.sh(t, "offline", change)+"\n" != string(want) {
			t.Errorf("/etc/hosts is not as it was, but %q, %v", l.sh(t, "offline", change), err)
		}
		made, err := l.engine.ContainerInspect(t.Context(), l.containerOf(t, "offline").ID)
		if err != nil {
			t.Fatal(err)
		}
		want := "runc"
		if strings.HasPrefix(filepath.Base(t.Name()), "runsc") {
			want = "runsc-offline"
		}
		if made.HostConfig.Runtime != want || len(made.NetworkSettings.Networks) != 0 {
			t.Errorf("under %s, in the networks %v", made.HostConfig.Runtime, made.NetworkSettings.Networks)
		}
	})
}
