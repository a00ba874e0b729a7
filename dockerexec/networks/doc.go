// Package networks puts containers on the bridge networks of one service, and keeps these networks
// as they must be.
//
// # What a network is
//
// A network is a bridge that the engine makes, one for each profile of egress. It has a gateway if
// the [Filter] wants one: a container of ours, in whose network namespace the interfaces of
// filtered containers end. The engine moves packets; what may pass is decided by the Filter alone,
// which has the rules, the names and the addresses. Where a container's runtime can connect it to the
// gateway by itself (Wiring.Link), the engine has no part in that.
//
// # Who makes it, and when it goes
//
// [Networks.Ready] makes a network with its gateway before the first container is put there, and
// looks at it before each further one. [Networks.Check] looks at all networks in use. A network
// that somebody has changed, and a gateway that has ended or was made for other settings, is
// recreated. The containers on it are ended first: without it they reach nothing, and would never
// reach anything again. A profile has one network: when it is to have another name, the containers
// on the one before are ended when the first one joins the new one. Networks and gateways stay when
// their last container goes, and when the service ends, because a service that starts must find its
// containers on them. [Networks.Retire] removes a gateway whose network has another name now.
//
// # A container's place
//
// A [Member] is a container's place on a network. It is made before the container (Join), or for
// one that an earlier service left there (Found). Nothing passes before Bind, which comes when the
// container runs and before anything of its tenant does. One that waits in the pool may get its
// network only when it has a user (Assign). Leave ends the place, once, whatever has failed before.
//
// A Filter cuts off for good what is on a network that it opens and that it is not told of. So all
// that was found is named to it by whoever opens the network first, and the caller has compared
// with the engine before that.
//
// # The order of locks
//
//  1. Networks.making is held while a network is looked at, made or removed. [Containers.Clear] is
//     called under it, and may call Leave of any Member, and nothing else here.
//  2. The caller's own locks. It may hold them in Found, Leave and whatever else does not ask the
//     engine.
//  3. Networks.mu, for the members. Nobody is asked or called while it is held.
package networks

import (
	"context"
	"net"
	"net/netip"
)

// HostName is what every container calls itself. Its own address is the loopback, which all of them
// have.
const HostName = "sandbox"

// Egress is what a container may reach. Without a Profile it has no interface at all.
type Egress struct {
	// Profile names the network.
	Profile string `json:"profile"`
	// Domains are patterns of names, in canonical form, and Denied patterns of names that Domains
	// allows but that may not be reached all the same.
	Domains []string `json:"domains"`
	Denied  []string `json:"denied"`
	// Addresses are addresses and ranges that may be reached whatever the name, except those in
	// DeniedAddresses.
	Addresses       []string `json:"addresses,omitempty"`
	DeniedAddresses []string `json:"deniedAddresses,omitempty"`
	// Secrets are the names of the credentials that are put into what the container sends.
	Secrets []string `json:"secrets,omitempty"`
}

// IsOpen reports whether the whole network of the profile may be reached, unfiltered.
func (e Egress) IsOpen() bool { return len(e.Domains) == 1 && e.Domains[0] == "*" }

// Network is a bridge network of ours, as the engine knows it.
type Network struct {
	Profile, Name, Bridge string
	Subnet                netip.Prefix
	Gateway               netip.Addr
	// GatewayID is the container that is its gateway, and GatewayDir the folder that the gateway
	// shares with the service. Both are empty if there is none.
	GatewayID, GatewayDir string
}

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

// Party is a container as the Filter knows it.
type Party struct {
	// Name is the container's, and User the tenant whose container it is.
	Name, User string
	// Persistent says that it is a persistent sandbox's.
	Persistent bool
	// Egress is what it may reach.
	Egress Egress
}

// Endpoint is a running container on a network. PID is its first process's, as the host counts; 0
// if the engine did not say.
type Endpoint struct {
	Party
	// Holder identifies the container that has the address, even when its name and its user change.
	// It is unique.
	Holder uint64
	Addr   netip.Addr
	MAC    net.HardwareAddr
	PID    int
	// Linked says that the container's runtime has connected it.
	Linked bool
}

// Filter decides what passes on our networks.
type Filter interface {
	// Subnets returns the subnets that a new network may have, the preferred one first.
	Subnets() ([]netip.Prefix, error)
	// Gateway says what a network's gateway is made with, if it is to have one.
	Gateway(Network) (g Gateway, wanted bool, err error)
	// Open makes a network ready, if it is not, and registers the endpoints. It is called before
	// each use. Whatever else is on a network that was not ready is cut off for good. The error is
	// errdefs.ErrFailedPrecondition if the network is not what the engine takes it for.
	Open(context.Context, Network, []Endpoint) error
	// ResolvConf returns the host's file for /etc/resolv.conf.
	ResolvConf(profile string) string
	// Link returns how a container's runtime connects it to the gateway of a network; empty if there
	// is none. What is connected so reaches nothing before Bind.
	Link(Network, netip.Addr, net.HardwareAddr) string
	// Add registers a container that will be made, and gives it an address. Each Add is followed by
	// a Remove, and so is each Endpoint of Open. For a holder see Endpoint.
	Add(p Party, holder uint64) (netip.Addr, error)
	// Bind opens network access for a container that has started and in which nothing of a tenant
	// runs yet.
	Bind(Endpoint) error
	// Assign lets a holder that could reach nothing reach what another Party may.
	Assign(holder uint64, from, to Party) error
	// Change lets a running container reach what its Endpoint says, instead of what it could reach
	// before.
	Change(Endpoint) error
	// Remove ends a holder's connections and takes its address back, if it still has one.
	Remove(profile string, holder uint64)
}

// Containers are those on the networks. They belong to the caller, who alone can end one.
type Containers interface {
	// Clear ends the containers of a profile's network, and returns when those that had been made
	// are gone. Those that are being made are ended by their makers: bound are the ids of all whose
	// makers may not find out by themselves, because Bind has been called.
	Clear(ctx context.Context, profile string, bound []string) error
}
