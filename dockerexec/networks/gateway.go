package networks

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/internal/durable"
	"github.com/daycare-run/sandbox/internal/engine"
)

// A gateway runs the service's own program, and stays when the service ends. What it does is up to
// the Filter.
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

// gateway finds or makes the gateway of a network, and returns the network with it. The containers
// whose gateway is gone are given up. making is held.
func (n *Networks) gateway(ctx context.Context, of Network) (Network, error) {
	g, wanted, err := n.cfg.Filter.Gateway(of)
	if err != nil || !wanted {
		return of, err
	}
	of.GatewayDir = g.Dir
	name := of.Name + gatewaySuffix
	found, err := n.cfg.Engine.Inspect(ctx, name)
	if err != nil && !cerrdefs.IsNotFound(err) {
		return of, fmt.Errorf("cannot inspect the gateway %s: %w", name, n.cfg.Engine.Explain(err))
	}
	missing := err != nil
	if !missing && found.Labels[n.cfg.Owner] != n.cfg.Labels[n.cfg.Owner] {
		return of, fmt.Errorf("the name %s is taken by a container that is not this service's: "+
			"set egress.name to another name, or remove the container: %w",
			name, cerrdefs.ErrConflict)
	}
	if !missing && found.Runs() && found.Labels[n.cfg.GatewayLabel] == g.likeness() {
		of.GatewayID = found.ID
	} else {
		if cut := n.cutOff(of.Profile); cut > 0 {
			n.log(ctx).Warn().Str("network", of.Name).Int("containers", cut).
				Msg("the network's gateway has ended, or was made for other settings: filtered " +
					"processes and sandboxes that ran on it are ended")
		}
		if !missing {
			if err := n.removeGateway(ctx, found.ID); err != nil {
				return of, err
			}
		}
		if of.GatewayID, err = n.makeGateway(ctx, name, g); err != nil {
			return of, fmt.Errorf("cannot make the gateway %s: %w", name, n.cfg.Engine.Explain(err))
		}
		n.log(ctx).Info().Str("network", of.Name).Msg("gateway made")
	}
	if before := n.gateways[of.Profile]; before != "" && before != of.GatewayID {
		n.log(ctx).Warn().Str("network", of.Name).
			Msg("the network's gateway has gone: giving up the containers on it")
		if err := n.clear(ctx, of.Profile); err != nil {
			return of, err
		}
	}
	n.gateways[of.Profile] = of.GatewayID
	return of, nil
}

// cutOff returns how many containers that go on without the service lose a network's gateway.
func (n *Networks) cutOff(profile string) (count int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for m := range n.members {
		if m.profile == profile && m.is.Detached && !m.is.Egress.IsOpen() {
			count++
		}
	}
	return count
}

// removeGateway removes a gateway, whether or not whoever wants that waits for it. making is held:
// the engine is asked for one removal at a time.
func (n *Networks) removeGateway(ctx context.Context, id string) error {
	return n.cfg.Engine.Remove(context.WithoutCancel(ctx), id)
}

// makeGateway makes and starts a gateway.
func (n *Networks) makeGateway(ctx context.Context, name string, g Gateway) (id string, err error) {
	image, err := n.cfg.Image(ctx)
	if err != nil {
		return "", err
	}
	program, err := durable.KeepProgram(g.Program, filepath.Dir(g.Dir), gatewayPrefix)
	if err != nil {
		return "", fmt.Errorf("cannot install its program: %w", err)
	}
	if err := errors.Join(os.RemoveAll(g.Dir), os.MkdirAll(g.Dir, 0o700)); err != nil {
		return "", fmt.Errorf("cannot make its folder: %w", err)
	}
	labels := maps.Clone(n.cfg.Labels)
	labels[n.cfg.GatewayLabel] = g.likeness()
	memory := int64(gatewayMemory)
	id, err = n.cfg.Engine.Create(ctx, engine.Spec{
		Name: name, Image: image, Runtime: gatewayRuntime, Hostname: "gateway", Labels: labels,
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
	if err := n.cfg.Engine.Start(ctx, id); err != nil {
		return "", errors.Join(err, n.removeGateway(ctx, id))
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

// Retire removes a gateway that was found, if no network has it whose name begins with base. The
// others are checked when they are used.
func (n *Networks) Retire(ctx context.Context, found engine.Container, base string) error {
	for profile := range bridgeSuffixes {
		if found.Name == nameOf(base, profile)+gatewaySuffix {
			return nil
		}
	}
	n.making.Lock()
	defer n.making.Unlock()
	return n.removeGateway(ctx, found.ID)
}
