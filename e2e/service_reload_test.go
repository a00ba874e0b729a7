package e2e

import (
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/docker/docker/api/types/container"

	"github.com/daycare-run/sandbox/api/types"
)

// onFile has a lab go by a settings file, which it returns a way to write; the socket is named there.
func (l *lab) onFile(t *testing.T) (write func(text string)) {
	t.Helper()
	file := l.path("settings.json")
	write = func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(strings.ReplaceAll(text, "SOCKET", l.path("sandboxd.sock"))), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"listen":"SOCKET"}`)
	l.stop(syscall.SIGTERM)
	l.environ = slices.DeleteFunc(l.environ, func(v string) bool { return strings.HasPrefix(v, "SANDBOXD_LISTEN=") })
	l.environ = append(l.environ, "SANDBOXD_SETTINGS="+file)
	if err := l.start(); err != nil {
		t.Fatal(err)
	}
	return write
}

// reload has the service read its settings again, and waits until it has.
func (l *lab) reload(t *testing.T) {
	t.Helper()
	told := func() int { // but for "the settings were read again, and take effect when Docker answers"
		log := l.log.String()
		return strings.Count(log, `"the settings were read again"`) + strings.Count(log, `"the settings were read again and cannot be used`)
	}
	before := told()
	if err := l.daemon.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the settings are read", func() bool { return told() > before })
}

func (l *lab) health(t *testing.T) types.Health {
	t.Helper()
	h, err := l.client.Health(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// The operator names a preset, moves the socket, tightens a limit and makes a mistake, and the service goes
// on all the while.
func TestSettingsAreReadAgain(t *testing.T) {
	w := openWorld(t)
	l := newLab(t, "runsc", worldSettings(w)...)
	write := l.onFile(t)
	l.traveller(t, w, "reader")
	name := w.name(t, "packages", w.shared)
	install := func() (types.Output, error) {
		return l.client.Exec(t.Context(), "reader", types.Exec{
			Command: hello("http://" + name), Permissions: []string{"@network"}, PackageManagers: []string{"corp"},
		})
	}
	if _, err := install(); err == nil || !strings.Contains(err.Error(), "corp") {
		t.Fatalf("before there is such a preset: %v", err)
	}
	begun := l.health(t).Settings

	write(`{"listen":"SOCKET","egress":{"presets":{"corp":["` + name + `"]}}}`)
	l.reload(t)
	works := func() {
		t.Helper()
		if out, err := install(); err != nil || out.Failed {
			t.Fatalf("the preset: %v %+v", err, out)
		}
	}
	works()
	if s := l.health(t).Settings; !s.LoadedAt.After(begun.LoadedAt) || len(s.Pending) > 0 {
		t.Errorf("health tells of %+v, and before of %+v", s, begun)
	}

	before := l.containersOf(t, "reader")
	write(`{"listen":"SOCKET.new","limits":{"pids":300},"egress":{"presets":{"corp":["` + name + `"]}}}`)
	l.reload(t)
	if s := l.health(t).Settings; !slices.Equal(s.Pending, []string{"listen"}) {
		t.Errorf("health tells of %+v", s)
	}
	eventually(t, "the log says that listen needs a restart", func() bool { return strings.Contains(l.log.String(), `"keys":["listen"],`) })
	if _, err := os.Stat(l.path("sandboxd.sock.new")); err == nil {
		t.Error("it listens at another socket without a restart")
	}
	works()
	eventually(t, "the container of the settings before is gone", func() bool {
		return !slices.ContainsFunc(l.containers(t), func(c container.Summary) bool { return c.ID == before[0].ID })
	})
	after := l.containersOf(t, "reader")
	if len(after) == 0 {
		t.Error("there is no container of the settings of now")
	}
	for _, c := range after {
		found, err := l.engine.ContainerInspect(t.Context(), c.ID)
		if err != nil {
			t.Fatal(err)
		}
		// Under gVisor the limit holds inside, and its own threads are on the host.
		inside := slices.ContainsFunc(found.HostConfig.Ulimits, func(u *container.Ulimit) bool { return u.Name == "nproc" && u.Hard == 300 })
		if *found.HostConfig.PidsLimit != 300 && !inside {
			t.Errorf("a container has %v", found.HostConfig.Resources)
		}
	}

	write(`{"listen":"SOCKET","limits":{"pids":5},"egress":{"presetz":{}}}`)
	l.reload(t)
	log := l.log.String()
	for _, fault := range []string{"limits.pids: 5 is not from 128", "egress.presetz: unknown key (did you mean presets?)"} {
		if !strings.Contains(log, fault) {
			t.Errorf("the log does not say %s", fault)
		}
	}
	h := l.health(t)
	if len(h.Warnings) != 1 || !strings.Contains(h.Warnings[0], "cannot be used") || !slices.Equal(h.Settings.Pending, []string{"listen"}) {
		t.Errorf("health tells of %+v", h)
	}
	works()

	write(`{"listen":"SOCKET"}`)
	l.reload(t)
	if _, err := install(); err == nil || len(l.health(t).Warnings) > 0 || len(l.health(t).Settings.Pending) > 0 {
		t.Errorf("with the settings of the beginning: %v, %+v", err, l.health(t))
	}
}

// A runtime that Docker does not know stops no service that runs.
func TestReloadOfAnUnknownRuntime(t *testing.T) {
	l := newLab(t, "runsc")
	l.register(t, "steady")
	l.environ = slices.DeleteFunc(l.environ, func(v string) bool { return strings.HasPrefix(v, "SANDBOXD_DOCKER_RUNTIME=") })
	write := l.onFile(t)
	write(`{"listen":"SOCKET","docker":{"runtime":"kata"}}`)
	l.reload(t)
	if !strings.Contains(l.log.String(), `does not know the runtime \"kata\"`) {
		t.Error("the log does not name the runtime")
	}
	if got := l.sh(t, "steady", "uname -r"); !strings.Contains(got, "gvisor") {
		t.Errorf("it runs in %s", got)
	}
	write(`{"listen":"SOCKET","idle":{"removeAfter":"1s"}}`)
	l.reload(t)
	eventually(t, "its container is idle for too long now", func() bool { return len(l.containers(t)) == 0 })
}

// The operator names another resolver, and the networks that are open ask it.
func TestResolversAreReadAgain(t *testing.T) {
	w := openWorld(t)
	l := newLab(t, "runsc", worldSettings(w)...)
	l.environ = slices.DeleteFunc(l.environ, func(v string) bool { return strings.HasPrefix(v, "SANDBOXD_DOCKER_ISOLATED_DNS_SERVERS=") })
	write := l.onFile(t)
	with := func(resolver string) {
		write(`{"listen":"SOCKET","docker":{"isolatedDnsServers":["` + resolver + `"]}}`)
		l.reload(t)
	}
	with("127.0.0.1:1")
	l.traveller(t, w, "asker")
	name := w.name(t, "found", w.shared)
	if out := l.reach(t, "asker", hello("http://"+name), name); !out.Failed {
		t.Errorf("it resolves without a resolver: %+v", out)
	}
	with(w.DNSServers()[0].String())
	before := l.containersOf(t, "asker")
	succeeds(t, l.reach(t, "asker", hello("http://"+name), name))
	if after := l.containersOf(t, "asker"); len(after) != 1 || after[0].ID != before[0].ID {
		t.Errorf("it needed another container: %v, %v", before, after)
	}
}
