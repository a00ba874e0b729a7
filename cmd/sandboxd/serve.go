package main

import (
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/api"
	"github.com/daycare-run/sandbox/config"
	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/images"
	"github.com/daycare-run/sandbox/internal/dockerd"
	"github.com/daycare-run/sandbox/internal/egress"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/hostfs"
	"github.com/daycare-run/sandbox/internal/httplog"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/internal/process"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/sandbox"
	"github.com/daycare-run/sandbox/internal/version"
)

// serve wires the parts together and answers until ctx ends. read reads the settings anew.
func serve(ctx context.Context, cfg config.Config, read func() (config.Config, error), to io.Writer) error {
	hungUp, ignore := hangUps()
	defer ignore()
	logs, log := newLogs(cfg.Log, to)
	httplog.UseForStandard(log)
	data, err := openData(cfg.DataDir, log)
	if err != nil {
		return err
	}
	defer data.close()
	agent, err := installAgent(cfg)
	if err != nil {
		return err
	}
	masks, err := dockerexec.InstallMasks(cfg.DataDir)
	if err != nil {
		return err
	}
	docker, err := dockerd.Connect(cfg.Docker.SocketPath)
	if err != nil {
		return err
	}
	l := &daemon{read: read, logs: logs, metrics: newMetrics(), log: log, loaded: sandbox.Loaded{At: time.Now().UTC()}}
	l.cfg.Store(&cfg)
	if l.tokens, err = readTokens(cfg.TCP); err != nil {
		return err
	}
	originals := images.NewOriginals(docker, filepath.Join(cfg.DataDir, "image"), dockerexec.InstanceLabels(data.instance))
	l.platform = func(cfg config.Config) (sandbox.PlatformConfig, error) {
		trusted, err := certificates(cfg.Egress.CAFile)
		if err != nil {
			return sandbox.PlatformConfig{}, err
		}
		finder := images.NewFinder(docker, cfg.Docker.Reference())
		return sandbox.PlatformConfig{
			Settings:     platformSettings(cfg, data.instance, agent, masks),
			AcceptWeaker: cfg.Docker.EnableWeakerNestedSandbox,
			Find:         finder.Find,
			Forget:       finder.Forget,
			Outfit:       originals.Read,
			Certificates: trusted,
			Inspect:      func(ctx context.Context) (dockerd.Info, error) { return dockerd.Inspect(ctx, docker) },
			Log:          log,
		}, nil
	}
	platform, err := l.platform(cfg)
	if err != nil {
		return err
	}
	l.platforms = sandbox.NewPlatforms(platform)
	// A runtime that is not there will not come by itself; an engine or an image may.
	if _, err := l.platforms.Current(ctx); cerrdefs.IsNotImplemented(err) {
		return fmt.Errorf("cannot start: %w", err)
	} else if err != nil {
		log.Warn().Err(err).Msg("commands cannot run yet")
	}
	l.quotas = quota.New(quotas(cfg))
	registry, err := sandbox.OpenRegistry(filepath.Join(cfg.DataDir, "sandboxes"), l.quotas, log)
	if err != nil {
		return err
	}
	ground, err := openGround(cfg.UsersDir, log)
	if err != nil {
		return err
	}
	rules, err := egressRules(cfg)
	if err != nil {
		return err
	}
	verdicts := decisions.New(cfg.Egress.DecisionLog)
	if l.networks, err = egress.New(egressSettings(cfg, verdicts, log)); err != nil {
		return err
	}
	defer l.networks.Shutdown()
	l.executor = dockerexec.New(docker, dockerexec.Config{
		Instance:     data.instance,
		DataDir:      cfg.DataDir,
		IdleTimeout:  time.Duration(cfg.IdleTimeout),
		Platform:     l.platforms.Current,
		Grounds:      ground,
		Networks:     l.networks,
		Quotas:       l.quotas,
		ProcessEnded: func(id string) { l.processes.Ended(id) }, ProcessesUnseen: func() { l.processes.Lost() }, // not before Start
		ImagesChanged: l.platforms.Forget,
		Log:           log,
	})
	defer l.executor.Shutdown()
	l.facade = func(cfg config.Config, rules policy.EgressRules) sandbox.Config {
		s := facadeSettings(cfg)
		s.Egress, s.Decisions, s.CannotFilter, s.Observer, s.Quotas = rules, verdicts, l.networks.Weak(), l.metrics, l.quotas
		return s
	}
	l.service = sandbox.New(l.facade(cfg, rules), registry, l.platforms, l.executor, log)
	l.service.SetLoaded(l.loaded)
	trash, emptied, err := openTrash(ctx, cfg.UsersDir, log)
	if err != nil {
		return err
	}
	defer emptied()
	l.runner = sandbox.NewRunner(l.service, l.executor, trash, int64(cfg.Processes.MaxLog))
	if err := l.runner.DropLaunches(); err != nil {
		return err
	}
	l.ports = process.NewListeners(exposable(cfg), log)
	defer l.ports.Shutdown()
	if l.processes, err = openProcesses(cfg, l.quotas, l.runner, l.ports, log); err != nil {
		return err
	}
	defer endProcesses(l.processes, log)
	defer l.service.EndDetached()
	l.service.UseProcesses(l.processes)
	l.executor.Start(ctx)
	defer watchGround(ctx, ground, l.executor, log)()
	defer l.follow(ctx, hungUp)()
	counted := metricsHandler(l, verdicts)
	return answer(ctx, cfg, func(authenticate api.Authenticator, warnings []string) http.Handler {
		return api.New(l.service, api.Config{
			Authenticator: authenticate, Warnings: warnings,
			Among:   func(users sandbox.Users, token quota.Token) api.Service { return l.service.Among(users, token) },
			Version: version.String(), MaxRequest: cfg.Exec.MaxRequestBytes, MaxOutput: cfg.Exec.MaxOutputBytes,
			Stopping: ctx.Done(), Metrics: counted, Observed: l.metrics.called,
			Log: log, LogCalls: func() bool { return l.cfg.Load().Log.Access },
		})
	}, l, log)
}

// openGround makes usersDir, whose own path may lead over links.
func openGround(usersDir string, log zerolog.Logger) (*sandbox.Ground, error) {
	if err := os.MkdirAll(usersDir, 0o755); err != nil {
		return nil, fmt.Errorf("cannot make usersDir: %w", err)
	}
	dir, err := filepath.EvalSymlinks(usersDir)
	if err != nil {
		return nil, fmt.Errorf("cannot open usersDir: %w", err)
	}
	return sandbox.NewGround(dir, log), nil
}

// openTrash goes on with removing what an earlier service was removing, in the background, until stop is called.
func openTrash(ctx context.Context, usersDir string, log zerolog.Logger) (_ *hostfs.Trash, stop func(), _ error) {
	trash := hostfs.NewTrash(func(dir string, err error) {
		log.Error().Err(err).Str("dir", dir).Msg("cannot remove what a user has left; the next start tries again")
	})
	if err := trash.Resume(usersDir); err != nil {
		return nil, nil, fmt.Errorf("cannot look for what is still to be removed: %w", err)
	}
	working, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var work sync.WaitGroup
	work.Go(func() { trash.Work(working) })
	return trash, func() {
		cancel()
		work.Wait()
	}, nil
}

// watchGround expels containers in which something hidden would be seen, until stop is called: also while the
// service waits for commands to end.
func watchGround(ctx context.Context, ground *sandbox.Ground, executor *dockerexec.Executor, log zerolog.Logger) (stop func()) {
	watching, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var watch sync.WaitGroup
	watch.Go(func() {
		if err := ground.Watch(watching, executor.Expel); err != nil {
			log.Error().Err(err).Msg("what appears at hidden paths goes unseen by commands that are running")
		}
	})
	return func() {
		cancel()
		watch.Wait()
	}
}

// facadeSettings is the part of the facade that the settings decide.
func facadeSettings(cfg config.Config) sandbox.Config {
	return sandbox.Config{
		UsersDir: cfg.UsersDir, AllowedMountRoots: cfg.MountRoots(), EventsSocket: cfg.EventsSocket, OwnPlaces: ownPlaces(cfg),
		HomeOwners:     sandbox.Owners(cfg.HomeOwner),
		DefaultTimeout: cfg.Exec.DefaultTimeout.Duration(), MaxTimeout: cfg.Exec.MaxTimeout.Duration(),
		MaxAttachedTimeout: cfg.Exec.MaxAttachedTimeout.Duration(),
		KillGrace:          cfg.Exec.KillGrace.Duration(), MaxOutput: cfg.Exec.MaxOutputBytes,
		MaxDomains: cfg.Egress.MaxDomains, LocalUsers: localUsers(cfg),
	}
}

// ownPlaces are what is the service's, and nobody's to mount.
func ownPlaces(cfg config.Config) []string {
	places := []string{cfg.DataDir, cfg.Listen, cfg.Docker.SocketPath, cfg.EventsSocket, cfg.TCP.TokensFile, cfg.TCP.KeyFile}
	return slices.DeleteFunc(places, func(place string) bool { return place == "" })
}

// platformSettings is the part of a container that the settings decide.
func platformSettings(cfg config.Config, instance, agent, masks string) dockerexec.Platform {
	return dockerexec.Platform{
		Instance: instance,
		DataDir:  cfg.DataDir,
		Agent:    agent,
		Runtime:  cfg.Docker.Runtime, EventsRuntime: cfg.Docker.EventsRuntime,
		MaskDir:        masks,
		Network:        cfg.Egress.Name,
		ReadOnlyRoot:   cfg.Docker.ReadOnly,
		Unconfined:     cfg.Docker.UnconfinedSecurity,
		UserNamespaces: cfg.Docker.AllowUserNamespaces,
		CapDrop:        cfg.Docker.CapDrop,
		CapAdd:         cfg.Docker.CapAdd,
		Limits: dockerexec.Limits{
			NanoCPUs:  int64(cfg.Limits.CPUs * 1e9),
			Memory:    int64(cfg.Limits.Memory),
			Pids:      cfg.Limits.PIDs,
			OpenFiles: cfg.Limits.OpenFiles,
			Shm:       int64(cfg.Limits.Shm),
			Tmp:       int64(cfg.Limits.Tmp),
			Run:       int64(cfg.Limits.Run),
			VarTmp:    int64(cfg.Limits.VarTmp),
		},
	}
}

// certificates reads egress.caFile.
func certificates(name string) ([]*x509.Certificate, error) {
	if name == "" {
		return nil, nil
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("cannot use egress.caFile: %w", err)
	}
	list, err := images.ParseCertificates(text)
	if err != nil {
		return nil, fmt.Errorf("cannot use egress.caFile %s: %w", name, err)
	}
	return list, nil
}

func installAgent(cfg config.Config) (string, error) {
	binary := cfg.AgentPath
	if binary == "" {
		self, err := os.Executable()
		if err != nil {
			return "", fmt.Errorf("cannot find the agent: %w", err)
		}
		binary = filepath.Join(filepath.Dir(self), "sandbox-agent")
	}
	return dockerexec.InstallAgent(binary, cfg.DataDir)
}
