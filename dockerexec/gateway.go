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
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/internal/engine"
)

// A network of ours has a gateway: a container in whose network namespace the interfaces of
// filtered containers end. It runs the service's own program, and stays when the service ends. What
// it does is up to Networks.

// Gateway says what a network's gateway is made with.
type Gateway struct {
	// Program is the program's file, which is copied, and Arguments are its arguments.
	Program   string
	Arguments []string
	// Dir is a folder that it shares with the service, mounted at Target. It is recreated with the
	// gateway.
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

// gateway finds or makes the gateway of a network, and returns the network with it. networking is
// held. The containers whose gateway is gone are given up.
func (h *host) gateway(ctx context.Context, n Network) (Network, error) {
	g, wanted, err := h.cfg.Networks.Gateway(n)
	if err != nil || !wanted {
		return n, err
	}
	n.GatewayDir = g.Dir
	name := n.Name + gatewaySuffix
	found, err := h.engine.Inspect(ctx, name)
	if err != nil && !cerrdefs.IsNotFound(err) {
		return n, fmt.Errorf("cannot inspect the gateway %s: %w", name, h.engine.Explain(err))
	}
	missing := err != nil
	if !missing && found.Labels[labelInstance] != h.cfg.Instance {
		return n, fmt.Errorf(
			"the name %s is taken by a container that is not this service's: set egress.name to another name, or remove the container: %w",
			name, cerrdefs.ErrConflict)
	}
	if !missing && found.Runs() && found.Labels[labelGateway] == g.likeness() {
		n.GatewayID = found.ID
	} else {
		if cut := h.filteredAlone(n.Profile); cut > 0 {
			h.logOf(ctx).Warn().Str("network", n.Name).Int("containers", cut).
				Msg("the network's gateway has ended, or was made for other settings: filtered processes and sandboxes that ran on it are ended")
		}
		if !missing {
			if err := h.removeContainer(found.ID); err != nil {
				return n, err
			}
		}
		if n.GatewayID, err = h.makeGateway(ctx, name, g); err != nil {
			return n, fmt.Errorf("cannot make the gateway %s: %w", name, h.engine.Explain(err))
		}
		h.logOf(ctx).Info().Str("network", n.Name).Msg("gateway made")
	}
	if before := h.gateways[n.Profile]; before != "" && before != n.GatewayID {
		h.logOf(ctx).Warn().Str("network", n.Name).
			Msg("the network's gateway has gone: giving up the containers on it")
		if err := h.clearNetwork(ctx, n.Profile); err != nil {
			return n, err
		}
	}
	h.gateways[n.Profile] = n.GatewayID
	return n, nil
}

// filteredAlone returns how many filtered containers of processes, and persistent ones, are on a
// network.
func (h *host) filteredAlone(profile string) (n int) {
	for _, c := range h.inState(life.Ready, life.Frozen) {
		if reach := c.effectiveSpec().Egress; c.spec.isDetached() && reach.Profile == profile &&
			!reach.IsOpen() {
			n++
		}
	}
	return n
}

// makeGateway makes and starts a gateway.
func (h *host) makeGateway(ctx context.Context, name string, g Gateway) (id string, err error) {
	platform, err := h.cfg.Platforms.Current(ctx)
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
	labels := h.owner().labels()
	labels[labelGateway] = g.likeness()
	memory := int64(gatewayMemory)
	id, err = h.engine.Create(ctx, engine.Spec{
		Name: name, Image: platform.ImageID, Runtime: gatewayRuntime, Hostname: "gateway",
		Labels: labels,
		Process: specs.Process{
			Args: append([]string{gatewayPath}, g.Arguments...), Cwd: "/", NoNewPrivileges: true,
		},
		// They are of its own namespace.
		Capabilities: engine.Capabilities{
			Drop: []string{"ALL"}, Add: []string{"NET_ADMIN", "NET_BIND_SERVICE"},
		},
		Resources: specs.LinuxResources{
			Memory: &specs.LinuxMemory{Limit: &memory, Swap: &memory},
			Pids:   &specs.LinuxPids{Limit: gatewayPids},
		},
		ReadonlyRoot: true,
		Mounts: []specs.Mount{
			engine.BindMount(program, gatewayPath, true),
			engine.BindMount(g.Dir, g.Target, false),
		},
		Sysctl: g.Sysctls,
	})
	if err != nil {
		return "", err
	}
	if err := h.engine.Start(ctx, id); err != nil {
		return "", errors.Join(err, h.removeContainer(id))
	}
	return id, removeOthers(program)
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

// considerGateway removes a gateway whose networks have another name now. The others are checked
// when they are used.
func (h *host) considerGateway(found engine.Container, platform Platform) {
	for profile := range bridgeSuffixes {
		if found.Name == platform.Network+"-"+profile+gatewaySuffix {
			return
		}
	}
	if err := h.removeContainer(found.ID); err != nil {
		h.cfg.Log.Warn().Err(err).Msg("cannot remove a gateway that no network has")
	}
}
