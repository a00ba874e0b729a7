package main

import (
	"context"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/config"
	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/images"
	"github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/files"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/internal/rootfs"
	"github.com/daycare-run/sandbox/internal/sandbox"
	"github.com/daycare-run/sandbox/internal/warm"
)

// rootfsSettings returns the settings for containers' filesystems.
func (d *daemon) rootfsSettings(cfg config.Config) rootfs.Config {
	settings := rootfs.Config{
		UsersDir: cfg.UsersDir, AllowedMountRoots: cfg.MountRoots(), EventsSocket: cfg.EventsSocket,
		OwnPlaces:  ownPlaces(cfg),
		HomeOwners: rootfs.Owners(cfg.HomeOwner),
	}
	if d.membership != nil {
		settings.ClaimOwner = func(id uint32, user string) (bool, error) {
			return d.membership.Cluster().Owner(context.Background(), id, user, d.executor.IsOfPool) // this host would have seen a home of its own pool
		}
	}
	return settings
}

// callSettings returns the settings for calls.
func (d *daemon) callSettings(cfg config.Config) sandbox.Config {
	return sandbox.Config{
		DefaultTimeout:     cfg.Exec.DefaultTimeout.Duration(),
		MaxTimeout:         cfg.Exec.MaxTimeout.Duration(),
		MaxAttachedTimeout: cfg.Exec.MaxAttachedTimeout.Duration(),
		KillGrace:          cfg.Exec.KillGrace.Duration(),
		MaxImage: files.ImageBounds{Bytes: int64(cfg.Read.MaxImage.Bytes),
			Pixels: int(cfg.Read.MaxImage.Pixels)},
		Decisions: d.decisions, Events: d.events, Hour: d.hour, Quotas: d.quotas,
	}
}

// planSettings returns the settings for what calls may reach.
func (d *daemon) planSettings(cfg config.Config, rules policy.EgressRules) plan.Config {
	return plan.Config{Egress: rules, MaxDomains: cfg.Egress.MaxDomains,
		LocalUsers: localUsers(cfg), CannotFilter: d.networks.Unfiltered(),
		Credentials: d.credentials, Authority: d.authority, Root: cfg.E2B.AllowRoot}
}

// poolSettings returns the settings for containers that are kept ready for new users.
func poolSettings(cfg config.Config) sandbox.PoolConfig {
	pool := sandbox.PoolConfig{
		Size: int(cfg.Pool.Size), Max: int(cfg.Pool.Max), AtOnce: spareTurns(cfg, runtime.NumCPU()),
		MinFreeMemory: int64(cfg.Pool.MinFreeMemory),
		Homes:         rootfs.Owners(cfg.HomeOwner),
		Persistent:    []plan.Persistent{{Root: cfg.E2B.AllowRoot}}, // one of the service's own image
	}
	for _, t := range cfg.E2B.Templates {
		pool.Persistent = append(pool.Persistent, plan.Persistent{Image: t.Image, CPUs: t.CPUs,
			Memory: int64(t.Memory), Root: cfg.E2B.AllowRoot})
	}
	return pool
}

// ownPlaces returns the paths that belong to the service and that nobody may mount.
func ownPlaces(cfg config.Config) []string {
	places := []string{cfg.DataDir, cfg.Listen, cfg.Docker.SocketPath, cfg.EventsSocket,
		cfg.TCP.TokensFile, cfg.TCP.KeyFile, cfg.Cluster.KeyFile, cfg.Cluster.SealingKeyFile}
	return slices.DeleteFunc(places, func(place string) bool { return place == "" })
}

// platformConfig returns the settings for all containers.
func (d *daemon) platformConfig(cfg config.Config) (plan.PlatformConfig, error) {
	trusted, err := certificates(cfg.Egress.CAFile)
	if err != nil {
		return plan.PlatformConfig{}, err
	}
	finder := images.NewFinder(d.docker, cfg.Docker.Reference())
	return plan.PlatformConfig{
		Settings:             platformSettings(cfg, d.host),
		AcceptDefaultRuntime: cfg.Docker.EnableWeakerNestedSandbox,
		Find:                 finder.Find,
		Forget:               finder.Forget,
		FindOther: func(ctx context.Context, reference string) (images.Image, error) {
			image, err := images.NewFinder(d.docker, reference).Find(ctx)
			if cerrdefs.IsFailedPrecondition(err) {
				err = fmt.Errorf(
					"the template's image %s is not here: the operator can get it with `sandbox template add NAME IMAGE`: %w",
					reference, cerrdefs.ErrFailedPrecondition)
			}
			return image, err
		},
		Overrides:    d.originals.Read,
		Certificates: trusted,
		Inspect: func(ctx context.Context) (engine.Info, error) {
			return engine.NewDocker(d.docker).Info(ctx)
		},
		Log: d.log,
	}, nil
}

// platformSettings returns what the settings and the host decide for all containers.
func platformSettings(cfg config.Config, host hostFiles) dockerexec.Platform {
	return dockerexec.Platform{
		Instance: host.instance,
		DataDir:  cfg.DataDir,
		Agent:    host.agent,
		Runtime:  cfg.Docker.Runtime, EventsRuntime: cfg.Docker.EventsRuntime,
		MaskDir:        host.masks,
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
			// what is in it counts as memory: it is full before the container is out of that
			VarTmp: min(int64(cfg.Limits.VarTmp), int64(cfg.Limits.Memory)/2),
		},
	}
}

// idle returns the settings for containers in which nothing runs.
func idle(cfg config.Config) warm.Idle {
	return warm.Idle{
		FreezeAfter:   time.Duration(cfg.Idle.FreezeAfter),
		ReclaimAfter:  time.Duration(cfg.Idle.ReclaimAfter),
		RemoveAfter:   time.Duration(cfg.Idle.RemoveAfter),
		MaxContainers: int(cfg.Idle.MaxContainers), MinFreeMemory: int64(cfg.Idle.MinFreeMemory),
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

// agentBinary returns the path of the agent's program.
func agentBinary(cfg config.Config) (string, error) {
	if cfg.AgentPath != "" {
		return cfg.AgentPath, nil
	}
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("cannot find the agent: %w", err)
	}
	return filepath.Join(filepath.Dir(self), "sandbox-agent"), nil
}
