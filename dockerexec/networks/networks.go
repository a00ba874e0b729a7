package networks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	cerrdefs "github.com/containerd/errdefs"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/engine"
)

// Config is what Networks need. All fields must be set.
type Config struct {
	Engine     engine.Engine
	Filter     Filter
	Containers Containers
	// Labels are those of what is made. What has another value of the label Owner than Labels have,
	// or lacks it, is not this service's.
	Labels map[string]string
	Owner  string
	// GatewayLabel is the label that only gateways have: what they were made with.
	GatewayLabel string
	// Image returns the id of the image that gateways are made of.
	Image func(context.Context) (string, error)
	Log   zerolog.Logger
}

// Networks are those of one service. It is safe for concurrent use.
type Networks struct {
	cfg Config

	making sync.Mutex // see the package
	// Under making, by profile: the beginning of the network's name, and the container that is its
	// gateway.
	bases, gateways map[string]string

	mu      sync.Mutex
	members map[*Member]bool
	holders uint64 // that were given out
}

// New returns the Networks of a service. It asks nobody.
func New(cfg Config) *Networks {
	return &Networks{cfg: cfg, bases: map[string]string{}, gateways: map[string]string{},
		members: map[*Member]bool{}}
}

// bridgeSuffixes tell the profiles' interfaces apart; an interface's name has at most 15 bytes.
var bridgeSuffixes = map[string]string{"isolated": "-iso", "local": "-loc"}

func nameOf(base, profile string) string { return base + "-" + profile }

// Ready finds or makes the network of a profile, and recreates one that was changed. base is the
// beginning of its name. All containers of earlier services must have been Found before.
func (n *Networks) Ready(ctx context.Context, base, profile string) (Network, error) {
	n.making.Lock()
	defer n.making.Unlock()
	return n.ready(ctx, base, profile)
}

// ready is Ready; making is held.
func (n *Networks) ready(ctx context.Context, base, profile string) (Network, error) {
	n.bases[profile] = base
	wanted := Network{
		Profile: profile, Name: nameOf(base, profile), Bridge: base + bridgeSuffixes[profile],
	}
	found, err := n.find(ctx, wanted)
	if err == nil {
		if found, err = n.open(ctx, found); err == nil {
			return found, nil
		}
	}
	if !cerrdefs.IsNotFound(err) && !cerrdefs.IsFailedPrecondition(err) {
		return Network{}, err
	}
	if cerrdefs.IsFailedPrecondition(err) {
		n.log(ctx).Warn().Err(err).Str("network", wanted.Name).
			Msg("recreating the network: it was changed")
		if err := n.remove(ctx, wanted); err != nil {
			return Network{}, err
		}
	}
	made, err := n.make(ctx, wanted)
	if err != nil {
		return Network{}, err
	}
	if made, err = n.open(ctx, made); cerrdefs.IsFailedPrecondition(err) {
		return Network{}, fmt.Errorf("cannot use the network that Docker has just made; "+
			"the service has to run in Docker's network namespace: %v", err)
	} else if err != nil {
		return Network{}, err
	}
	return made, nil
}

// Check looks at the networks in use, with their gateways, and recreates what is gone or was
// changed. It returns what has become of each, by its profile.
func (n *Networks) Check(ctx context.Context) map[string]error {
	used := map[string]string{} // the beginnings of the networks' names
	n.mu.Lock()
	for m := range n.members {
		used[m.profile] = m.base
	}
	n.mu.Unlock()
	checked := map[string]error{}
	for profile, base := range used {
		n.making.Lock()
		_, checked[profile] = n.ready(ctx, cmp.Or(n.bases[profile], base), profile)
		n.making.Unlock()
	}
	return checked
}

// open makes sure that a network's gateway is there, and that the network is ready. It names the
// found containers that the Filter does not know yet. making is held.
func (n *Networks) open(ctx context.Context, to Network) (Network, error) {
	to, err := n.gateway(ctx, to)
	if err != nil {
		return to, err
	}
	found, at := n.unnamed(ctx, to)
	if err := n.cfg.Filter.Open(ctx, to, at); err != nil {
		return to, err
	}
	n.named(found, at)
	return to, nil
}

// find returns errdefs.ErrNotFound if there is no such network, and errdefs.ErrFailedPrecondition
// if there is one that is ours to replace.
func (n *Networks) find(ctx context.Context, wanted Network) (Network, error) {
	found, err := n.cfg.Engine.FindNetwork(ctx, wanted.Name, wanted.Bridge)
	if cerrdefs.IsNotFound(err) {
		return Network{}, err
	}
	if err != nil {
		return Network{}, fmt.Errorf("cannot inspect network %s: %w", wanted.Name,
			n.cfg.Engine.Explain(err))
	}
	owner, marked := found.Labels[n.cfg.Owner]
	if owner != n.cfg.Labels[n.cfg.Owner] && (marked || found.InUse) {
		return Network{}, fmt.Errorf("network %s is not this service's: set egress.name to "+
			"another name, or remove the network (docker network rm %s): %w",
			wanted.Name, wanted.Name, cerrdefs.ErrConflict)
	}
	changed := func(what string) (Network, error) {
		return Network{}, fmt.Errorf("network %s %s: %w", wanted.Name, what,
			cerrdefs.ErrFailedPrecondition)
	}
	if !marked {
		return changed("is of another kind")
	}
	if found.Fault != "" {
		return changed(found.Fault)
	}
	wanted.Subnet, wanted.Gateway = found.Subnet, found.Gateway
	return wanted, nil
}

// make uses the first subnet that the engine accepts, too: it knows the subnets of its other
// networks.
func (n *Networks) make(ctx context.Context, wanted Network) (Network, error) {
	subnets, err := n.cfg.Filter.Subnets()
	if err != nil {
		return Network{}, err
	}
	var refusals []error
	for _, subnet := range subnets {
		wanted.Subnet, wanted.Gateway = subnet, subnet.Addr().Next()
		err := n.cfg.Engine.MakeNetwork(ctx, engine.Network{
			Name: wanted.Name, Labels: maps.Clone(n.cfg.Labels), Bridge: wanted.Bridge,
			Subnet: wanted.Subnet, Gateway: wanted.Gateway,
		})
		if err == nil {
			n.log(ctx).Info().Str("network", wanted.Name).Stringer("subnet", subnet).
				Msg("network made")
			return wanted, nil
		}
		refusals = append(refusals, err)
		if !errors.Is(err, engine.ErrSubnetTaken) {
			break
		}
	}
	return Network{}, fmt.Errorf("cannot make network %s: %w", wanted.Name,
		n.cfg.Engine.Explain(errors.Join(refusals...)))
}

// removalLimit gives containers that are being made on the network the time to get ready and be
// removed with it.
const removalLimit = 15 * time.Second

// remove removes a network with the containers on it, which are of no use without it.
func (n *Networks) remove(ctx context.Context, changed Network) error {
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		if err := n.clear(ctx, changed.Profile); err != nil {
			return struct{}{}, backoff.Permanent(err)
		}
		err := n.cfg.Engine.RemoveNetwork(ctx, changed.Name)
		switch {
		case err == nil || cerrdefs.IsNotFound(err):
			return struct{}{}, nil
		case !cerrdefs.IsPermissionDenied(err): // that is how it says that something is on it
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithMaxElapsedTime(removalLimit))
	if err != nil {
		return fmt.Errorf("cannot remove network %s, which was changed: %w", changed.Name,
			n.cfg.Engine.Explain(err))
	}
	return nil
}

// ErrRecreated says that a container's network, or its gateway, was recreated before the container
// was bound: another container will do.
var ErrRecreated = fmt.Errorf("its network was recreated meanwhile: %w", cerrdefs.ErrNotFound)

// clear gives up the containers of a profile: none of them will be bound any more, and those that
// have been, or are just being bound, are ended. making is held, so none joins meanwhile.
func (n *Networks) clear(ctx context.Context, profile string) error {
	var bound []string
	n.mu.Lock()
	for m := range n.members {
		if m.profile != profile {
			continue
		}
		m.cleared = true
		if m.id != "" {
			bound = append(bound, m.id)
		}
	}
	n.mu.Unlock()
	return n.cfg.Containers.Clear(ctx, profile, bound)
}

// log returns the log of a call, which has the request's id, or the service's own.
func (n *Networks) log(ctx context.Context) *zerolog.Logger {
	if log := zerolog.Ctx(ctx); log.GetLevel() != zerolog.Disabled {
		return log
	}
	return &n.cfg.Log
}
