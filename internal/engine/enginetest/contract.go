package enginetest

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/internal/engine"
)

// Contract tests that an engine does what engine.Engine says, as far as both Docker and the Engine
// of this package can show. s is a container that runs until it is ended and has /bin/echo and
// /bin/cat. Names of what is made begin with prefix; the subnet is a /24 that nobody else has.
func Contract(t *testing.T, e engine.Engine, s engine.Spec, prefix string, subnet netip.Prefix) {
	c := contract{t: t, e: e, spec: s, prefix: prefix, subnet: subnet}
	t.Run("life", func(t *testing.T) { c.t = t; c.life() })
	t.Run("programs", func(t *testing.T) { c.t = t; c.programs() })
	t.Run("networks", func(t *testing.T) { c.t = t; c.networks() })
}

type contract struct {
	t      *testing.T
	e      engine.Engine
	spec   engine.Spec
	prefix string
	subnet netip.Prefix
}

// ok requires that nothing has failed.
func (c *contract) ok(errs ...error) {
	c.t.Helper()
	if err := errors.Join(errs...); err != nil {
		c.t.Fatal(err)
	}
}

// fails requires an error of a class.
func (c *contract) fails(what string, is func(error) bool, err error) {
	c.t.Helper()
	if err == nil || !is(err) {
		c.t.Errorf("%s: %v", what, err)
	}
}

// create makes a container, which is removed in the end.
func (c *contract) create(s engine.Spec) (id string) {
	c.t.Helper()
	id, err := c.e.Create(c.t.Context(), s)
	c.ok(err)
	c.t.Cleanup(func() { _ = c.e.Remove(context.WithoutCancel(c.t.Context()), id) })
	return id
}

// start makes and starts a container, which is removed in the end.
func (c *contract) start(s engine.Spec) (id string) {
	c.t.Helper()
	id = c.create(s)
	c.ok(c.e.Start(c.t.Context(), id))
	return id
}

// told requires that the next event about a container of alice's is of a kind. Docker may tell
// twice that one is resumed, and tells of networks when it likes.
func (c *contract) told(happened <-chan engine.Event, id string, want engine.EventKind) {
	c.t.Helper()
	limit := time.After(time.Minute)
	for {
		select {
		case event := <-happened:
			switch {
			case event.Container != id:
			case event.Kind == want:
				if event.Labels[c.prefix] != "alice" {
					c.t.Errorf("event %v has the labels %v", want, event.Labels)
				}
				return
			case event.Kind != engine.Disconnected && event.Kind != engine.Resumed:
				c.t.Fatalf("event %v instead of %v", event.Kind, want)
			}
		case <-limit:
			c.t.Fatal("no event came")
		}
	}
}

// left requires to be told that a container was taken off its network, and was removed.
func (c *contract) left(happened <-chan engine.Event, id string) {
	c.t.Helper()
	limit := time.After(time.Minute)
	for disconnected, removed := false, false; !disconnected || !removed; {
		select {
		case event := <-happened:
			disconnected = disconnected ||
				event.Container == id && event.Kind == engine.Disconnected
			removed = removed || event.Container == id && event.Kind == engine.Removed
		case <-limit:
			c.t.Fatalf("told that it was disconnected: %v, and removed: %v", disconnected, removed)
		}
	}
}

func (c *contract) life() {
	ctx := c.t.Context()
	s := c.spec
	s.Name, s.Labels = c.prefix+"life", map[string]string{c.prefix: "alice"}
	happened, _ := c.e.Events(ctx)
	id := c.start(s)
	_, err := c.e.Create(ctx, s)
	c.fails("a second one of that name", cerrdefs.IsConflict, err)
	for _, by := range []string{id, s.Name} {
		found, err := c.e.Inspect(ctx, by)
		c.ok(err)
		if !found.Runs() || found.PID == 0 || found.Started.IsZero() || found.Name != s.Name ||
			found.Labels[c.prefix] != "alice" {
			c.t.Errorf("%+v", found)
		}
	}
	told := c.e.Wait(ctx, id)
	c.ok(c.e.Pause(ctx, id), c.e.Pause(ctx, id))
	if found, err := c.e.Inspect(ctx, id); err != nil || found.State != engine.Paused {
		c.t.Errorf("%+v, %v", found, err)
	}
	c.ok(c.e.Resume(ctx, id), c.e.Resume(ctx, id))
	c.told(happened, id, engine.Resumed)
	c.ok(c.e.Rename(ctx, id, s.Name+"-2"))
	_, err = c.e.Inspect(ctx, s.Name)
	c.fails("its name before", cerrdefs.IsNotFound, err)
	c.ok(c.e.Signal(ctx, id, syscall.SIGKILL), <-told, <-c.e.Wait(ctx, id))
	found, err := c.e.Inspect(ctx, id)
	c.ok(err)
	if found.State != specs.StateStopped || found.ExitCode != 137 || found.Ended.IsZero() {
		c.t.Errorf("%+v", found)
	}
	c.told(happened, id, engine.Ended)
	c.fails("a signal to what has ended", cerrdefs.IsConflict, c.e.Signal(ctx, id, syscall.SIGTERM))
	c.ok(c.e.Pause(ctx, id), c.e.Resume(ctx, id))
	for stopped, want := range map[bool]int{false: 0, true: 1} {
		list, err := c.e.List(ctx, stopped, c.prefix, c.prefix+"=alice")
		if err != nil || len(list) != want {
			c.t.Errorf("stopped %v: %+v, %v", stopped, list, err)
		}
	}
	c.ok(c.e.Remove(ctx, id), c.e.Remove(ctx, id))
	c.told(happened, id, engine.Removed)
	c.ok(c.e.Pause(ctx, id), c.e.Resume(ctx, id))
	_, err = c.e.Inspect(ctx, id)
	c.fails("inspecting what is gone", cerrdefs.IsNotFound, err)
	c.fails("starting what is gone", cerrdefs.IsNotFound, c.e.Start(ctx, id))
	c.fails("waiting for what is gone", cerrdefs.IsNotFound, <-c.e.Wait(ctx, id))
	c.fails("a signal to what is gone", cerrdefs.IsNotFound, c.e.Signal(ctx, id, syscall.SIGTERM))
}

func (c *contract) programs() {
	ctx := c.t.Context()
	s := c.spec
	s.Name = c.prefix + "programs"
	id := c.start(s)
	program := func(args ...string) specs.Process { return specs.Process{Args: args, Cwd: "/"} }
	out, err := c.e.Run(ctx, id, program("/bin/echo", "one"))
	c.ok(err)
	if out.Stdout != "one\n" || out.Stderr != "" || out.ExitCode != 0 {
		c.t.Errorf("%+v", out)
	}
	out, err = c.e.Run(ctx, id, program("/bin/cat", "/no/such/file"))
	if err != nil || out.ExitCode != 1 || out.Stdout != "" {
		c.t.Errorf("%+v, %v", out, err)
	}
	stream, err := c.e.Exec(ctx, id, program("/bin/cat"))
	c.ok(err)
	defer stream.Close()
	c.ok(stream.SetDeadline(time.Now().Add(time.Minute)))
	_, err = io.WriteString(stream, "two\n")
	c.ok(err)
	line := make([]byte, len("two\n"))
	if _, err := io.ReadFull(stream, line); err != nil || string(line) != "two\n" {
		c.t.Errorf("%q, %v", line, err)
	}
	c.ok(c.e.Pause(ctx, id))
	_, err = c.e.Exec(ctx, id, program("/bin/cat"))
	c.fails("a program in a paused container", cerrdefs.IsConflict, err)
	c.ok(c.e.Remove(ctx, id)) // paused as it is
	_, err = c.e.Exec(ctx, id, program("/bin/cat"))
	c.fails("a program in none", cerrdefs.IsNotFound, err)
}

func (c *contract) networks() {
	ctx := c.t.Context()
	n := engine.Network{
		Name: c.prefix + "net", Bridge: c.prefix + "br", Subnet: c.subnet,
		Gateway: c.subnet.Addr().Next(), Labels: map[string]string{c.prefix: "net"},
	}
	c.ok(c.e.MakeNetwork(ctx, n))
	c.t.Cleanup(func() { _ = c.e.RemoveNetwork(context.WithoutCancel(ctx), n.Name) })
	other := n
	other.Name, other.Bridge = n.Name+"-2", n.Bridge+"2"
	taken := func(err error) bool { return errors.Is(err, engine.ErrSubnetTaken) }
	c.fails("the same subnet", taken, c.e.MakeNetwork(ctx, other))
	c.fails("the same name", cerrdefs.IsConflict, c.e.MakeNetwork(ctx, n))
	happened, _ := c.e.Events(ctx)
	s := c.spec
	addr := n.Gateway.Next().Next()
	s.Name, s.RuntimeLoopback = c.prefix+"on", false
	s.Net = &engine.Attachment{Network: n.Name, Addr: addr, Resolver: n.Gateway.String()}
	second := s
	second.Name = c.prefix + "second"
	volume := c.prefix + "volume"
	s.Mounts = append(s.Mounts, specs.Mount{
		Type: engine.VolumeType, Source: volume, Destination: "/mnt",
	})
	s.Volumes = append(s.Volumes, engine.Volume{
		Name: volume, Labels: n.Labels, Options: []string{"size=65536"},
	})
	id := c.start(s)
	c.t.Cleanup(func() { _ = c.e.RemoveVolume(context.WithoutCancel(ctx), volume) })
	found, err := c.e.Inspect(ctx, id)
	if err != nil || len(found.Endpoints) != 1 || found.Endpoints[0].Network != n.Name ||
		found.Endpoints[0].Addr != addr || found.Endpoints[0].MAC == nil {
		c.t.Errorf("%+v, %v", found.Endpoints, err)
	}
	for _, tt := range []struct {
		bridge string
		used   bool
	}{{n.Bridge, true}, {n.Bridge + "x", true}} {
		got, err := c.e.FindNetwork(ctx, n.Name, tt.bridge)
		if err != nil || got.InUse != tt.used || (got.Fault == "") != (tt.bridge == n.Bridge) ||
			got.Labels[c.prefix] != "net" || got.Fault == "" && got.Subnet != n.Subnet {
			c.t.Errorf("%+v, %v", got, err)
		}
	}
	c.refused(second, s.Name)
	c.fails("a network in use", cerrdefs.IsPermissionDenied, c.e.RemoveNetwork(ctx, n.Name))
	c.fails("a volume in use", cerrdefs.IsConflict, c.e.RemoveVolume(ctx, volume))
	v, err := c.e.FindVolume(ctx, volume)
	if err != nil || !strings.HasPrefix(v.Dir, "/") {
		c.t.Errorf("%+v, %v", v, err)
	}
	for unused, want := range map[bool]int{false: 1, true: 0} {
		list, err := c.e.ListVolumes(ctx, c.prefix+"=net", unused)
		if err != nil || len(list) != want {
			c.t.Errorf("unused %v: %+v, %v", unused, list, err)
		}
	}
	list, err := c.e.ListNetworks(ctx, c.prefix)
	if err != nil || len(list) != 1 || list[0].ID == "" {
		c.t.Errorf("%+v, %v", list, err)
	}
	c.ok(c.e.Remove(ctx, id))
	c.left(happened, id)
	before := c.create(second)
	c.ok(c.e.RemoveNetwork(ctx, n.Name), c.e.RemoveVolume(ctx, volume))
	c.fails("a start without its network", cerrdefs.IsNotFound, c.e.Start(ctx, before))
	_, err = c.e.FindNetwork(ctx, n.Name, n.Bridge)
	c.fails("a network that is gone", cerrdefs.IsNotFound, err)
	_, err = c.e.FindVolume(ctx, volume)
	c.fails("a volume that is gone", cerrdefs.IsNotFound, err)
	c.fails("no network", cerrdefs.IsNotFound, c.e.RemoveNetwork(ctx, n.Name))
	c.fails("no volume", cerrdefs.IsNotFound, c.e.RemoveVolume(ctx, volume))
}

// refused requires that a container does not get the address or the name of the one that has them,
// nor an address that is not of its network.
func (c *contract) refused(s engine.Spec, taken string) {
	ctx := c.t.Context()
	id := c.create(s)
	err := c.e.Start(ctx, id)
	c.fails("an address that is taken", func(err error) bool {
		return errors.Is(err, engine.ErrAddressTaken)
	}, err)
	c.fails("a name that is taken", cerrdefs.IsConflict, c.e.Rename(ctx, id, taken))
	c.ok(c.e.Remove(ctx, id))
	net := *s.Net
	net.Addr = c.subnet.Masked().Addr().Prev()
	s.Net = &net
	id, err = c.e.Create(ctx, s) // which may refuse that, or Start does
	if err == nil {
		err = c.e.Start(ctx, id)
		c.ok(c.e.Remove(ctx, id))
	}
	c.fails("an address of another network", func(error) bool { return true }, err)
}
