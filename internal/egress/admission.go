package egress

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec/networks"
	"github.com/daycare-run/sandbox/internal/egress/rules"
)

// restore registers the containers that exist when the stack opens. It returns the rules' state for
// the open ones, and the addresses of the filtered ones. An open one whose interface is not found
// reaches nothing until it is bound.
func (s *stack) restore(list []networks.Endpoint) (rules.State, map[netip.Addr]bool) {
	var state rules.State
	filtered := map[netip.Addr]bool{}
	for _, e := range list {
		if e.Linked && e.PID != 0 && s.gateway != nil && s.gateway.check(e) != nil {
			continue // it is not where it says, and somebody else may be: Bind finds it missing
		}
		ep, err := s.newEndpoint(e.Party, e.Holder)
		if err != nil || !s.endpoints.restore(ep, e.Addr) {
			continue // not of this network, or its address or name is taken: Bind finds it missing
		}
		if !ep.open {
			filtered[ep.addr] = true
			continue
		}
		state.Containers = append(state.Containers, ep.addr)
		if binding, err := s.binding(e); err == nil {
			state.Bindings = append(state.Bindings, binding)
		}
	}
	return state, filtered
}

// register registers those containers that are not known yet.
func (s *stack) register(list []networks.Endpoint) error {
	for _, e := range list {
		if ep, err := s.newEndpoint(e.Party, e.Holder); err == nil &&
			s.endpoints.restore(ep, e.Addr) {
			if err := s.admit(ep); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *stack) add(party networks.Party, holder uint64) (netip.Addr, error) {
	ep, err := s.newEndpoint(party, holder)
	if err != nil {
		return netip.Addr{}, err
	}
	if err := s.endpoints.register(ep); err != nil {
		return netip.Addr{}, err
	}
	return ep.addr, s.admit(ep)
}

// newEndpoint returns a container on this network. A filtered one remembers the answers it gets.
func (s *stack) newEndpoint(party networks.Party, holder uint64) (*endpoint, error) {
	ep, err := newEndpoint(party)
	if err != nil {
		return nil, err
	}
	ep.stack, ep.holder = s, holder
	if !ep.open {
		ep.dns.Answered = func(name string, addrs []netip.Addr, ttl time.Duration) {
			ep.answers.note(name, addrs, ttl, time.Now())
		}
	}
	return ep, nil
}

// assign replaces an endpoint that could reach nothing by another Party's: it was filtered and had
// no names, or is open and not bound yet. What is filtered stays filtered, and what is open stays
// open, so the container is already connected properly.
func (s *stack) assign(holder uint64, from, to networks.Party) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	ep, err := s.newEndpoint(to, holder)
	if err != nil {
		return err
	}
	if to.Egress.Profile != from.Egress.Profile || ep.open != from.Egress.IsOpen() ||
		!ep.open && len(from.Egress.Domains) > 0 {
		return fmt.Errorf("cannot change what %s may reach to what %s may reach: %w",
			from.Name, ep.container, errdefs.ErrFailedPrecondition)
	}
	return s.endpoints.replace(from.Name, ep)
}

// change changes what a running container may reach, and ends the connections that it may not have
// any more. An open container becomes filtered by being cut off first, so all of its connections
// end; after an error in that, it has no network until it is changed again, which starts over.
func (s *stack) change(e networks.Endpoint) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	ep, err := s.newEndpoint(e.Party, e.Holder)
	if err != nil {
		return err
	}
	old := s.endpoints.at(e.Addr)
	switch {
	case !old.belongsTo(e):
		return fmt.Errorf("address %s does not belong to %s: %w", e.Addr, ep.container,
			errdefs.ErrFailedPrecondition)
	case ep.open && old.open:
		return nil
	case ep.open:
		return fmt.Errorf(
			"cannot open a container that is filtered by name to all of the network while it runs: name what to reach, or make another container: %w",
			errdefs.ErrFailedPrecondition)
	case s.gateway == nil:
		return fmt.Errorf("no call can be filtered by name here (%w): %w", s.owner.unfiltered,
			errdefs.ErrPermissionDenied)
	case !old.open && !old.draining:
		old.reach.Store(ep.reach.Load())
		old.relays.recheck(old.reach.Load())
		if s.guard != nil {
			s.guard.Recheck(old)
		}
		return nil
	}
	old.binding.lock() // who binds it meanwhile would find neither its address nor its interface where they were
	defer old.binding.unlock()
	if err := s.table.Remove(e.Addr); err != nil {
		return explain(err)
	}
	ep.draining = true
	if err := s.endpoints.replace(ep.container, ep); err != nil {
		return err
	}
	if err := s.table.Forget(e.Addr); err != nil {
		return explain(err)
	}
	if err := s.gateway.connect(e); err != nil {
		return explain(err)
	}
	ep.draining = false
	return nil
}

// admit lets a container that is not bound yet use its address. After an error the address is free
// again.
func (s *stack) admit(ep *endpoint) (err error) {
	switch {
	case ep.open:
		err = explain(s.table.Add(ep.addr))
	case s.gateway == nil:
		err = fmt.Errorf(
			"no call can be filtered by name here (%w): ask for no network, or for \"*\": %w",
			s.owner.unfiltered, errdefs.ErrPermissionDenied)
	}
	if err != nil {
		s.endpoints.release(ep)
	}
	return err
}

func (s *stack) bind(e networks.Endpoint) error {
	ep, unlock := s.endpoints.lockBinding(e.Addr)
	defer unlock()
	if !ep.belongsTo(e) {
		return fmt.Errorf("address %s does not belong to %s: %w", e.Addr, e.Name,
			errdefs.ErrFailedPrecondition)
	}
	if s.owner.unfiltered != nil {
		return nil // and the service may lack the right to find the container's interface
	}
	if !ep.open {
		return explain(s.gateway.connect(e))
	}
	binding, err := s.binding(e)
	if err != nil {
		return explain(err)
	}
	return explain(s.table.Bind(binding))
}

// binding finds out which port of the bridge is a container's.
func (s *stack) binding(e networks.Endpoint) (rules.Binding, error) {
	veth, err := s.owner.interfaces.vethOf(e.PID, s.network.Bridge)
	return rules.Binding{Veth: veth, MAC: e.MAC, Addr: e.Addr}, err
}

// remove takes a container's address away. The container's name is free at once.
func (s *stack) remove(holder uint64) {
	s.changing.Lock()
	ep := s.endpoints.of(holder)
	if ep != nil {
		ep.revoke() // from here on it is not changed
	}
	s.changing.Unlock()
	if ep == nil || !s.endpoints.unregister(ep) {
		return
	}
	// The address stays taken until nothing is left that its next container could inherit.
	ep.binding.lock()
	defer ep.binding.unlock()
	if err := s.cutOff(ep); err != nil {
		s.owner.cfg.Log.Error().Err(err).Stringer("address", ep.addr).
			Msg("cannot cut a container off; its address is not used again")
		return
	}
	if !ep.open && !ep.draining {
		s.endpoints.release(ep)
		return
	}
	s.background(func() {
		if err := s.table.Forget(ep.addr); err != nil {
			s.owner.cfg.Log.Error().Err(err).Stringer("address", ep.addr).
				Msg("cannot forget the flows of a container that was cut off; its address is not used again")
			return
		}
		s.endpoints.release(ep)
	})
}

// cutOff stops everything that comes from a container.
func (s *stack) cutOff(ep *endpoint) error {
	switch {
	case ep.open:
		return s.table.Remove(ep.addr)
	case s.gateway != nil:
		return s.gateway.Detach(ep.addr)
	default:
		return nil
	}
}
