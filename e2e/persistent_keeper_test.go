package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/volume"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/images"
	"github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/files"
	"github.com/daycare-run/sandbox/internal/hostfs"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/registry"
	"github.com/daycare-run/sandbox/internal/rootfs"
	"github.com/daycare-run/sandbox/internal/warm"
	"github.com/daycare-run/sandbox/internal/workload/persistent"
	"github.com/daycare-run/sandbox/internal/workload/process"
	"github.com/daycare-run/sandbox/internal/workload/runner"
)

// keeper is what sandboxd has of sandboxes that last, in this process.
type keeper struct {
	t        *testing.T
	dir      string
	runtime  string
	docker   *engine.Client
	executor *dockerexec.Executor
	*persistent.Sandboxes
	files   *files.Files
	planner *plan.Planner
	end     func()
}

// openKeeper opens one on a folder, as a service does that starts there.
func openKeeper(t *testing.T, dir, runtime string) *keeper {
	t.Helper()
	k := &keeper{t: t, dir: dir, runtime: runtime}
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
	k.docker, err = engine.Connect(engineSocket)
	must(err)
	instance := keeperInstance(dir)
	agent, masks, err := dockerexec.Install(filepath.Join(binaries, "sandbox-agent"), data)
	must(err)
	log := zerolog.New(zerolog.NewTestWriter(t))
	finder := images.NewFinder(k.docker, sandboxImage)
	platforms := plan.NewPlatforms(plan.PlatformConfig{
		Settings: dockerexec.Platform{
			Instance: instance, DataDir: data, Agent: agent, Runtime: runtime, EventsRuntime: runtime, MaskDir: masks, Network: "none", ReadOnlyRoot: true,
			CapDrop: []string{"ALL"},
			Limits:  dockerexec.Limits{NanoCPUs: 1e9, Memory: 512 << 20, Pids: 512, OpenFiles: 1024, Shm: 64 << 20, Tmp: 64 << 20, Run: 16 << 20, VarTmp: 64 << 20},
		},
		Find: finder.Find, Forget: finder.Forget,
		Overrides: images.NewOriginals(k.docker, filepath.Join(data, "image"), dockerexec.Owner{Instance: instance}.InstanceLabels()).Read,
		Inspect:   func(ctx context.Context) (engine.Info, error) { return engine.NewDocker(k.docker).Info(ctx) }, Log: log,
	})
	homes := rootfs.NewPlanner(rootfs.Config{UsersDir: users, HomeOwners: rootfs.Owners{UID: ownerUID, GID: ownerUID}}, log)
	k.executor = dockerexec.New(engine.NewDocker(k.docker), dockerexec.Config{
		Instance: instance, DataDir: data, Platforms: platforms,
		Mounts: rootfs.NewPreparer(users, log), Log: log,
	})
	calls := warm.New(k.executor, warm.Config{Idle: warm.Idle{RemoveAfter: time.Hour}})
	sandboxes, err := registry.Open(filepath.Join(data, "sandboxes"), nil, log)
	must(err)
	k.planner = plan.NewPlanner(sandboxes, plan.Config{}, homes, platforms, log)
	k.allowRoot(false)
	k.files = files.New(k.planner, k.executor, calls)
	trash := hostfs.NewTrash(func(dir string, err error) { t.Errorf("%s: %v", dir, err) })
	must(trash.Resume(users))
	emptied, cancel := context.WithCancel(context.Background())
	working := make(chan struct{})
	go func() { defer close(working); trash.Work(emptied) }()
	runner := runner.New(k.planner, k.executor, calls, trash, 1<<20, log)
	ports := process.NewListeners(process.PortRange{First: 20_000, Last: 20_001}, log)
	processes, err := process.Open(process.Config{
		Dir: filepath.Join(data, "processes"), Runner: runner, Clock: process.SystemClock{}, BootID: "b",
		Ports: ports, Log: log,
	})
	must(err)
	k.Sandboxes, err = persistent.Open(persistent.Config{
		Dir: filepath.Join(data, "lasting"), Planner: k.planner, Executor: k.executor, Places: calls, Owners: anyOwner{}, Processes: processes,
		Trash: trash, Log: log,
	})
	must(err)
	k.executor.Start(t.Context(), keeperGate{k})
	k.Start(t.Context())
	k.end = func() {
		k.Shutdown()
		_ = processes.Shutdown(context.Background())
		ports.Shutdown()
		calls.EndCommands()
		k.executor.Shutdown()
		cancel()
		<-working
	}
	return k
}

// keeperGate lets everything start. There are no durable processes.
type keeperGate struct{ *keeper }

func (keeperGate) May(string) error { return nil }

func (g keeperGate) Wanted(spec dockerexec.Spec) (w dockerexec.Wanted) {
	if reach, known := g.Egress(spec.Persistent); known {
		w.Reach = &reach
	}
	return w
}

// allowRoot sets whether commands may be root's.
func (k *keeper) allowRoot(is bool) {
	k.planner.Use(plan.Config{MaxDomains: 10, Egress: policy.EgressRules{AllowGlobalWildcard: true}, Root: is})
}

// anyOwner knows every token.
type anyOwner struct{}

func (anyOwner) Owner(name string) (quota.Token, bool) { return quota.Token{Name: name}, true }

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
func (k *keeper) make(t *testing.T, change ...func(*persistent.Create)) *persistent.Sandbox {
	t.Helper()
	c := persistent.Create{Network: persistent.Network{None: true}, Env: map[string]string{"GIVEN": "by create"}}
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
func follow(t *testing.T, b *persistent.Sandbox, text string, change ...func(*persistent.Command)) *persistent.Reader {
	t.Helper()
	c := persistent.Command{Argv: []string{"/bin/bash", "-c", text}}
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
func until(t *testing.T, r *persistent.Reader, text string) string {
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
func runIn(t *testing.T, b *persistent.Sandbox, text string) string {
	t.Helper()
	return until(t, follow(t, b, text), "")
}
