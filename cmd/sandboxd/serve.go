package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/api"
	"github.com/daycare-run/sandbox/config"
	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/egress"
	"github.com/daycare-run/sandbox/egress/decisions"
	"github.com/daycare-run/sandbox/engine"
	"github.com/daycare-run/sandbox/images"
	"github.com/daycare-run/sandbox/process"
	"github.com/daycare-run/sandbox/sandbox"
	"github.com/daycare-run/sandbox/version"
)

// shutdownLimit is how long calls that are being answered may take once the service has been told
// to stop.
const shutdownLimit = 5 * time.Second

// serve wires the parts together and answers until ctx ends.
func serve(ctx context.Context, cfg config.Config, logs io.Writer) error {
	log := newLog(cfg.Log, logs)
	data, err := openData(cfg.DataDir)
	if err != nil {
		return err
	}
	defer data.close()
	agent, err := installAgent(cfg)
	if err != nil {
		return err
	}
	docker, err := engine.Connect(cfg.Docker.SocketPath)
	if err != nil {
		return err
	}
	finder := images.NewFinder(docker, cfg.Docker.Reference())
	platforms := sandbox.NewPlatforms(sandbox.PlatformConfig{
		Settings:     platformSettings(cfg, data.instance, agent),
		AcceptWeaker: cfg.Docker.EnableWeakerNestedSandbox,
		Find:         finder.Find,
		Forget:       finder.Forget,
		Inspect:      func(ctx context.Context) (engine.Info, error) { return engine.Inspect(ctx, docker) },
		Log:          log,
	})
	// A runtime that is not there will not come by itself; an engine or an image may.
	if _, err := platforms.Current(ctx); cerrdefs.IsNotImplemented(err) {
		return fmt.Errorf("cannot start: %w", err)
	} else if err != nil {
		log.Warn().Err(err).Msg("commands cannot run yet")
	}
	registry, err := sandbox.OpenRegistry(filepath.Join(cfg.DataDir, "sandboxes"), log)
	if err != nil {
		return err
	}
	if err := makeMask(cfg.DataDir); err != nil {
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
	outside, err := egress.New(egressSettings(cfg, verdicts, log))
	if err != nil {
		return err
	}
	defer outside.Shutdown()
	var processes *process.Manager // comes after the executor, and before that sees anything
	executor := dockerexec.New(docker, dockerexec.Config{
		Instance:     data.instance,
		IdleTimeout:  time.Duration(cfg.IdleTimeout),
		Platform:     platforms.Current,
		Grounds:      ground,
		Networks:     sandbox.Outside{Egress: outside},
		ProcessEnded: func(id string) { processes.Ended(id) }, ProcessesUnseen: func() { processes.Lost() },
		ImagesChanged: platforms.Forget,
		Log:           log,
	})
	defer executor.Shutdown()
	service := sandbox.New(sandbox.Config{
		UsersDir: cfg.UsersDir, AllowedMountRoots: cfg.MountRoots(), EventsSocket: cfg.EventsSocket,
		HomeUID: cfg.HomeOwner.UID, HomeGID: cfg.HomeOwner.GID,
		DefaultTimeout: cfg.Exec.DefaultTimeout.Duration(), MaxTimeout: cfg.Exec.MaxTimeout.Duration(),
		KillGrace: cfg.Exec.KillGrace.Duration(), MaxOutput: cfg.Exec.MaxOutputBytes,
		Egress: rules, MaxDomains: cfg.Egress.MaxDomains, LocalUsers: localUsers(cfg), Decisions: verdicts, CannotFilter: outside.Weak(),
	}, registry, platforms, executor, log)
	if processes, err = openProcesses(cfg, service, executor, log); err != nil {
		return err
	}
	defer endProcesses(processes, log)
	service.UseProcesses(processes)
	executor.Start(ctx)
	defer watchGround(ctx, ground, executor, log)()
	return answer(ctx, cfg, api.New(service, api.Config{
		Version: version.String(), MaxRequest: cfg.Exec.MaxRequestBytes, MaxOutput: cfg.Exec.MaxOutputBytes, Log: log,
		Stopping: ctx.Done(), Metrics: metrics(verdicts, outside),
	}), log)
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

// watchGround expels containers in which something hidden would be seen, until stop is called.
func watchGround(ctx context.Context, ground *sandbox.Ground, executor *dockerexec.Executor, log zerolog.Logger) (stop func()) {
	watching, cancel := context.WithCancel(ctx)
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

// answer serves HTTP on the socket until ctx ends.
func answer(ctx context.Context, cfg config.Config, handler http.Handler, log zerolog.Logger) error {
	listener, err := listen(ctx, cfg.Listen)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          nil,
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(api.Listener(listener)) }()
	log.Info().Str("socket", cfg.Listen).Str("runtime", cfg.Docker.Runtime).Str("version", version.String()).Msg("listening")
	select {
	case err := <-failed:
		return fmt.Errorf("cannot go on listening: %w", err)
	case <-ctx.Done():
	}
	log.Info().Msg("stopping")
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownLimit)
	defer cancel()
	if err := server.Shutdown(bounded); errors.Is(err, context.DeadlineExceeded) {
		return server.Close()
	}
	return nil
}

// listen makes the socket, for its owner alone. One that nobody listens on is a leftover; one that
// answers is another service's.
func listen(ctx context.Context, socket string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		return nil, fmt.Errorf("cannot make the socket's folder: %w", err)
	}
	dialer := net.Dialer{Timeout: time.Second}
	if conn, err := dialer.DialContext(ctx, "unix", socket); err == nil {
		_ = conn.Close()
		return nil, fmt.Errorf("cannot listen on %s: another service answers there; stop it, or set listen to another path", socket)
	}
	if info, err := os.Lstat(socket); err == nil {
		if info.Mode().Type() != os.ModeSocket {
			return nil, fmt.Errorf("cannot listen on %s: there is something that is no socket", socket)
		}
		if err := os.Remove(socket); err != nil {
			return nil, fmt.Errorf("cannot replace the old socket: %w", err)
		}
	}
	// Bound under a name of its own, and renamed only when its mode is right: nobody can connect
	// in between.
	temporary := fmt.Sprintf("%s.%d", socket, os.Getpid())
	listener, err := net.Listen("unix", temporary)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", socket, err)
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(temporary, 0o600), os.Rename(temporary, socket)); err != nil {
		return nil, errors.Join(err, listener.Close(), os.Remove(temporary))
	}
	return listener, nil
}

// platformSettings is the part of a container that the settings decide.
func platformSettings(cfg config.Config, instance, agent string) dockerexec.Platform {
	return dockerexec.Platform{
		Instance: instance,
		Agent:    agent,
		Runtime:  cfg.Docker.Runtime, EventsRuntime: cfg.Docker.EventsRuntime,
		MaskFile:     maskFile(cfg.DataDir),
		Network:      cfg.Egress.Name,
		ReadOnlyRoot: cfg.Docker.ReadOnly,
		Unconfined:   cfg.Docker.UnconfinedSecurity,
		CapDrop:      cfg.Docker.CapDrop,
		CapAdd:       cfg.Docker.CapAdd,
		Limits: dockerexec.Limits{
			NanoCPUs: int64(cfg.Limits.CPUs * 1e9),
			Memory:   int64(cfg.Limits.Memory),
			Pids:     cfg.Limits.PIDs,
			Shm:      int64(cfg.Limits.Shm),
			Tmp:      int64(cfg.Limits.Tmp),
			Run:      int64(cfg.Limits.Run),
			VarTmp:   int64(cfg.Limits.VarTmp),
		},
	}
}

// maskFile is what hides files: an empty one that nobody may open.
func maskFile(dataDir string) string { return filepath.Join(dataDir, "mask") }

func makeMask(dataDir string) error {
	file, err := os.OpenFile(maskFile(dataDir), os.O_RDONLY|os.O_CREATE, 0)
	if err != nil {
		return fmt.Errorf("cannot make the file that hides others: %w", err)
	}
	return errors.Join(file.Chmod(0), file.Close())
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

func newLog(cfg config.Log, out io.Writer) zerolog.Logger {
	if cfg.Format == "text" {
		out = zerolog.ConsoleWriter{Out: out, TimeFormat: time.TimeOnly}
	}
	level, err := zerolog.ParseLevel(cfg.Level)
	if err != nil {
		level = zerolog.InfoLevel
	}
	return zerolog.New(out).Level(level).With().Timestamp().Logger()
}
