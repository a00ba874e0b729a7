package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/daycare-run/sandbox/internal/cli/doctor"
)

// doctor runs sandbox doctor, and returns what it found and its exit code.
func (l *lab) doctor(t *testing.T, change func(*exec.Cmd), args ...string) (found map[string]doctor.Finding, code int) {
	t.Helper()
	cmd := l.cli(append([]string{"doctor", "--json"}, args...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	if change != nil {
		change(cmd)
	}
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	var report doctor.Report
	if err := json.Unmarshal(out, &report); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	found = map[string]doctor.Finding{}
	for _, f := range report.Findings {
		found[f.Check] = f
	}
	return found, cmd.ProcessState.ExitCode()
}

// with sets variables of the doctor's own, which go before the service's.
func with(variables ...string) func(*exec.Cmd) {
	return func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, variables...) }
}

// doctorLab is a healthy service, and a name that its calls may reach.
func doctorLab(t *testing.T) (l *lab, name string) {
	t.Helper()
	w := openWorld(t)
	return newLab(t, "runsc", worldSettings(w)...), w.name(t, "allowed", w.shared)
}

func TestDoctorOfAHealthyHost(t *testing.T) {
	l, name := doctorLab(t)
	found, code := l.doctor(t, nil, "--probe-name", name)
	if code != 0 {
		t.Errorf("exit code %d: %+v", code, found)
	}
	for check, part := range map[string]string{
		"settings": "as of the service (pid ", "engine": "Docker ", "runtime runsc": "runsc", "offline runtime": "runsc-offline", "linked runtime": "runsc-linked", "frozen containers": "stopped completely", "gvisor-bin": "boot ", "image": "version ", "nftables": "can be made",
		"service": "answers at " + l.path("sandboxd.sock"), "a command": "gvisor", "a denied name": "denied at once", "an allowed name": "resolves to " + openWorld(t).shared.String(),
	} {
		if f := found[check]; f.Level != doctor.OK || !strings.Contains(f.Found, part) {
			t.Errorf("%s: %+v, want it to say %s", check, f, part)
		}
	}
	boxes, err := l.client.List(t.Context())
	if err != nil || len(boxes) != 0 {
		t.Errorf("it leaves sandboxes: %+v, %v", boxes, err)
	}
	// The service is found by the variable, too.
	byVariable := func(args ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(binaries, "sandbox"), args...)
		cmd.Env = append(os.Environ(), "SANDBOX_SOCKET="+l.path("sandboxd.sock"))
		return cmd
	}
	out, err := byVariable("doctor", "--probe-name", name).Output()
	if err != nil || !strings.Contains(string(out), "as of the service (pid ") || !strings.Contains(string(out), " 0 faults,") || strings.Contains(string(out), "\x1b") {
		t.Errorf("%v: %s", err, out)
	}
}

// The way in by TCP is looked at where there is one. A certificate that was renewed is not yet shown.
func TestDoctorOfTheWayInByTCP(t *testing.T) {
	w := openWorld(t)
	l := newTCPLab(t, "runsc", worldSettings(w)...)
	look := func() map[string]doctor.Finding {
		found, code := l.doctor(t, nil, "--probe-name", w.name(t, "allowed", w.shared))
		if code != 0 {
			t.Errorf("exit code %d: %+v", code, found)
		}
		return found
	}
	found := look()
	for check, part := range map[string]string{"tcp.listen": "sandboxd (pid ", "tcp.tokensFile": "tokens.json", "tcp.certFile": "valid until "} {
		if f := found[check]; f.Level != doctor.OK || !strings.Contains(f.Found, part) {
			t.Errorf("%s: %+v, want it to say %s", check, f, part)
		}
	}
	certificate, key := selfSigned(t, time.Now().Add(90*time.Minute))
	l.file(t, "cert.pem", certificate)
	l.file(t, "key.pem", key)
	if f := look()["tcp.certFile"]; f.Level != doctor.Warning || !strings.Contains(f.Found, "another certificate") {
		t.Errorf("a certificate that was renewed: %+v", f)
	}
}

// The settings are those of the file that the service reads, also if it calls it by another path than doctor would.
func TestDoctorReadsTheServicesFile(t *testing.T) {
	l := newLab(t, "runsc")
	file := l.path("settings.json")
	if err := os.WriteFile(file, []byte(`{"limits":{"pids":300}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	l.stop(syscall.SIGTERM)
	elsewhere := l.environ
	l.wrap, l.environ = []string{"env", "-C", l.dir}, append(slices.Clone(elsewhere), "SANDBOXD_SETTINGS=settings.json")
	err := l.start()
	if l.environ = elsewhere; err != nil { // the lab is not removed from that folder
		t.Fatal(err)
	}
	found, _ := l.doctor(t, nil, "--offline")
	if f := found["settings"]; f.Level != doctor.OK || !strings.Contains(f.Found, file+", as of the service (pid ") {
		t.Errorf("%+v", f)
	}
	// A file that is named here is meant as it is named here, without what the service was started with.
	other := filepath.Join(t.TempDir(), "other.json")
	if err := os.WriteFile(other, []byte(`{"listen":"`+l.path("sandboxd.sock")+`"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	found, _ = l.doctor(t, with("SANDBOXD_SETTINGS="+other), "--offline")
	if f := found["settings"]; f.Level != doctor.OK || f.Found != other {
		t.Errorf("%+v", f)
	}
}

// A socket that is for other users as well is as it should be, if they can get to it.
func TestDoctorOfASocketForOthers(t *testing.T) {
	l := newLab(t, "runsc", append(worldSettings(openWorld(t)), "SANDBOXD_ACCESS_PEERS=0,1000")...)
	for mode, level := range map[os.FileMode]string{0o711: doctor.OK, 0o700: doctor.Warning} {
		chmod(t, l.dir, mode)
		found, code := l.doctor(t, nil, "--offline")
		if f := found["socket"]; code != 0 || f.Level != level {
			t.Errorf("in a folder with the mode %04o: exit code %d: %+v", mode, code, f)
		}
	}
}

// The name of each fault, and how it comes to be.
func TestDoctorNamesTheFault(t *testing.T) {
	l, name := doctorLab(t)
	for _, tt := range []struct {
		name   string
		inject func(t *testing.T) (change func(*exec.Cmd), args []string)
		check  string
		found  string // part of it
	}{
		{"a key is misspelt", func(t *testing.T) (func(*exec.Cmd), []string) {
			file := filepath.Join(t.TempDir(), "settings.json")
			if err := os.WriteFile(file, []byte(`{"docker":{"runtme":"runsc"}}`), 0o600); err != nil {
				t.Fatal(err)
			}
			return nil, []string{"--settings", file}
		}, "settings", "docker.runtme: unknown key (did you mean runtime?)"},
		{"the engine is down", injected(with("SANDBOXD_DOCKER_SOCKET_PATH=/run/no-engine.sock")), "engine", "no Docker engine answers at unix:///run/no-engine.sock"},
		{"the runtime is not registered", injected(with("SANDBOXD_DOCKER_RUNTIME=kata")), "runtime kata", "does not know the runtime kata"},
		{"the image is missing", injected(with("SANDBOXD_DOCKER_IMAGE=daycare-nowhere")), "image", "image daycare-nowhere:latest is missing"},
		{"the image is of another version", func(t *testing.T) (func(*exec.Cmd), []string) {
			return with("SANDBOXD_DOCKER_TAG=" + l.oldImage(t)), nil
		}, "image", "is version 0-old, and this build goes with version"},
		{"the resolver is dead", injected(with("SANDBOXD_DOCKER_ISOLATED_DNS_SERVERS=127.0.0.1:1")), "resolver 127.0.0.1:1", "refused"},
		{"the socket's folder is open to all", func(t *testing.T) (func(*exec.Cmd), []string) {
			chmod(t, l.dir, 0o777)
			t.Cleanup(func() { chmod(t, l.dir, 0o700) })
			return nil, nil
		}, "socket", "others may put their own socket into " + l.dir},
		{"the disk is full", func(t *testing.T) (func(*exec.Cmd), []string) {
			dir := t.TempDir()
			if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m,mode=0755"); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = syscall.Unmount(dir, 0) })
			return with("SANDBOXD_DATA_DIR=" + dir), nil
		}, "disk of dataDir", "0.0 of 0.0 GiB free"},
		{"the rules may not be changed", injected(func(cmd *exec.Cmd) {
			cmd.Args = append([]string{"setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin", cmd.Path}, cmd.Args[1:]...)
			cmd.Path, cmd.Err = exec.LookPath("setpriv")
		}), "nftables", "CAP_NET_ADMIN"},
		{"another program has the address", func(t *testing.T) (func(*exec.Cmd), []string) {
			other, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = other.Close() })
			return withTCP(t, "SANDBOXD_TCP_LISTEN="+other.Addr().String()), nil
		}, "tcp.listen", fmt.Sprintf("(pid %d) listens at 127.0.0.1:", os.Getpid())},
		{"others may read the tokens", func(t *testing.T) (func(*exec.Cmd), []string) {
			file := filepath.Join(t.TempDir(), "tokens.json")
			if err := os.WriteFile(file, []byte(`{}`), 0o644); err != nil {
				t.Fatal(err)
			}
			return withTCP(t, "SANDBOXD_TCP_TOKENS_FILE="+file), nil
		}, "tcp.tokensFile", "chmod 600 "},
		{"the certificate has expired", func(t *testing.T) (func(*exec.Cmd), []string) {
			return withCertificate(t, time.Now().Add(-time.Minute), 0o600), nil
		}, "tcp.certFile", "has expired, on "},
		{"others may read the key", func(t *testing.T) (func(*exec.Cmd), []string) {
			return withCertificate(t, time.Now().Add(time.Hour), 0o644), nil
		}, "tcp.certFile", "others may open the key "},
		{"a folder is open to all", func(t *testing.T) (func(*exec.Cmd), []string) {
			chmod(t, l.path("users"), 0o777)
			t.Cleanup(func() { chmod(t, l.path("users"), 0o755) })
			return nil, nil
		}, "usersDir", "others may write to"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			change, args := tt.inject(t)
			found, code := l.doctor(t, change, append(args, "--probe-name", name)...)
			f := found[tt.check]
			if code != 1 || f.Level != doctor.Fault || !strings.Contains(f.Found, tt.found) || f.Remedy == "" {
				t.Errorf("exit code %d: %+v, of %+v", code, f, found)
			}
			for check, other := range found {
				if other.Level == doctor.Fault && check != tt.check {
					t.Errorf("it also takes for a fault %+v", other)
				}
			}
		})
	}
}

// withTCP has the doctor think that the service is to listen on TCP, at a free port and with a good token
// unless the variables say otherwise.
func withTCP(t *testing.T, variables ...string) func(*exec.Cmd) {
	t.Helper()
	tokens := filepath.Join(t.TempDir(), "tokens.json")
	if err := os.WriteFile(tokens, []byte(`{"tokens":[{"name":"engine","token":"`+engineToken+`"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	return with(append([]string{"SANDBOXD_TCP_LISTEN=" + freePort(t), "SANDBOXD_TCP_TOKENS_FILE=" + tokens}, variables...)...)
}

func withCertificate(t *testing.T, end time.Time, mode os.FileMode) func(*exec.Cmd) {
	t.Helper()
	certificate, key := selfSigned(t, end)
	dir := t.TempDir()
	for name, text := range map[string]string{"cert.pem": certificate, "key.pem": key} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	return withTCP(t, "SANDBOXD_TCP_CERT_FILE="+filepath.Join(dir, "cert.pem"), "SANDBOXD_TCP_KEY_FILE="+filepath.Join(dir, "key.pem"))
}

func injected(change func(*exec.Cmd)) func(*testing.T) (func(*exec.Cmd), []string) {
	return func(*testing.T) (func(*exec.Cmd), []string) { return change, nil }
}

func chmod(t *testing.T, name string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(name, mode); err != nil {
		t.Fatal(err)
	}
}

// oldImage makes the sandbox image over with another version on its label, and returns its tag.
func (l *lab) oldImage(t *testing.T) (tag string) {
	t.Helper()
	created, err := l.engine.ContainerCreate(t.Context(), &container.Config{Image: sandboxImage}, nil, nil, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = l.engine.ContainerRemove(context.Background(), created.ID, container.RemoveOptions{Force: true})
	}()
	name := "daycare-sandbox:" + l.egress
	if _, err := l.engine.ContainerCommit(t.Context(), created.ID, container.CommitOptions{
		Reference: name, Changes: []string{"LABEL run.daycare.sandbox.image.version=0-old"},
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = l.engine.ImageRemove(context.Background(), name, image.RemoveOptions{}) })
	return l.egress
}

func TestDoctorOfAServiceThatIsDown(t *testing.T) {
	l, name := doctorLab(t)
	l.stop(syscall.SIGTERM)
	if out, err := l.cli("version").Output(); err != nil || !strings.Contains(string(out), "not reachable at "+l.path("sandboxd.sock")) {
		t.Errorf("version: %v %s", err, out)
	}
	as := func(cmd *exec.Cmd) { cmd.Env = l.environ }
	found, code := l.doctor(t, as, "--probe-name", name)
	if f := found["service"]; code != 1 || f.Level != doctor.Fault || !strings.Contains(f.Found, "is sandboxd running?") {
		t.Errorf("exit code %d: %+v", code, f)
	}
	for _, check := range []string{"a command", "a denied name", "an allowed name"} {
		if found[check].Level != doctor.Skipped {
			t.Errorf("%+v", found[check])
		}
	}
	if found, code := l.doctor(t, as, "--probe-name", name, "--offline"); code != 0 || len(found) < 15 {
		t.Errorf("of the host alone: exit code %d: %+v", code, found)
	}
	// A host on which it was never started has nothing wrong.
	if err := os.Remove(l.path("sandboxd.sock")); err != nil {
		t.Fatal(err)
	}
	found, code = l.doctor(t, as, "--probe-name", name)
	if f := found["service"]; code != 0 || f.Level != doctor.Warning || !strings.Contains(f.Found, "no service has been started yet") || found["a command"].Level != doctor.Skipped {
		t.Errorf("exit code %d: %+v", code, found)
	}
	// Another program has the socket.
	listener, err := net.Listen("unix", l.path("sandboxd.sock"))
	if err != nil {
		t.Fatal(err)
	}
	chmod(t, l.path("sandboxd.sock"), 0o600)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) })}
	served := make(chan error)
	go func() { served <- server.Serve(listener) }()
	defer func() {
		_ = server.Close()
		<-served
	}()
	found, code = l.doctor(t, as, "--probe-name", name)
	if f := found["service"]; code != 1 || f.Level != doctor.Fault || !strings.Contains(f.Found, "is not sandboxd") {
		t.Errorf("exit code %d: %+v", code, f)
	}
}

// A resolver of the host's own that listens everywhere, in a network where there is nothing else.
func TestDoctorOfATakenPort(t *testing.T) {
	l, name := doctorLab(t)
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends, and with it its network
		var err error
		defer func() { done <- err }() // also when what follows fails the scenario, which ends this goroutine
		err = func() error {
			ns, err := netns.New()
			if err != nil {
				return err
			}
			defer ns.Close()
			lo, err := netlink.LinkByName("lo")
			if err == nil {
				err = netlink.LinkSetUp(lo)
			}
			if err != nil {
				return err
			}
			resolver, err := net.ListenPacket("udp4", "0.0.0.0:53")
			if err != nil {
				return err
			}
			defer resolver.Close()
			found, code := l.doctor(t, nil, "--probe-name", name)
			if f := found["port 53"]; code != 1 || f.Level != doctor.Fault || !strings.Contains(f.Found, "another program has port 53") {
				t.Errorf("exit code %d: %+v", code, f)
			}
			return nil
		}()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestDoctorOfAWrongCommandLine(t *testing.T) {
	begin(t)
	for _, args := range [][]string{{"--no-such-flag"}, {"extra"}, {"--probe-name", "*.example.org"}, {"--probe-name", ""}} {
		cmd := exec.Command(filepath.Join(binaries, "sandbox"), append([]string{"doctor"}, args...)...)
		out, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != 2 || !strings.HasPrefix(string(out), "sandboxd: ") {
			t.Errorf("%q: exit code %d: %s", args, code, out)
		}
	}
}
