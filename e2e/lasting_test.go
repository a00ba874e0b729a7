package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/volume"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/images"
	"github.com/daycare-run/sandbox/internal/dockerd"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/hostfs"
	"github.com/daycare-run/sandbox/internal/lasting"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/internal/process"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/rootfs"
	"github.com/daycare-run/sandbox/internal/sandbox"
)

// keeper is what sandboxd has of sandboxes that last, in this process.
type keeper struct {
	t        *testing.T
	dir      string
	docker   *dockerd.Client
	executor *dockerexec.Executor
	*lasting.Sandboxes
	end func()
}

// openKeeper opens one on a folder, as a service does that starts there.
func openKeeper(t *testing.T, dir, runtime string) *keeper {
	t.Helper()
	k := &keeper{t: t, dir: dir}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	users, data := filepath.Join(dir, "users"), filepath.Join(dir, "data")
	must(os.MkdirAll(users, 0o755))
	must(os.MkdirAll(data, 0o700))
	k.docker, err = dockerd.Connect(engineSocket)
	must(err)
	instance := keeperInstance(dir)
	agent, err := dockerexec.InstallAgent(filepath.Join(binaries, "sandbox-agent"), data)
	must(err)
	masks, err := dockerexec.InstallMasks(data)
	must(err)
	log := zerolog.New(zerolog.NewTestWriter(t))
	finder := images.NewFinder(k.docker, sandboxImage)
	platforms := sandbox.NewPlatforms(sandbox.PlatformConfig{
		Settings: dockerexec.Platform{
			Instance: instance, DataDir: data, Agent: agent, Runtime: runtime, EventsRuntime: runtime, MaskDir: masks, Network: "none", ReadOnlyRoot: true,
			CapDrop: []string{"ALL"},
			Limits:  dockerexec.Limits{NanoCPUs: 1e9, Memory: 512 << 20, Pids: 512, OpenFiles: 1024, Shm: 64 << 20, Tmp: 64 << 20, Run: 16 << 20, VarTmp: 64 << 20},
		},
		Find: finder.Find, Forget: finder.Forget,
		Outfit:  images.NewOriginals(k.docker, filepath.Join(data, "image"), dockerexec.InstanceLabels(instance)).Read,
		Inspect: func(ctx context.Context) (dockerd.Info, error) { return dockerd.Inspect(ctx, k.docker) }, Log: log,
	})
	planner := rootfs.NewPlanner(rootfs.Config{UsersDir: users, HomeOwners: rootfs.Owners{UID: ownerUID, GID: ownerUID}}, log)
	k.executor = dockerexec.New(k.docker, dockerexec.Config{
		Instance: instance, DataDir: data, Idle: dockerexec.Idle{RemoveAfter: time.Hour}, Platform: platforms.Current,
		Mounts: rootfs.NewPreparer(users, log), ImagesChanged: platforms.Forget, Log: log,
	})
	resolver, err := sandbox.OpenResolver(filepath.Join(data, "sandboxes"), sandbox.Config{
		MaxDomains: 10, Egress: policy.EgressRules{AllowGlobalWildcard: true}, Decisions: decisions.New(10),
	}, planner, platforms, log)
	must(err)
	trash := hostfs.NewTrash(func(dir string, err error) { t.Errorf("%s: %v", dir, err) })
	must(trash.Resume(users))
	emptied, cancel := context.WithCancel(context.Background())
	working := make(chan struct{})
	go func() { defer close(working); trash.Work(emptied) }()
	runner, err := sandbox.NewRunner(resolver, k.executor, trash, 1<<20)
	must(err)
	ports := process.NewListeners(process.PortRange{First: 20_000, Last: 20_001}, log)
	processes, err := process.Open(process.Config{
		Dir: filepath.Join(data, "processes"), Runner: runner, LogDir: runner.Dir, Discard: runner.Discard, Clock: process.SystemClock{}, BootID: "b",
		Ports: ports, Log: log,
	})
	must(err)
	k.Sandboxes, err = lasting.Open(lasting.Config{
		Dir: filepath.Join(data, "lasting"), Service: sandbox.New(resolver, k.executor, processes, nil), Executor: k.executor, Trash: trash, Log: log,
		Owner: func(name string) (quota.Token, bool) { return quota.Token{Name: name}, true },
	})
	must(err)
	k.executor.Start(t.Context(), processes)
	k.Start(t.Context())
	k.end = func() {
		k.Shutdown()
		_ = processes.Shutdown(context.Background())
		ports.Shutdown()
		k.executor.Shutdown()
		cancel()
		<-working
	}
	return k
}

// eachKeeper runs a scenario with one of its own for each runtime. What it has made and not removed fails it.
func eachKeeper(t *testing.T, scenario func(t *testing.T, k *keeper, again func() *keeper)) {
	begin(t)
	for _, runtime := range runtimes {
		t.Run(runtime, func(t *testing.T) {
			dir := t.TempDir()
			k := openKeeper(t, dir, runtime)
			last := k
			defer func() {
				for _, info := range last.All() {
					if b, err := last.Any(info.ID); err == nil {
						_ = b.Kill(context.Background())
					}
				}
				last.sweep(t)
				last.end()
			}()
			scenario(t, k, func() *keeper {
				last = openKeeper(t, dir, runtime)
				return last
			})
		})
	}
}

// sweep removes what is left in Docker, and says what that was.
func (k *keeper) sweep(t *testing.T) {
	marked := filters.NewArgs(filters.Arg("label", "run.daycare.sandbox.instance="+keeperInstance(k.dir)))
	eventually(t, "volumes are gone", func() bool {
		left, err := k.docker.VolumeList(context.Background(), volume.ListOptions{Filters: marked})
		return err == nil && len(left.Volumes) == 0
	})
	left, err := k.docker.ContainerList(context.Background(), container.ListOptions{All: true, Filters: marked})
	if err != nil {
		t.Error(err)
	}
	for _, c := range left {
		t.Errorf("%v is left", c.Names)
		_ = k.docker.ContainerRemove(context.Background(), c.ID, container.RemoveOptions{Force: true})
	}
}

// keeperInstance marks what belongs to a folder's service.
func keeperInstance(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return hex.EncodeToString(sum[:8])
}

// make makes a sandbox without a network.
func (k *keeper) make(t *testing.T, change ...func(*lasting.Create)) *lasting.Sandbox {
	t.Helper()
	c := lasting.Create{Network: lasting.Network{None: true}, Env: map[string]string{"GIVEN": "by create"}}
	for _, do := range change {
		do(&c)
	}
	begun := time.Now()
	b, err := k.Create(t.Context(), quota.Token{Name: "owner"}, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("created in %v", time.Since(begun))
	return b
}

// follow starts a shell command.
func follow(t *testing.T, b *lasting.Sandbox, text string, change ...func(*lasting.Command)) *lasting.Reader {
	t.Helper()
	c := lasting.Command{Argv: []string{"/bin/bash", "-c", text}}
	for _, do := range change {
		do(&c)
	}
	r, err := b.Start(t.Context(), c)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	t.Cleanup(r.Close)
	return r
}

// until reads what a command prints, until a text or the end, of which it returns the words.
func until(t *testing.T, r *lasting.Reader, text string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var all strings.Builder
	for text == "" || !strings.Contains(all.String(), text) {
		e, err := r.Next(ctx)
		if err != nil {
			t.Fatalf("after %q: %v", all.String(), err)
		}
		if e.End != nil {
			fmt.Fprintf(&all, "[%d %d %v]", e.End.Code, e.End.Signal, e.End.TimedOut)
			break
		}
		all.Write(e.Data)
	}
	return all.String()
}

// runIn runs a shell command to its end.
func runIn(t *testing.T, b *lasting.Sandbox, text string) string {
	t.Helper()
	return until(t, follow(t, b, text), "")
}

func TestLastingSandbox(t *testing.T) {
	eachKeeper(t, func(t *testing.T, k *keeper, _ func() *keeper) {
		b := k.make(t)
		begun := time.Now()
		runIn(t, b, "true")
		t.Logf("first command in %v", time.Since(begun))
		begun = time.Now()
		for range 20 {
			runIn(t, b, "true")
		}
		t.Logf("a command in %v", time.Since(begun)/20)
		for text, want := range map[string]string{
			"id -un; echo $HOME ~user; pwd; stat -c %U ~": "user\n/home/user /home/user\n/home/user\nuser\n[0 0 false]",
			"echo $GIVEN $USER; exit 7":                   "by create user\n[7 0 false]",
			"grep -c ' / .*[ ,]rw' /proc/mounts":          "1\n[0 0 false]",
			"ls /.daycare/run; ls /proc/1/fd":             "[2 0 false]",
			"kill -9 1; echo on":                          "on\n[0 0 false]",
			"cat":                                         "[0 0 false]",
		} {
			if got := runIn(t, b, "exec 2>/dev/null; "+text); got != want {
				t.Errorf("%s: %q, want %q", text, got, want)
			}
		}
		// Others have no such sandbox.
		if _, err := k.Find(quota.Token{Name: "another"}, b.ID()); !cerrdefs.IsNotFound(err) {
			t.Errorf("%v", err)
		}
		// Files go through what all sandboxes have.
		if _, err := b.Files().Write(t.Context(), b.ID(), sandbox.WriteRequest{Path: "/home/user/f", Body: strings.NewReader("text")}); err != nil {
			t.Error(err)
		}
		if got := runIn(t, b, "cat f"); got != "text[0 0 false]" {
			t.Errorf("%q", got)
		}
		if _, err := b.Files().Write(t.Context(), b.ID(), sandbox.WriteRequest{Path: "/tmp/f", Body: strings.NewReader("of tmp")}); err != nil {
			t.Error(err)
		}
		if got := runIn(t, b, "cat /tmp/f"); got != "of tmp[0 0 false]" {
			t.Errorf("%q", got)
		}
		// A port of the container's own loopback, without a network.
		follow(t, b, "exec python3 -m http.server --bind 127.0.0.1 8123", func(c *lasting.Command) { c.Tag = "server" })
		eventually(t, "the port answers", func() bool {
			conn, err := b.Dial(t.Context(), 8123)
			if err != nil {
				return false
			}
			defer conn.Close()
			_, err = io.WriteString(conn, "GET /f HTTP/1.0\r\n\r\n")
			answer, _ := io.ReadAll(conn)
			return err == nil && strings.HasSuffix(string(answer), "text")
		})
		if err := b.Signal(t.Context(), lasting.Selector{Tag: "server"}, syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		eventually(t, "nothing runs", func() bool { list, err := b.Commands(t.Context()); return err == nil && len(list) == 0 })
		if m, err := b.Metrics(t.Context()); err != nil || m.Memory <= 0 || m.MemoryLimit != 512<<20 || m.CPUPercent <= 0 {
			t.Errorf("%+v, %v", m, err)
		}
		// Two who follow, input by pieces, and a tag.
		first := follow(t, b, "read a; echo $a; cat; echo over", func(c *lasting.Command) { c.Stdin, c.Tag = true, "tagged" })
		second, err := b.Follow(t.Context(), lasting.Selector{Tag: "tagged"})
		if err != nil {
			t.Fatal(err)
		}
		list, err := b.Commands(t.Context())
		if err != nil || len(list) != 1 || list[0].PID != first.PID() || list[0].Argv[0] != "/bin/bash" || list[0].Cwd != "/home/user" || list[0].Tag != "tagged" {
			t.Errorf("%+v, %v", list, err)
		}
		which := lasting.Selector{PID: first.PID()}
		for _, text := range []string{"one\n", "two ", "three\n"} {
			if err := b.Input(t.Context(), which, []byte(text)); err != nil {
				t.Error(err)
			}
		}
		if err := b.CloseInput(t.Context(), which); err != nil {
			t.Error(err)
		}
		for _, r := range []*lasting.Reader{first, second} {
			if got := until(t, r, ""); got != "one\ntwo three\nover\n[0 0 false]" {
				t.Errorf("%q", got)
			}
		}
		terminal := follow(t, b, "stty size; tty; read x; stty size", func(c *lasting.Command) { c.Terminal = &specs.Box{Height: 20, Width: 70} })
		until(t, terminal, "/dev/pts")
		which = lasting.Selector{PID: terminal.PID()}
		if err := b.Resize(t.Context(), which, specs.Box{Height: 30, Width: 90}); err != nil {
			t.Error(err)
		}
		if err := b.Input(t.Context(), which, []byte("\n")); err != nil {
			t.Error(err)
		}
		if got := until(t, terminal, ""); !strings.Contains(got, "30 90") {
			t.Errorf("%q", got)
		}
		// A command's time is that of all below it.
		timed := follow(t, b, "sleep 7931 & sleep 7932", func(c *lasting.Command) { c.Timeout = 500 * time.Millisecond })
		if got := until(t, timed, ""); got != "[0 9 true]" {
			t.Errorf("%q", got)
		}
		eventually(t, "nothing is left of what has timed out", func() bool { return runIn(t, b, "pgrep -fc 'sleep 793[12]'") == "0\n[1 0 false]" })
		for _, c := range []lasting.Command{{Argv: []string{"no-such-program"}}, {Argv: []string{"true"}, Cwd: "/nowhere"}, {Argv: []string{"true"}, User: "else"}, {}} {
			if _, err := b.Start(t.Context(), c); !cerrdefs.IsInvalidArgument(err) {
				t.Errorf("%+v: %v", c, err)
			}
		}
	})
}

func TestLastingOverARestart(t *testing.T) {
	eachKeeper(t, func(t *testing.T, k *keeper, again func() *keeper) {
		b := k.make(t)
		counter := follow(t, b, "i=0; while :; do echo $((i++)); sleep 0.05; done", func(c *lasting.Command) { c.Tag = "counter" })
		until(t, counter, "\n3\n")
		ended := follow(t, b, "sleep 1; echo late; exit 5", func(c *lasting.Command) { c.Tag = "late" })
		if got := runIn(t, b, "nohup bash -c 'sleep 1; echo kept > kept; exec sleep 7933' > /dev/null 2>&1 & echo left"); got != "left\n[0 0 false]" {
			t.Errorf("%q", got)
		}
		pid := counter.PID()
		k.end()
		if _, err := ended.Next(t.Context()); !cerrdefs.IsUnavailable(err) {
			t.Errorf("%v", err)
		}
		k = again()
		b, err := k.Find(quota.Token{Name: "owner"}, b.ID())
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "what was left behind goes on", func() bool {
			return runIn(t, b, "cat kept 2>/dev/null; pgrep -fc 'sleep 7933'") == "kept\n1\n[0 0 false]"
		})
		r, err := b.Follow(t.Context(), lasting.Selector{Tag: "late"})
		if err != nil {
			t.Fatal(err)
		}
		if got := until(t, r, ""); got != "late\n[5 0 false]" {
			t.Errorf("%q", got)
		}
		r, err = b.Follow(t.Context(), lasting.Selector{PID: pid})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		got := until(t, r, "0\n")
		lines := strings.Fields(got)
		var from, to int
		_, _ = fmt.Sscan(lines[0], &from)
		_, _ = fmt.Sscan(lines[len(lines)-1], &to)
		if len(lines) != to-from+1 || to-from < 10 {
			t.Errorf("%d lines from %d to %d", len(lines), from, to)
		}
		// Paused, it stands still, also over a restart.
		if err := b.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := b.Pause(t.Context()); !cerrdefs.IsConflict(err) {
			t.Errorf("%v", err)
		}
		k.end()
		k = again()
		if b, err = k.Find(quota.Token{Name: "owner"}, b.ID()); err != nil || b.Info().State != lasting.StatePaused {
			t.Fatalf("%+v, %v", b.Info(), err)
		}
		if _, err := b.Commands(t.Context()); !cerrdefs.IsFailedPrecondition(err) {
			t.Errorf("%v", err)
		}
		if err := b.Connect(t.Context(), time.Now().Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
		if list, err := b.Commands(t.Context()); err != nil || len(list) != 1 || list[0].PID != pid {
			t.Errorf("%+v, %v", list, err)
		}
		if err := b.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"users/" + b.ID(), "data/lasting/" + b.ID() + ".json", "data/sandboxes/" + b.ID() + ".json"} {
			if _, err := os.Lstat(filepath.Join(k.dir, name)); !os.IsNotExist(err) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func TestLastingDeadlines(t *testing.T) {
	eachKeeper(t, func(t *testing.T, k *keeper, again func() *keeper) {
		soon := func(c *lasting.Create) { c.Deadline = time.Now().Add(8 * time.Second) }
		killed := k.make(t, soon)
		paused := k.make(t, soon, func(c *lasting.Create) { c.OnDeadline, c.AutoResume = lasting.Pause, true })
		k.end()
		k = again()
		eventually(t, "the one is gone", func() bool { _, err := k.Any(killed.ID()); return cerrdefs.IsNotFound(err) })
		b, err := k.Any(paused.ID())
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "the other one is paused", func() bool { return b.Info().State == lasting.StatePaused })
		if got := runIn(t, b, "echo on"); got != "on\n[0 0 false]" {
			t.Errorf("%q", got)
		}
		// One that is lost has ended.
		found, err := k.executor.Lasting(t.Context())
		if err != nil || len(found) != 1 {
			t.Fatalf("%+v, %v", found, err)
		}
		if err := k.docker.ContainerKill(t.Context(), found[0].ID, "KILL"); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it has ended", func() bool { return b.Info().State == lasting.StateEnded })
		if _, err := b.Commands(t.Context()); !cerrdefs.IsUnavailable(err) {
			t.Errorf("%v", err)
		}
	})
}
