package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
	"github.com/daycare-run/sandbox/images"
)

func TestManyFirstCallsMakeOneContainer(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		l.register(t, "first")
		var calls sync.WaitGroup
		for range 100 {
			calls.Go(func() {
				if out, err := l.client.Exec(t.Context(), "first", types.Exec{Permissions: workspace, Argv: []string{"true"}}); err != nil || out.Failed {
					t.Errorf("%+v, %v", out.Result, err)
				}
			})
		}
		calls.Wait()
		if n := len(l.containers(t)); n != 1 {
			t.Errorf("%d containers were made", n)
		}
		ready := func() int { return strings.Count(l.log.String(), "container ready") }
		eventually(t, "the log tells of it", func() bool { return ready() > 0 })
		if n := ready(); n != 1 {
			t.Errorf("%d containers became ready", n)
		}
	})
}

// The service is killed in the middle of a command: nothing of the command is left, and the next
// service goes on with the same container.
func TestKilledServiceLeavesNothingRunning(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		l.register(t, "killed")
		l.sh(t, "killed", "true")
		lost := make(chan error, 1)
		go func() {
			_, err := l.client.Exec(context.Background(), "killed", types.Exec{Permissions: workspace, Command: "(setsid sleep 7300 &) ; trap '' TERM; sleep 7300"})
			lost <- err
		}()
		eventually(t, "the command runs", func() bool { return strings.Count(sleeping(t, l, "killed", "7300"), "sleep") == 2 })
		before := l.containerOf(t, "killed").ID
		l.stop(syscall.SIGKILL)
		if err := <-lost; err == nil {
			t.Error("the call did not fail")
		}
		eventually(t, "nothing is left of the command", func() bool { return !l.isRunning(t, before, "sleep 7300") })
		if err := l.start(); err != nil {
			t.Fatal(err)
		}
		out := l.run(t, "killed", types.Exec{Permissions: workspace, Argv: []string{"true"}})
		if after := l.containersOf(t, "killed"); len(after) != 1 || after[0].ID != before {
			t.Errorf("the container was not adopted: %+v", after)
		}
		if out.Failed || out.Cold {
			t.Errorf("got %+v", out.Result)
		}
	})
}

func TestSandboxesOutliveTheService(t *testing.T) {
	l := newLab(t, "runsc")
	l.register(t, "kept")
	l.stop(syscall.SIGTERM)
	if err := l.start(); err != nil {
		t.Fatal(err)
	}
	if box, err := l.client.Get(t.Context(), "kept"); err != nil || box.UserID != "kept" {
		t.Errorf("got %+v, %v", box, err)
	}
}

func TestContainerRemovedBehindOurBack(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		l.register(t, "removed")
		l.sh(t, "removed", "echo kept > note")
		if err := l.engine.ContainerRemove(t.Context(), l.containerOf(t, "removed").ID, container.RemoveOptions{Force: true}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the service knows", func() bool {
			list, err := l.client.Containers(t.Context())
			return err == nil && len(list) == 0
		})
		if got := l.sh(t, "removed", "cat note"); got != "kept" {
			t.Errorf("got %q", got)
		}
	})
}

// What is not ours is left alone: containers without our labels, also under a name that we want.
func TestOthersContainersAreLeftAlone(t *testing.T) {
	l := newLab(t, "runc")
	l.register(t, "others")
	l.sh(t, "others", "true")
	name := strings.TrimPrefix(l.containerOf(t, "others").Names[0], "/")
	l.stop(syscall.SIGTERM)
	if err := l.engine.ContainerRemove(t.Context(), name, container.RemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	foreign, err := l.engine.ContainerCreate(t.Context(), &container.Config{Image: sandboxImage, Cmd: []string{"sleep", "60"}}, nil, nil, nil, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = l.engine.ContainerRemove(context.Background(), foreign.ID, container.RemoveOptions{Force: true})
	})
	if err := l.start(); err != nil {
		t.Fatal(err)
	}
	_, err = l.client.Exec(t.Context(), "others", types.Exec{Permissions: workspace, Argv: []string{"true"}})
	if err == nil || !strings.Contains(err.Error(), "is not this service's") {
		t.Errorf("got %v", err)
	}
	if _, err := l.engine.ContainerInspect(t.Context(), foreign.ID); err != nil {
		t.Errorf("the foreign container is gone: %v", err)
	}
}

func TestIdleContainersGo(t *testing.T) {
	l := newLab(t, "runsc", "SANDBOXD_IDLE_REMOVE_AFTER=1s")
	l.register(t, "idle")
	l.sh(t, "idle", "sleep 2; true") // longer than the idle time: in use is not idle
	eventually(t, "the container is gone", func() bool { return len(l.containers(t)) == 0 })
	if got := l.sh(t, "idle", "echo again"); got != "again" {
		t.Errorf("got %q", got)
	}
}

func TestChangedSettingsReplaceContainers(t *testing.T) {
	l := newLab(t, "runc")
	l.register(t, "settings")
	l.sh(t, "settings", "true")
	before := l.containerOf(t, "settings").ID
	l.stop(syscall.SIGTERM)
	l.environ = append(l.environ, "SANDBOXD_LIMITS_MEMORY=2Gi")
	if err := l.start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the stale container is gone", func() bool { return len(l.containers(t)) == 0 })
	l.sh(t, "settings", "true")
	if after := l.containersOf(t, "settings"); len(after) != 1 || after[0].ID == before {
		t.Errorf("got %+v", after)
	}
}

// A rebuilt image replaces the containers that were made from the old one, those in use when their
// last command has ended.
func TestRebuiltImageReplacesContainers(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		base, tag := l.image("small"), l.image("rebuilt")
		t.Cleanup(func() { removeImage(l, base) })
		l.place.giveImage(t, base) // small, because an engine of today looks at all of it for each step
		build(t, l, tag, "FROM "+base+"\nENV BUILD=one\n")
		l.stop(syscall.SIGTERM)
		l.environ = append(l.environ, "SANDBOXD_DOCKER_IMAGE="+tag)
		if err := l.start(); err != nil {
			t.Fatal(err)
		}
		l.register(t, "rebuilt")
		if got := l.sh(t, "rebuilt", "echo $BUILD"); got != "one" {
			t.Fatalf("got %q", got)
		}
		long := make(chan types.Output, 1)
		go func() {
			out, _ := l.client.Exec(context.Background(), "rebuilt", types.Exec{Permissions: workspace, TimeoutMs: unhurried, Command: "while [ ! -e go-on ]; do sleep 0.05; done; echo $BUILD"})
			long <- out
		}()
		eventually(t, "the long command runs", func() bool {
			list, err := l.client.Containers(t.Context())
			return err == nil && len(list) == 1 && list[0].Commands == 1
		})
		build(t, l, tag, "FROM "+base+"\nENV BUILD=two\n")
		eventually(t, "the new image is used", func() bool { return l.sh(t, "rebuilt", "echo $BUILD") == "two" })
		l.sh(t, "rebuilt", "echo > go-on")
		if out := <-long; out.Stdout != "one\n" {
			t.Errorf("the command that was running: %+v", out)
		}
		eventually(t, "the old container is gone", func() bool { return len(l.containers(t)) == 1 })
	})
}

// An image without bash, and with a USER, VOLUME, ENTRYPOINT and HEALTHCHECK of its own.
func TestAnyImageWithAShell(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		tag := l.image("other")
		build(t, l, tag, "FROM "+sandboxImage+"\nUSER root\nRUN rm /bin/bash\nENTRYPOINT [\"/bin/false\"]\nHEALTHCHECK CMD /bin/false\n")
		l.stop(syscall.SIGTERM)
		l.environ = append(l.environ, "SANDBOXD_DOCKER_IMAGE="+tag)
		if err := l.start(); err != nil {
			t.Fatal(err)
		}
		l.register(t, "other")
		if got := l.sh(t, "other", "id -u; echo $0; pwd"); got != fmt.Sprint(l.owner("other"))+"\nsh\n/home" {
			t.Errorf("got %q", got)
		}
	})
}

// An image of one's own is built as the page says, with steps that run programs, and serves.
func TestImageIsBuilt(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		base, tag := l.image("small"), l.image("built")
		t.Cleanup(func() { removeImage(l, base) })
		t.Cleanup(func() { removeImage(l, tag) })
		l.place.giveImage(t, base)
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte("ARG BASE=no-such-image\nFROM ${BASE}\nENV BUILT=here\nRUN echo made > /made\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		l.stop(syscall.SIGTERM)
		l.environ = append(l.environ, "SANDBOXD_DOCKER_IMAGE="+tag)
		cmd := exec.Command(filepath.Join(binaries, "sandboxd"), "image", "build", "--base", base, dir)
		cmd.Env = l.environ
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "RUN echo made") {
			t.Fatalf("%v: %s", err, out)
		}
		if err := l.start(); err != nil {
			t.Fatal(err)
		}
		l.register(t, "built")
		if got := l.sh(t, "built", "read made < /made; echo $made $BUILT"); got != "made here" {
			t.Errorf("got %q", got)
		}
	})
}

// image is a name for an image that no other lab has.
func (l *lab) image(name string) string { return "daycare-sandbox-e2e-" + name + "-" + l.egress }

// build builds an image, which goes when the test ends. It shares no step with another lab's image, whose removal would
// take that away.
func build(t *testing.T, l *lab, tag, dockerfile string) {
	t.Helper()
	made := tag
	t.Cleanup(func() { removeImage(l, made) })
	dockerfile = strings.Replace(dockerfile, "\n", "\nLABEL lab="+l.egress+"\n", 1)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(dockerfile), 0o644); err != nil {
		t.Fatal(err)
	}
	var out lockedBuffer
	if err := images.Build(t.Context(), l.engine, dir, "", tag, &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	found, err := l.engine.ImageInspect(t.Context(), tag)
	if err != nil {
		t.Fatal(err)
	}
	made = found.ID // the tag may be given to a later build
}

func removeImage(l *lab, name string) {
	engine := l.engine
	left, _ := l.listContainers() // the lab tries again
	for _, c := range left {
		_ = engine.ContainerRemove(context.Background(), c.ID, container.RemoveOptions{Force: true})
	}
	_, _ = engine.ImageRemove(context.Background(), name, image.RemoveOptions{Force: true, PruneChildren: true})
}

func TestSecondServiceOnOneDataDirIsRefused(t *testing.T) {
	l := newLab(t, "runc")
	second := &lab{dir: l.dir, place: l.place, engine: l.engine, log: &lockedBuffer{}, environ: append(l.environ, "SANDBOXD_LISTEN="+l.path("second.sock"))}
	second.client = newClient(l.path("second.sock"))
	err := second.start()
	if err == nil {
		second.stop(syscall.SIGTERM)
		t.Fatal("a second service started")
	}
	if !strings.Contains(err.Error(), "the service with pid") {
		t.Errorf("got %v", err)
	}
}

func TestRuntimeThatTheEngineDoesNotKnow(t *testing.T) {
	l := newLab(t, "runc")
	l.register(t, "weaker")
	l.stop(syscall.SIGTERM)
	l.environ = append(l.environ, "SANDBOXD_DOCKER_RUNTIME=no-such-runtime")
	err := l.start()
	if err == nil {
		t.Fatal("the service started")
	}
	for _, want := range []string{`does not know the runtime "no-such-runtime"`, "scripts/setup.sh", "enableWeakerNestedSandbox"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in %v", want, err)
		}
	}
	l.environ = append(l.environ, "SANDBOXD_DOCKER_ENABLE_WEAKER_NESTED_SANDBOX=true")
	if err := l.start(); err != nil {
		t.Fatal(err)
	}
	if got := l.sh(t, "weaker", "echo fine"); got != "fine" {
		t.Errorf("got %q", got)
	}
	if list, err := l.client.Containers(t.Context()); err != nil || list[0].Runtime != "runc" {
		t.Errorf("got %+v, %v", list, err)
	}
}

func TestMissingImage(t *testing.T) {
	image := "daycare-sandbox-e2e-missing-" + egressName()
	l := newLab(t, "runsc", "SANDBOXD_DOCKER_IMAGE="+image)
	l.register(t, "missing")
	_, err := l.client.Exec(t.Context(), "missing", types.Exec{Permissions: workspace, Argv: []string{"true"}})
	var failure *client.Error
	if !errors.As(err, &failure) || failure.Kind != types.Engine || !strings.Contains(failure.Message, "sandboxd image build") {
		t.Fatalf("got %v", err)
	}
	if health, err := l.client.Health(t.Context()); err != nil || health.Status != "degraded" || !strings.Contains(health.Problem, "missing") {
		t.Errorf("health: %+v, %v", health, err)
	}
	build(t, l, image, "FROM "+sandboxImage+"\n")
	if got := l.sh(t, "missing", "echo there"); got != "there" {
		t.Errorf("got %q", got)
	}
}

// A graceful stop ends what runs and answers its callers.
func TestStopEndsRunningCommands(t *testing.T) {
	l := newLab(t, "runsc", "SANDBOXD_SHUTDOWN_GRACE_MS=300")
	l.register(t, "stop")
	ended := make(chan error, 1)
	go func() {
		_, err := l.client.Exec(context.Background(), "stop", types.Exec{Permissions: workspace, Command: "sleep 7301"})
		ended <- err
	}()
	eventually(t, "the command runs", func() bool { return sleeping(t, l, "stop", "7301") != "" })
	id := l.containerOf(t, "stop").ID
	l.stop(syscall.SIGTERM)
	if l.isRunning(t, id, "sleep 7301") {
		t.Error("the service has stopped, and the command goes on")
	}
	if err := <-ended; !isKind(err, types.Unavailable) {
		t.Errorf("the call ended with %v", err)
	}
}
