package main

import (
	"context"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/api"
	"github.com/daycare-run/sandbox/config"
	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/images"
	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/budget"
	"github.com/daycare-run/sandbox/internal/calls"
	"github.com/daycare-run/sandbox/internal/cluster/member"
	"github.com/daycare-run/sandbox/internal/credential"
	"github.com/daycare-run/sandbox/internal/datadir"
	"github.com/daycare-run/sandbox/internal/e2b"
	"github.com/daycare-run/sandbox/internal/egress"
	"github.com/daycare-run/sandbox/internal/egress/authority"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/events"
	"github.com/daycare-run/sandbox/internal/hostfs"
	"github.com/daycare-run/sandbox/internal/metrics"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/registry"
	"github.com/daycare-run/sandbox/internal/rootfs"
	"github.com/daycare-run/sandbox/internal/sandbox"
	"github.com/daycare-run/sandbox/internal/warm"
	"github.com/daycare-run/sandbox/internal/workload/persistent"
	"github.com/daycare-run/sandbox/internal/workload/process"
	"github.com/daycare-run/sandbox/internal/workload/runner"
)

// daemon holds the parts of the service. Each is made from those above it.
type daemon struct {
	// read reads the settings again. It is a function, because only the command line knows from
	// where.
	read    func() (config.Config, error)
	logs    *logs
	log     zerolog.Logger
	metrics *metrics.Metrics
	events  *events.Stream
	hour    *calls.Hour
	tokens  *access.Tokens // nil without TCP and E2B
	// connections are the API's connections.
	connections *api.Connections

	host        hostFiles
	docker      *engine.Client
	originals   *images.Originals
	platforms   *plan.Platforms
	quotas      *quota.Ledger
	decisions   *decisions.Log
	credentials *credential.Store
	authority   *authority.Authority
	origins     atomic.Pointer[x509.CertPool] // who has signed the certificates of origins
	networks    *egress.Egress
	rootfs      *rootfs.Planner
	mounts      *rootfs.Preparer
	executor    *dockerexec.Executor
	warm        *warm.Runner
	registry    *registry.Registry
	planner     *plan.Planner
	runner      *runner.Runner
	ports       *process.Listeners
	processes   *process.Manager
	pool        *sandbox.Pool
	service     *sandbox.Service
	persistent  *persistent.Sandboxes
	templates   *e2b.Templates
	trash       *hostfs.Trash

	// membership and member are this host in a cluster; nil on a single host.
	membership   *member.Membership
	member       *member.Member // from serve on
	cgroupParent string         // the parent control group of this host's containers in a cluster

	closers []func() // called by close in reverse order

	cfg     atomic.Pointer[config.Config] // in force
	loading sync.Mutex                    // guards loaded
	loaded  sandbox.Loaded
}

// hostFiles are what all containers get from dataDir, and the instance that owns them.
type hostFiles struct{ instance, agent, masks string }

// openDaemon makes the parts of the service. The caller closes the daemon.
func openDaemon(ctx context.Context, cfg config.Config, read func() (config.Config, error),
	logs *logs, log zerolog.Logger) (_ *daemon, err error) {
	d := &daemon{
		read: read, logs: logs, log: log, metrics: metrics.New(),
		loaded:    sandbox.Loaded{At: time.Now().UTC()},
		quotas:    quota.New(quotas(cfg, runtime.NumCPU())),
		templates: e2b.NewTemplates(templates(cfg.E2B)),
	}
	d.hour = calls.NewHour()
	d.events = events.New(d.metrics.Observe, d.hour.Observe, events.Log(log))
	d.decisions = decisions.New(cfg.Egress.DecisionLog, func(e decisions.Decision) {
		d.events.Publish(events.Decision, e.User, e)
	})
	d.cfg.Store(&cfg)
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	if err := d.openHost(cfg); err != nil {
		return nil, err
	}
	if err := d.openCluster(ctx, cfg); err != nil {
		return nil, err
	}
	if err := d.openPlatforms(ctx, cfg); err != nil {
		return nil, err
	}
	if err := d.openCredentials(cfg); err != nil {
		return nil, err
	}
	if err := d.openContainers(cfg); err != nil {
		return nil, err
	}
	return d, d.openService(ctx, cfg)
}

// close closes the parts of the service in reverse order.
func (d *daemon) close() {
	for _, end := range slices.Backward(d.closers) {
		end()
	}
}

func (d *daemon) onClose(end func()) { d.closers = append(d.closers, end) }

// openHost locks dataDir and connects to Docker.
func (d *daemon) openHost(cfg config.Config) error {
	data, err := datadir.Open(cfg.DataDir, d.log)
	if err != nil {
		return err
	}
	d.onClose(data.Close)
	d.host.instance = data.Instance
	agent, err := agentBinary(cfg)
	if err != nil {
		return err
	}
	if d.host.agent, d.host.masks, err = dockerexec.Install(agent, cfg.DataDir); err != nil {
		return err
	}
	if d.docker, err = engine.Connect(cfg.Docker.SocketPath); err != nil {
		return err
	}
	if d.connections, err = apiConnections(); err != nil {
		return err
	}
	d.tokens, err = readTokens(cfg)
	return err
}

// apiConnections shares out half of the descriptors that users' connections leave. Each connection
// also takes memory.
func apiConnections() (*api.Connections, error) {
	const limit = 4096
	descriptors, err := budget.Descriptors()
	if err != nil {
		return nil, err
	}
	return api.NewConnections(min(limit, (descriptors-budget.Spare(descriptors))/2)), nil
}

// openPlatforms finds out what containers are made of.
func (d *daemon) openPlatforms(ctx context.Context, cfg config.Config) error {
	d.originals = images.NewOriginals(d.docker, filepath.Join(cfg.DataDir, "image"),
		dockerexec.Owner{Instance: d.host.instance}.InstanceLabels())
	platform, err := d.platformConfig(cfg)
	if err != nil {
		return err
	}
	d.platforms = plan.NewPlatforms(platform)
	d.trustOrigins(platform.Certificates)
	// A missing runtime does not appear by itself; Docker or an image may.
	if _, err := d.platforms.Current(ctx); cerrdefs.IsNotImplemented(err) {
		return fmt.Errorf("cannot start: %w", err)
	} else if err != nil {
		d.log.Warn().Err(err).Msg("commands cannot run yet")
	}
	return nil
}

// openContainers makes what containers need on the host, and their executor.
func (d *daemon) openContainers(cfg config.Config) (err error) {
	if err := os.MkdirAll(cfg.UsersDir, 0o755); err != nil {
		return fmt.Errorf("cannot make usersDir: %w", err)
	}
	usersDir, err := filepath.EvalSymlinks(cfg.UsersDir)
	if err != nil {
		return fmt.Errorf("cannot open usersDir: %w", err)
	}
	d.rootfs = rootfs.NewPlanner(d.rootfsSettings(cfg), d.log)
	d.mounts = rootfs.NewPreparer(usersDir, d.log)
	networks := egressSettings(cfg, d.decisions, d.log)
	networks.Secrets = &egress.Secrets{Store: d.credentials, Authority: d.authority}
	networks.Roots = d.origins.Load
	if d.membership != nil {
		networks.MayPass = d.membership.MayRun
	}
	if d.networks, err = egress.New(networks); err != nil {
		return err
	}
	d.onClose(d.networks.Shutdown)
	d.executor = dockerexec.New(engine.NewDocker(d.docker), dockerexec.Config{
		Instance:     d.host.instance,
		Host:         cfg.Cluster.Name,
		DataDir:      cfg.DataDir,
		Ahead:        cfg.Exec.Ahead > 0,
		CgroupParent: d.cgroupParent,
		Platforms:    d.platforms,
		Mounts:       d.mounts,
		PoolDir:      rootfs.PoolDir(usersDir),
		GiveHome:     d.rootfs.GiveHome,
		Filter:       d.networks,
		Quotas:       d.quotas,
		Events:       d.events,
		Log:          d.log,
	})
	d.onClose(d.executor.Shutdown)
	d.warm = warm.New(d.executor, warm.Config{
		Idle: idle(cfg), Quotas: d.quotas, Events: d.events,
	})
	d.onClose(d.warm.EndCommands)
	return nil
}

// openService reads the registered sandboxes and the durable processes.
func (d *daemon) openService(ctx context.Context, cfg config.Config) error {
	rules, err := egressRules(cfg)
	if err != nil {
		return err
	}
	if d.membership != nil {
		d.registry = registry.OpenShared(d.membership.Sandboxes(), d.quotas)
	} else if d.registry, err = registry.Open(filepath.Join(cfg.DataDir, "sandboxes"), d.quotas,
		d.log); err != nil {
		return err
	}
	d.planner = plan.NewPlanner(d.registry, d.planSettings(cfg, rules), d.rootfs, d.platforms,
		d.log)
	d.trash = hostfs.NewTrash(func(dir string, err error) {
		d.log.Error().Err(err).Str("dir", dir).
			Msg("cannot remove what a user has left; the next start tries again")
	})
	if err := d.trash.Resume(cfg.UsersDir); err != nil {
		return fmt.Errorf("cannot look for folders that are still to be removed: %w", err)
	}
	d.onClose(inBackground(context.WithoutCancel(ctx), d.trash.Work))
	d.runner = runner.New(
		d.planner, d.executor, d.warm, d.trash, int64(cfg.Processes.MaxLog), d.log)
	d.ports = process.NewListeners(exposable(cfg), d.log)
	d.onClose(d.ports.Shutdown)
	if err := d.openProcesses(cfg); err != nil {
		return err
	}
	d.pool = sandbox.OpenPool(filepath.Join(cfg.DataDir, "pool", "classes.json"), poolSettings(cfg),
		d.planner, d.warm, d.quotas, d.events, d.log)
	if err := d.openPersistent(cfg); err != nil {
		return err
	}
	d.service = sandbox.New(d.callSettings(cfg), sandbox.Parts{
		Planner: d.planner, Runner: d.warm, Executor: d.executor, Processes: d.processes,
		Persistent: d.persistent, Pool: d.pool, Trash: d.trash,
	})
	d.onClose(d.service.EndDetached)
	d.service.SetLoaded(d.loaded)
	return nil
}

// openPersistent reads the records of persistent sandboxes.
func (d *daemon) openPersistent(cfg config.Config) (err error) {
	settings := persistent.Config{
		Dir: filepath.Join(cfg.DataDir, "lasting"), Planner: d.planner, Executor: d.executor,
		Places: d.warm, Pool: d.pool, Owners: d.tokens, Processes: d.processes,
		Quotas: d.quotas, Events: d.events, Trash: d.trash, Log: d.log,
	}
	if d.membership != nil {
		settings.Shared = d.membership.Persistent()
	}
	if d.persistent, err = persistent.Open(settings); err == nil {
		d.persistent.SetFreezeAfter(time.Duration(cfg.Idle.FreezeAfter))
		d.runner.SetSandboxes(d.persistent)
		d.onClose(d.persistent.Shutdown)
	}
	return err
}
