package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/engine"
)

// sandboxd runs a command of the service's program with the lab's settings.
func (l *lab) sandboxd(args ...string) (out string, code int) {
	cmd := exec.Command(filepath.Join(binaries, "sandboxd"), args...)
	cmd.Env = l.environ
	var text []byte
	err := l.place.do(func() (err error) { text, err = cmd.CombinedOutput(); return err })
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return string(text), exit.ExitCode()
	case err != nil:
		return err.Error(), -1
	}
	return string(text), 0
}

// remains are what the lab has in Docker and in the kernel.
func (l *lab) remains() (left []string) {
	list, err := l.listContainers()
	if err != nil {
		left = append(left, err.Error())
	}
	for _, c := range list {
		if _, err := l.engine.ContainerInspect(context.Background(), c.ID); !cerrdefs.IsNotFound(err) { // else Docker only lists it
			left = append(left, "container "+strings.Join(c.Names, " "))
		}
	}
	for _, name := range l.networks() {
		left = append(left, "network "+name)
	}
	for _, name := range l.volumes() {
		left = append(left, "volume "+name)
	}
	var tables []byte
	_ = l.place.do(func() (err error) { tables, err = exec.Command("nft", "list", "tables").Output(); return err })
	for line := range strings.Lines(string(tables)) {
		if strings.Contains(line, l.egress) {
			left = append(left, strings.TrimSpace(line))
		}
	}
	return left
}

// A service removes itself: when it runs no more, and all of it.
func TestCleanup(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		l.registerAs(t, "cleaned", types.Registration{UserID: "cleaned", Permissions: types.Permissions{Network: true}})
		l.sh(t, "cleaned", "echo kept > note")
		l.run(t, "cleaned", types.Exec{Permissions: []string{"@network"}, AllowedDomains: []string{"example.org"}, Command: "true"})
		var started types.StartedProcess
		l.call(t, http.MethodPost, "cleaned/processes", types.StartProcess{Name: "runs", Command: "sleep 7811"}, &started)
		before := l.remains()
		for _, kind := range []string{"container ", "network ", "volume ", "table "} {
			if !strings.Contains(strings.Join(before, "\n"), kind) {
				t.Fatalf("there is no %sto begin with: %q", kind, before)
			}
		}
		if out, code := l.sandboxd("cleanup", "--data"); code != 3 || !strings.Contains(out, "nothing is removed: a service runs (pid ") {
			t.Errorf("beside a service that runs: %d, %s", code, out)
		}
		if got := l.sh(t, "cleaned", "cat note"); got != "kept" || len(l.remains()) < len(before) {
			t.Errorf("afterwards: %q, %q", got, l.remains())
		}
		release := withoutStarts(t)
		defer release()
		l.stop(syscall.SIGKILL)
		if out, code := l.sandboxd("cleanup", "--dry-run"); code != 0 || strings.Count(out, "would remove ") < 4 || len(l.remains()) < len(before) {
			t.Errorf("without doing it: %d, %s, and there is %q", code, out, l.remains())
		}
		out, code := l.sandboxd("cleanup")
		if code != 0 || len(l.remains()) > 0 {
			t.Errorf("%d, %s, and there is still %q", code, out, l.remains())
		}
		for _, said := range []string{"removed container daycare-process-", "removed network " + l.egress, "removed volume ", "removed the rules " + l.egress} {
			if !strings.Contains(out, said) {
				t.Errorf("it does not say %q: %s", said, out)
			}
		}
		release()
		if err := l.start(); err != nil {
			t.Fatal(err)
		}
		if got := l.sh(t, "cleaned", "cat note"); got != "kept" { // so the record is, too
			t.Errorf("got %q", got)
		}
		l.stop(syscall.SIGTERM)
		instance := l.instance()
		if err := os.RemoveAll(l.path("data")); err != nil {
			t.Fatal(err)
		}
		if out, code := l.sandboxd("cleanup", "--data"); code != 0 {
			t.Errorf("without its dataDir: %d, %s", code, out)
		}
		if err := errors.Join(os.Mkdir(l.path("data"), 0o700), os.WriteFile(l.path("data/instance"), []byte(instance+"\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
		if left := l.remains(); len(left) > 0 {
			t.Errorf("without its dataDir it has left %q", left)
		}
	})
}

// What a service made under an id that a fault of the disk took is removed by its next start.
func TestALostInstance(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		l.register(t, "orphan")
		l.sh(t, "orphan", "true")
		id, name := l.containerOf(t, "orphan").ID, l.path("data/instance")
		l.stop(syscall.SIGKILL)
		if err := os.Truncate(name, 7); err != nil {
			t.Fatal(err)
		}
		if err := l.start(); err != nil {
			t.Fatal(err)
		}
		if got := l.sh(t, "orphan", "echo there"); got != "there" || len(l.containers(t)) != 1 {
			t.Errorf("%q, in %d containers", got, len(l.containers(t)))
		}
		eventually(t, "the old container is gone", func() bool {
			_, err := l.engine.ContainerInspect(context.Background(), id)
			return cerrdefs.IsNotFound(err)
		})
		if _, err := os.Stat(name + ".damaged"); err != nil || !strings.Contains(l.log.String(), "the service's id is damaged") {
			t.Errorf("%v, log %s", err, l.log.tail())
		}
	})
}

// Another checkout's `make clean` leaves a service alone that it did not start. What is left of a demo, after
// a restart of the host for instance, is removed, whatever has the process id of its service by then; but not once another
// service has used what it had.
func TestDemoStopElsewhere(t *testing.T) {
	l := newLab(t, "runc")
	l.register(t, "demo")
	l.sh(t, "demo", "true")
	other := t.TempDir()
	for _, dir := range []string{"scripts", "bin"} {
		mkdir(t, filepath.Join(other, dir))
	}
	script := readText(t, "../scripts/demo.sh")
	pid := l.path("data/demo.pid")
	if err := errors.Join(
		os.WriteFile(filepath.Join(other, "scripts/demo.sh"), []byte(script), 0o755),
		os.Symlink(filepath.Join(binaries, "sandboxd"), filepath.Join(other, "bin/sandboxd")),
		os.WriteFile(pid, []byte(strings.TrimSpace(readText(t, l.path("data/lock")))+"\n"), 0o644),
	); err != nil {
		t.Fatal(err)
	}
	stop := func() string {
		cmd := exec.Command(filepath.Join(other, "scripts/demo.sh"), "stop")
		cmd.Env = l.environ
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	if out := stop(); !strings.Contains(out, "is not this checkout's") {
		t.Errorf("it says %s", out)
	}
	if got := l.sh(t, "demo", "echo there"); got != "there" || len(l.remains()) == 0 {
		t.Errorf("got %q, and there is %q", got, l.remains())
	}
	if _, err := os.Stat(pid); err != nil {
		t.Error(err)
	}
	l.stop(syscall.SIGKILL)
	was := func(file string, pid int) {
		t.Helper()
		if err := os.WriteFile(file, fmt.Appendln(nil, pid), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	was(pid, os.Getpid()-1) // an earlier service on the same dataDir
	was(l.path("data/lock"), os.Getpid())
	if out := stop(); !strings.Contains(out, "another sandboxd has used") || len(l.remains()) == 0 {
		t.Errorf("it says %s, and there is %q", out, l.remains())
	}
	was(pid, os.Getpid())
	out := stop()
	if left := l.remains(); len(left) > 0 || !strings.Contains(out, "removed container ") {
		t.Errorf("of a service that is gone it has left %q: %s", left, out)
	}
}

// leftOf is what a run has left on the machine that belongs to nobody any more.
func leftOf(run string) []string {
	var left []string
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		left = left[:0]
		shims, err := engine.Shims()
		if err != nil {
			return []string{err.Error()}
		}
		for _, s := range shims {
			if strings.Contains(strings.Join(s.Sources, "\n"), run+"/") {
				left = append(left, "the shim of container "+s.Container[:12])
			}
		}
		if len(left) == 0 || time.Now().After(deadline) {
			return left
		}
	}
}

// notRemoved is what `sandboxd cleanup` has left of labs, which fails the suite.
var notRemoved struct {
	sync.Mutex
	list []string
}

// removeItself has the lab's own program take away what it has made, as an operator would, and reports whether nothing
// is left.
func (l *lab) removeItself() bool {
	out, code := l.sandboxd("cleanup")
	left := l.remains()
	// With settings that a scenario means to be refused, the program refuses this as well, and the lab has made nothing.
	done := code == 0 || strings.Contains(out, "cannot use the settings")
	if done && len(left) == 0 {
		return true
	}
	if l.place != machine { // an engine of a scenario's own may have ended
		return false
	}
	notRemoved.Lock()
	defer notRemoved.Unlock()
	notRemoved.list = append(notRemoved.list, fmt.Sprintf("sandboxd cleanup of %s has ended with %d, and left %q: %s", l.egress, code, left, out))
	return false
}

// leftNothing reports whether all labs of the run have been removed whole, and tells what has not.
func leftNothing() bool {
	notRemoved.Lock()
	defer notRemoved.Unlock()
	left := append(notRemoved.list, leftOf(runDir)...)
	for _, what := range left {
		fmt.Fprintln(os.Stderr, "e2e: left behind:", what)
	}
	return len(left) == 0
}
