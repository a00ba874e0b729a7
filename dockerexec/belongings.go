package dockerexec

import (
	"context"
	"errors"
	"fmt"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/internal/engine"
)

// Owner is the service that something in Docker belongs to. Only one service uses a dataDir at a
// time, so what carries this dataDir and another instance belongs to a service that is gone and
// whose id was lost.
type Owner struct {
	Instance string
	DataDir  string
}

func (o Owner) labels() map[string]string {
	return map[string]string{labelInstance: o.Instance, labelData: o.DataDir}
}

// InstanceLabels returns the labels of things that their service's Executor removes although they
// have no DataDir label.
func (o Owner) InstanceLabels() map[string]string {
	return map[string]string{labelInstance: o.Instance}
}

func (p Platform) owner() Owner { return Owner{p.Instance, p.DataDir} }

func (e *Executor) owner() Owner { return Owner{e.cfg.Instance, e.cfg.DataDir} }

// Belonging is a container, network or volume that a service of ours has made.
type Belonging struct {
	Kind  string // "container", "network" or "volume"
	Name  string
	Owner Owner
	// User is the tenant whose container or volume it is.
	User string

	id, spool string
}

func (b Belonging) String() string { return b.Kind + " " + b.Name }

// Belongings returns everything in Docker that services of ours have made, in an order in which it
// can be removed.
func Belongings(ctx context.Context, eng engine.Engine) ([]Belonging, error) {
	containers, err := eng.List(ctx, true, labelInstance)
	if err != nil {
		return nil, eng.Explain(err)
	}
	networks, err := eng.ListNetworks(ctx, labelInstance)
	if err != nil {
		return nil, eng.Explain(err)
	}
	volumes, err := eng.ListVolumes(ctx, labelInstance, false)
	if err != nil {
		return nil, eng.Explain(err)
	}
	var all []Belonging
	add := func(kind, id, name, spool string, labels map[string]string) {
		all = append(all, Belonging{
			Kind: kind, Name: name, Owner: Owner{labels[labelInstance], labels[labelData]},
			User: labels[labelUser], id: id, spool: spool,
		})
	}
	for _, c := range containers {
		if isGhost(ctx, eng, c) {
			continue
		}
		add("container", c.ID, c.Name, spoolOf(c.Mounts), c.Labels)
	}
	for _, n := range networks {
		add("network", n.ID, n.Name, "", n.Labels)
	}
	for _, v := range volumes {
		add("volume", v.Name, v.Name, "", v.Labels)
	}
	return all, nil
}

// isGhost reports whether a container of the engine's list does not exist any more
// (engine.Removing).
func isGhost(ctx context.Context, eng engine.Engine, listed engine.Container) bool {
	if listed.State != engine.Removing {
		return false
	}
	_, err := eng.Inspect(ctx, listed.ID)
	return cerrdefs.IsNotFound(err)
}

// Remove removes it, with all that runs in it if it is a container. It is no error if it is gone
// already. A network stays if containers that are not ours are on it, and the error says which.
func (b Belonging) Remove(ctx context.Context, eng engine.Engine) error {
	var err error
	switch b.Kind {
	case "container":
		err = errors.Join(eng.Remove(ctx, b.id), removeSpool(b.spool))
	case "network":
		err = eng.RemoveNetwork(ctx, b.id)
	case "volume":
		err = eng.RemoveVolume(ctx, b.id)
	}
	if err != nil && !cerrdefs.IsNotFound(err) {
		return fmt.Errorf("cannot remove %s: %w", b, eng.Explain(err))
	}
	return nil
}

// removeOrphans removes, once, what was made for this dataDir under an id that was lost.
func (e *Executor) removeOrphans(ctx context.Context) error {
	if e.orphansRemoved.Load() {
		return nil
	}
	all, err := Belongings(ctx, e.engine)
	if err != nil {
		return err
	}
	var faults []error
	for _, b := range all {
		if b.Owner.DataDir == e.cfg.DataDir && b.Owner.Instance != e.cfg.Instance {
			e.cfg.Log.Warn().Str("kind", b.Kind).Str("name", b.Name).
				Str("instance", b.Owner.Instance).
				Msg("removing what this service made under an id that was lost")
			if b.Kind != "container" {
				faults = append(faults, b.Remove(ctx, e.engine))
			} else if e.known(b.id) != nil { // it is being removed
				faults = append(faults, fmt.Errorf("%s is still there", b))
			} else if err := errors.Join(e.removeContainer(b.id),
				removeSpool(b.spool)); err != nil {
				e.fear(b.id)
				faults = append(faults, err)
			}
		}
	}
	if err := errors.Join(faults...); err != nil {
		return err
	}
	e.orphansRemoved.Store(true)
	return nil
}

// fear registers a container that is not this service's and may run programs: nobody knows where
// they can write.
func (e *Executor) fear(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.knows(id) {
		return
	}
	c := e.newContainer(Spec{}, "", id, false)
	c.writes = []string{"/"}
	e.enlist(c)
	e.ids[id] = c
	c.Do(life.Remove, nil)
	e.RemoveLater(c)
}
