package engine

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/volume"
)

// optionsOf returns the options of a network with a bridge, for Docker.
func optionsOf(bridge string) map[string]string {
	return map[string]string{
		"com.docker.network.bridge.name":                 bridge,
		"com.docker.network.bridge.enable_icc":           "false",
		"com.docker.network.bridge.enable_ip_masquerade": "true",
		"com.docker.network.bridge.host_binding_ipv4":    "127.0.0.1",
	}
}

// FindNetwork implements Engine.
func (d Docker) FindNetwork(ctx context.Context, name, bridge string) (Network, error) {
	found, err := d.client.NetworkInspect(ctx, name, network.InspectOptions{})
	if err != nil {
		return Network{}, err
	}
	n := Network{
		ID: found.ID, Name: found.Name, Labels: found.Labels, Bridge: bridge,
		InUse: len(found.Containers) > 0,
	}
	n.Fault = n.compare(found)
	return n, nil
}

// compare sets a network's addresses, and returns its Fault.
func (n *Network) compare(found network.Inspect) string {
	if found.Driver != "bridge" || found.EnableIPv6 || found.Internal ||
		len(found.IPAM.Config) != 1 {
		return "is of another kind"
	}
	for option, want := range optionsOf(n.Bridge) {
		if got := found.Options[option]; got != want {
			return fmt.Sprintf("has %s=%q, not %q", option, got, want)
		}
	}
	ipam := found.IPAM.Config[0]
	var err error
	if n.Subnet, err = netip.ParsePrefix(ipam.Subnet); err != nil {
		return fmt.Sprintf("has the subnet %q", ipam.Subnet)
	}
	if n.Gateway, err = netip.ParseAddr(ipam.Gateway); err != nil {
		return fmt.Sprintf("has the gateway %q", ipam.Gateway)
	}
	return ""
}

// MakeNetwork implements Engine.
func (d Docker) MakeNetwork(ctx context.Context, n Network) error {
	no := false
	_, err := d.client.NetworkCreate(ctx, n.Name, network.CreateOptions{
		Driver: "bridge", EnableIPv6: &no, Options: optionsOf(n.Bridge), Labels: n.Labels,
		IPAM: &network.IPAM{Driver: "default", Config: []network.IPAMConfig{
			{Subnet: n.Subnet.String(), Gateway: n.Gateway.String()},
		}},
	})
	if err != nil && strings.Contains(err.Error(), "overlap") {
		return kind{err, ErrSubnetTaken}
	}
	return err
}

// RemoveNetwork implements Engine.
func (d Docker) RemoveNetwork(ctx context.Context, name string) error {
	return d.client.NetworkRemove(ctx, name)
}

// ListNetworks implements Engine.
func (d Docker) ListNetworks(ctx context.Context, label string) (all []Network, err error) {
	found, err := d.client.NetworkList(ctx, network.ListOptions{Filters: labelFilter(label)})
	for _, n := range found {
		all = append(all, Network{ID: n.ID, Name: n.Name, Labels: n.Labels})
	}
	return all, err
}

// FindVolume implements Engine.
func (d Docker) FindVolume(ctx context.Context, name string) (Volume, error) {
	found, err := d.client.VolumeInspect(ctx, name)
	return Volume{Name: found.Name, Labels: found.Labels, Dir: found.Mountpoint}, err
}

// RemoveVolume implements Engine.
func (d Docker) RemoveVolume(ctx context.Context, name string) error {
	return d.client.VolumeRemove(ctx, name, false)
}

// ListVolumes implements Engine.
func (d Docker) ListVolumes(
	ctx context.Context, label string, unused bool,
) (all []Volume, err error) {
	filter := labelFilter(label)
	if unused {
		filter.Add("dangling", "true")
	}
	found, err := d.client.VolumeList(ctx, volume.ListOptions{Filters: filter})
	for _, v := range found.Volumes {
		if v != nil {
			all = append(all, Volume{Name: v.Name, Labels: v.Labels})
		}
	}
	return all, err
}

func labelFilter(labels ...string) filters.Args {
	args := filters.NewArgs()
	for _, label := range labels {
		args.Add("label", label)
	}
	return args
}
