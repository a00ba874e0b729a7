package egress

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/egress/rules"
)

// restore registers the containers that are there when the stack opens. It returns what their rules are, and
// the addresses of those that are filtered. One whose interface is not found has no way until it is bound.
func (s *stack) restore(list []dockerexec.Endpoint) (rules.State, map[netip.Addr]bool) {
	var state rules.State
	filtered := map[netip.Addr]bool{}
	for _, e := range list {
		ep, err := s.newEndpoint(e.Spec, e.Holder)
		if err != nil || !s.endpoints.restore(ep, e.Addr) {
			continue // not of this network, or the second one there: Bind finds it missing
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

// register registers the containers that were not known when the stack opened.
func (s *stack) register(list []dockerexec.Endpoint) error {
	for _, e := range list {
		if ep, err := s.newEndpoint(e.Spec, e.Holder); err == nil && s.endpoints.restore(ep, e.Addr) {
			if err := s.admit(ep); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *stack) add(spec dockerexec.Spec, holder uint64) (netip.Addr, error) {
	ep, err := s.newEndpoint(spec, holder)
	if err != nil {
		return netip.Addr{}, err
	}
	if err := s.endpoints.register(ep); err != nil {
		return netip.Addr{}, err
	}
	return ep.addr, s.admit(ep)
}

// newEndpoint returns a container on this network. One that is filtered remembers what it is answered if there are further ports.
func (s *stack) newEndpoint(spec dockerexec.Spec, holder uint64) (*endpoint, error) {
	ep, err := newEndpoint(spec)
	if err != nil {
		return nil, err
	}
	ep.holder = holder
	if !ep.open && len(s.owner.cfg.ExtraPorts) > 0 {
		ep.dns.Answered = func(name string, addrs []netip.Addr, ttl time.Duration) {
			ep.answers.note(name, addrs, ttl, time.Now())
		}
	}
	return ep, nil
}

// assign puts another Spec's endpoint in the place of one that could reach nothing: it was filtered and had no names, or is
// open and not bound yet. What is filtered stays so, and what is open, so the container is connected as it has to be.
func (s *stack) assign(holder uint64, from, to dockerexec.Spec) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	ep, err := s.newEndpoint(to, holder)
	if err != nil {
		return err
	}
	if to.Egress.Profile != from.Egress.Profile || ep.open != from.Egress.IsOpen() || !ep.open && len(from.Egress.Domains) > 0 {
		return fmt.Errorf("what %s may reach cannot become what %s may: %w", from.ContainerName(), ep.container, errdefs.ErrFailedPrecondition)
	}
	return s.endpoints.replace(from.ContainerName(), ep)
}

// change has a container that runs reach something else than so far. The connections that it may not have any more end. What
// is open becomes filtered by being cut off first, so all of its connections end; after an error of that it has no network
// until it is changed again, which begins anew.
func (s *stack) change(e dockerexec.Endpoint) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	ep, err := s.newEndpoint(e.Spec, e.Holder)
	if err != nil {
		return err
	}
	old := s.endpoints.at(e.Addr)
	switch {
	case old == nil || old.container != ep.container || old.gone():
		return fmt.Errorf("address %s is not that of %s: %w", e.Addr, ep.container, errdefs.ErrFailedPrecondition)
	case ep.open && old.open:
		return nil
	case ep.open:
		return fmt.Errorf("what is filtered by name cannot be opened to all of the network while it runs: name what to reach, or make another: %w", errdefs.ErrFailedPrecondition)
	case s.gateway == nil:
		return fmt.Errorf("no call can be filtered by name here (%w): %w", s.owner.weak, errdefs.ErrPermissionDenied)
	case !old.open && !old.parting:
		old.reach.Store(ep.reach.Load())
		old.relays.recheck(old.reach.Load())
		if s.guard != nil {
			s.guard.Recheck(old)
		}
		return nil
	}
	if err := s.table.Remove(e.Addr); err != nil {
		return explain(err)
	}
	ep.parting = true
	if err := s.endpoints.replace(ep.container, ep); err != nil {
		return err
	}
	if err := s.table.Forget(e.Addr); err != nil {
		return explain(err)
	}
	if err := s.gateway.connect(e); err != nil {
		return explain(err)
	}
	ep.parting = false
	return nil
}

// admit lets an address be used by a container that is not bound yet. After an error it is free again.
func (s *stack) admit(ep *endpoint) (err error) {
	switch {
	case ep.open:
		err = explain(s.table.Add(ep.addr))
	case s.gateway == nil:
		err = fmt.Errorf("no call can be filtered by name here (%w): ask for no network, or for \"*\": %w", s.owner.weak, errdefs.ErrPermissionDenied)
	}
	if err != nil {
		s.endpoints.release(ep)
	}
	return err
}

func (s *stack) bind(e dockerexec.Endpoint) error {
	ep := s.endpoints.at(e.Addr)
	if ep != nil {
		ep.binding.Lock()
		defer ep.binding.Unlock()
	}
	if ep == nil || ep.container != e.Spec.ContainerName() || ep.gone() {
		return fmt.Errorf("address %s is not that of %s: %w", e.Addr, e.Spec.ContainerName(), errdefs.ErrFailedPrecondition)
	}
	if s.owner.weak != nil {
		return nil // nor may it be asked where the container is
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
func (s *stack) binding(e dockerexec.Endpoint) (rules.Binding, error) {
	veth, err := s.owner.interfaces.vethOf(e.PID, s.network.Bridge)
	return rules.Binding{Veth: veth, MAC: e.MAC, Addr: e.Addr}, err
}

// remove takes an address from its container, whose name is free at once.
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
	ep.binding.Lock()
	defer ep.binding.Unlock()
	if err := s.cutOff(ep); err != nil {
		s.owner.cfg.Log.Error().Err(err).Stringer("address", ep.addr).Msg("cannot cut a container off; its address is not used again")
		return
	}
	if !ep.open && !ep.parting {
		s.endpoints.release(ep)
		return
	}
	s.background(func() {
		if err := s.table.Forget(ep.addr); err != nil {
			s.owner.cfg.Log.Error().Err(err).Stringer("address", ep.addr).Msg("a container is cut off, but not forgotten; its address is not used again")
			return
		}
		s.endpoints.release(ep)
	})
}

// cutOff lets nothing more come from a container.
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
