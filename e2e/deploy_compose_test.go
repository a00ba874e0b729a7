package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"

	"github.com/daycare-run/sandbox/api/types"
)

// The deployment of docker-compose.yml does what the service does on the host.
func TestComposeDeployment(t *testing.T) {
	w := openWorld(t)
	d := newDeployment(t, w, "docker-compose.isolated.yml", "docker-compose.local.yml")
	d.up(t)
	for _, scenario := range []struct {
		name string
		run  func(*testing.T, *deployment, *world)
	}{
		{"healthy", composeHealthy},
		{"confined", composeConfined},
		{"exec", composeExec},
		{"files", composeFiles},
		{"egress", composeEgress},
		{"local", composeLocal},
		{"command line", composeCommandLine},
		{"process", composeProcess},
	} {
		t.Run(scenario.name, func(t *testing.T) { scenario.run(t, d, w) })
	}
}

func composeHealthy(t *testing.T, d *deployment, _ *world) {
	eventually(t, "the engine finds the service healthy", func() bool {
		health := d.service(t).State.Health
		return health != nil && health.Status == container.Healthy
	})
}

// What the file takes from the service is gone, as the kernel sees it.
func composeConfined(t *testing.T, d *deployment, _ *world) {
	service := d.service(t)
	host := service.HostConfig
	if host.Privileged || !host.ReadonlyRootfs || !host.NetworkMode.IsHost() || !host.PidMode.IsHost() {
		t.Errorf("%+v", host)
	}
	status := statusOf(t, service.State.Pid)
	want := capabilityMask(t, composeCapabilities(t))
	for _, set := range []string{"CapPrm", "CapEff", "CapBnd"} {
		if status[set] != want {
			t.Errorf("%s is %s, not %s", set, status[set], want)
		}
	}
	if status["NoNewPrivs"] != "1" || status["Seccomp"] != "2" {
		t.Errorf("NoNewPrivs %s, Seccomp %s", status["NoNewPrivs"], status["Seccomp"])
	}
}

func composeExec(t *testing.T, d *deployment, _ *world) {
	d.register(t, "worker")
	if got := d.sh(t, "worker", "uname -r; id -u; echo kept > note; cat note"); !strings.Contains(got, "gvisor") || !strings.HasSuffix(got, fmt.Sprintf("\n%d\nkept", d.owner("worker"))) || d.owner("worker")/100_000 != 2 {
		t.Errorf("%q", got)
	}
	if text, err := os.ReadFile(filepath.Join(d.home("worker"), "note")); err != nil || string(text) != "kept\n" {
		t.Errorf("on the host: %q %v", text, err)
	}
	// Without the grant the home is not written to; a secret is hidden with it and without.
	d.put(t, "worker", ".ssh/id_ed25519", "secret")
	for _, grants := range [][]string{{}, workspace} {
		out := d.run(t, "worker", types.Exec{Command: "cat .ssh/id_ed25519; touch x && echo written", Permissions: grants})
		if strings.Contains(out.Stdout, "secret") || strings.Contains(out.Stdout, "written") != (len(grants) > 0) {
			t.Errorf("with %v: %q %q", grants, out.Stdout, out.Stderr)
		}
	}
}

// Files go between calls and the API through the home, and through a /tmp that Docker has mounted
// after the service started.
func composeFiles(t *testing.T, d *deployment, _ *world) {
	d.registerAs(t, "files", types.Registration{UserID: "files", Permissions: types.Permissions{WriteDirs: []string{"/home"}}})
	for _, name := range []string{"/home/in.txt", "/tmp/in.txt"} {
		if _, err := d.client.Write(t.Context(), "files", types.Write{Target: types.Target{Path: name}, Content: "from the API"}); err != nil {
			t.Fatal(err)
		}
		if got := d.sh(t, "files", "cat "+name+"; umask 077; echo from a call > "+name+".out"); got != "from the API" {
			t.Errorf("%s: %q", name, got)
		}
		if out, err := d.client.Read(t.Context(), "files", types.Read{Target: types.Target{Path: name + ".out"}}); err != nil || out.Content != "from a call\n" {
			t.Errorf("%s: %+v %v", name, out, err)
		}
	}
}

func composeEgress(t *testing.T, d *deployment, w *world) {
	d.traveller(t, w, "outside")
	allowed, denied := w.name(t, "allowed", w.shared), w.name(t, "denied", w.shared)
	if got := succeeds(t, d.reach(t, "outside", hello("https://"+allowed), allowed)); got != "hello from "+allowed {
		t.Errorf("%q", got)
	}
	out := d.reach(t, "outside", hello("https://"+denied), allowed)
	if verdict, _ := refused(out, denied); !out.Failed || verdict != "denied" {
		t.Errorf("%q %q, egress %+v", out.Stdout, out.Stderr, out.Egress)
	}
	if n := len(w.arrivals(allowed)); n != 1 {
		t.Errorf("%d requests arrived at the allowed name", n)
	}
	if n := len(w.arrivals(denied)) + w.DNS.Asked(denied); n != 0 {
		t.Errorf("the denied name was asked for or reached %d times", n)
	}
}

// A private address is reached by the user who may, and by no other.
func composeLocal(t *testing.T, d *deployment, w *world) {
	private := w.name(t, "nas", w.private(t))
	for user, may := range map[string]bool{"local": true, "stranger": false} {
		d.traveller(t, w, user)
		if out := d.reach(t, user, hello("http://"+private), private); out.Failed == may {
			t.Errorf("%s: %s %q %q", user, exitText(out), out.Stdout, out.Stderr)
		}
	}
}

// The socket is a file of the host, and the command line is in the image as well.
func composeCommandLine(t *testing.T, d *deployment, _ *world) {
	out, err := exec.Command(filepath.Join(binaries, "sandbox"), "--socket", d.path("sandboxd.sock"), "exec", "--user", "typist", "--", "uname -r").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "gvisor") {
		t.Errorf("%v: %s", err, out)
	}
	if out := d.compose(t, "exec", "-T", "sandboxd", "/bin/sandbox", "ps"); !strings.Contains(out, "typist") {
		t.Errorf("%s", out)
	}
}

// A durable process goes on while its service is restarted, and is found again.
func composeProcess(t *testing.T, d *deployment, _ *world) {
	d.register(t, "durable")
	p := d.startProcess(t, "durable", types.StartProcess{Name: "counter", Command: counting})
	prints(t, p, "line 3\n")
	before := d.service(t).State.StartedAt
	d.compose(t, "restart")
	d.client.Close()
	eventually(t, "the service answers again", func() bool {
		_, err := d.client.Health(context.Background())
		return err == nil
	})
	if d.service(t).State.StartedAt == before {
		t.Error("the service was not restarted")
	}
	lines := checkCount(t, logOf(t, p))
	eventually(t, "the process goes on", func() bool { return strings.Count(logOf(t, p), "\n") > lines })
	now := d.process(t, "durable", p.ID)
	if now.Status != types.ProcessRunning || now.RestartCount != 0 || now.PID == nil || p.PID == nil || *now.PID != *p.PID {
		t.Errorf("it was %+v, it is %+v", p, now)
	}
}
