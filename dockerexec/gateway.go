package dockerexec

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	cerrdefs "github.com/containerd/errdefs"
	containertypes "github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"

	"github.com/daycare-run/sandbox/internal/dockerd"
)

// A network of ours has a gateway: a container in whose network namespace the interfaces of filtered containers end.
// It runs the service's own program, and stays when the service ends. What it does is up to Networks.

// Gateway says what a network's gateway is made with.
type Gateway struct {
	// Program is the program's file, which is copied, and Arguments are its arguments.
	Program   string
	Arguments []string
	// Dir is a folder that it shares with the service, mounted at Target. It is recreated with the gateway.
	Dir, Target string
	// Sysctls are those of its network namespace.
	Sysctls map[string]string
}

const (
	gatewaySuffix = "-gateway"
	gatewayPrefix = "gateway-"
	// gatewayPath is where a gateway finds its program.
	gatewayPath = "/.daycare/gateway"
	// gatewayRuntime is Docker's own: the namespace has to be the kernel's.
	gatewayRuntime = "runc"
	gatewayMemory  = 256 << 20
	gatewayPids    = 64
)

// likeness identifies what a gateway was made with: a gateway with another likeness is recreated.
func (g Gateway) likeness() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q", g.Arguments, g.Sysctls))
	return hex.EncodeToString(sum[:8])
}

// gateway finds or makes the gateway of a network, and returns the network with it. networking is held. The containers
// whose gateway is gone are given up.
func (e *Executor) gateway(ctx context.Context, n Network) (Network, error) {
	g, wanted, err := e.cfg.Networks.Gateway(n)
	if err != nil || !wanted {
		return n, err
	}
	n.GatewayDir = g.Dir
	name := n.Name + gatewaySuffix
	found, err := e.docker.ContainerInspect(ctx, name)
	if err != nil && !cerrdefs.IsNotFound(err) {
		return n, fmt.Errorf("cannot inspect the gateway %s: %w", name, dockerd.Explain(e.docker, err))
	}
	missing := err != nil
	if !missing && found.Config.Labels[labelInstance] != e.cfg.Instance {
		return n, fmt.Errorf("the name %s is taken by a container that is not this service's: set egress.name to another name, or remove the container: %w", name, cerrdefs.ErrConflict)
	}
	if !missing && found.State.Running && found.Config.Labels[labelGateway] == g.likeness() {
		n.GatewayID = found.ID
	} else {
		if cut := e.filteredAlone(n.Profile); cut > 0 {
			e.logOf(ctx).Warn().Str("network", n.Name).Int("containers", cut).
				Msg("the network's gateway has ended, or was made for other settings: filtered processes and sandboxes that ran on it are ended")
		}
		if !missing {
			if err := e.removeContainer(found.ID); err != nil {
				return n, err
			}
		}
		if n.GatewayID, err = e.makeGateway(ctx, name, g); err != nil {
			return n, fmt.Errorf("cannot make the gateway %s: %w", name, dockerd.Explain(e.docker, err))
		}
		e.logOf(ctx).Info().Str("network", n.Name).Msg("gateway made")
	}
	if before := e.gateways[n.Profile]; before != "" && before != n.GatewayID {
		e.logOf(ctx).Warn().Str("network", n.Name).Msg("the network's gateway has gone: giving up the containers on it")
		if err := e.clearNetwork(ctx, n.Profile); err != nil {
			return n, err
		}
	}
	e.gateways[n.Profile] = n.GatewayID
	return n, nil
}

// filteredAlone returns how many filtered containers of processes, and lasting ones, are on a network.
func (e *Executor) filteredAlone(profile string) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.processes {
		if reach := c.effectiveSpec().Egress; reach.Profile == profile && !reach.IsOpen() {
			n++
		}
	}
	return n
}

// makeGateway makes and starts a gateway.
func (e *Executor) makeGateway(ctx context.Context, name string, g Gateway) (id string, err error) {
	platform, err := e.cfg.Platform(ctx)
	if err != nil {
		return "", err
	}
	program, err := install(g.Program, filepath.Dir(g.Dir), gatewayPrefix)
	if err != nil {
		return "", fmt.Errorf("cannot install its program: %w", err)
	}
	if err := errors.Join(os.RemoveAll(g.Dir), os.MkdirAll(g.Dir, 0o700)); err != nil {
		return "", fmt.Errorf("cannot make its folder: %w", err)
	}
	pids := int64(gatewayPids)
	labels := e.owner().labels()
	labels[labelGateway] = g.likeness()
	made, err := e.docker.ContainerCreate(ctx, &containertypes.Config{
		Image: platform.ImageID, Hostname: "gateway", User: "0:0", WorkingDir: "/",
		Entrypoint: append([]string{gatewayPath}, g.Arguments...), Cmd: []string{},
		Healthcheck: &containertypes.HealthConfig{Test: []string{"NONE"}},
		Labels:      labels,
	}, &containertypes.HostConfig{
		Runtime:        gatewayRuntime,
		NetworkMode:    "none",
		ReadonlyRootfs: true,
		CapDrop:        []string{"ALL"},
		CapAdd:         []string{"NET_ADMIN", "NET_BIND_SERVICE"}, // of its own namespace
		SecurityOpt:    []string{"no-new-privileges"},
		IpcMode:        containertypes.IPCModePrivate,
		LogConfig:      containertypes.LogConfig{Type: "none"},
		RestartPolicy:  containertypes.RestartPolicy{Name: containertypes.RestartPolicyDisabled},
		Sysctls:        g.Sysctls,
		Resources:      containertypes.Resources{Memory: gatewayMemory, MemorySwap: gatewayMemory, PidsLimit: &pids},
		Mounts: []mount.Mount{
			bind(Mount{Source: program, Target: gatewayPath, ReadOnly: true}),
			bind(Mount{Source: g.Dir, Target: g.Target}),
		},
	}, nil, nil, name)
	if err != nil {
		return "", err
	}
	if err := e.docker.ContainerStart(ctx, made.ID, containertypes.StartOptions{}); err != nil {
		return "", errors.Join(err, e.removeContainer(made.ID))
	}
	return made.ID, removeOthers(program)
}

// removeOthers removes the programs of earlier gateways. Running gateways keep theirs.
func removeOthers(program string) error {
	all, err := filepath.Glob(filepath.Join(filepath.Dir(program), gatewayPrefix+"*"))
	for _, file := range all {
		if file != program {
			err = errors.Join(err, os.Remove(file))
		}
	}
	return err
}

// considerGateway removes a gateway whose networks have another name now. The others are checked when they are used.
func (e *Executor) considerGateway(found containertypes.Summary, platform Platform) {
	for _, name := range found.Names {
		for profile := range bridgeSuffixes {
			if name == "/"+platform.Network+"-"+profile+gatewaySuffix {
				return
			}
		}
	}
	if err := e.removeContainer(found.ID); err != nil {
		e.cfg.Log.Warn().Err(err).Msg("cannot remove a gateway that no network has")
	}
}
