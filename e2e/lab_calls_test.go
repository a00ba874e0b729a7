package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/volume"
	"github.com/docker/docker/pkg/stdcopy"

	"github.com/daycare-run/sandbox/api/types"
)

// containers returns the containers that Docker has for this lab's users, running or not.
func (l *lab) containers(t *testing.T) []container.Summary {
	t.Helper()
	list, err := l.listContainers()
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(list, func(c container.Summary) bool { return l.userOf(c) == "" })
}

// userOf returns the user of a container. For a container from the pool, a record says which user it was bound to. The user
// is empty for a gateway, and for a container that waits for its user.
func (l *lab) userOf(c container.Summary) string {
	user := c.Labels["run.daycare.sandbox.user"]
	if !strings.HasPrefix(user, ".pool/") {
		return user
	}
	var record struct {
		Spec struct{ User string }
	}
	text, err := os.ReadFile(l.path("data/pool/bound/" + c.ID + ".json"))
	if err != nil || json.Unmarshal(text, &record) != nil {
		return ""
	}
	return record.Spec.User
}

func (l *lab) listContainers() ([]container.Summary, error) {
	instance := l.instance()
	if instance == "" {
		return nil, nil
	}
	return l.engine.ContainerList(context.Background(), container.ListOptions{
		All:     true,
		Filters: filters.NewArgs(filters.Arg("label", "run.daycare.sandbox.instance="+instance)),
	})
}

// instance returns the id that marks what belongs to the lab; it is empty before sandboxd has run.
func (l *lab) instance() string {
	text, _ := os.ReadFile(l.path("data/instance"))
	return strings.TrimSpace(string(text))
}

// volumes returns the names of the volumes that Docker has for this lab.
func (l *lab) volumes() []string {
	instance := l.instance()
	if instance == "" {
		return nil
	}
	list, err := l.engine.VolumeList(context.Background(), volume.ListOptions{
		Filters: filters.NewArgs(filters.Arg("label", "run.daycare.sandbox.instance="+instance)),
	})
	if err != nil {
		return nil
	}
	var names []string
	for _, v := range list.Volumes {
		names = append(names, v.Name)
	}
	return names
}

// containersOf returns a user's containers.
func (l *lab) containersOf(t *testing.T, user string) []container.Summary {
	t.Helper()
	return slices.DeleteFunc(l.containers(t), func(c container.Summary) bool { return l.userOf(c) != user })
}

// containerOf returns one of a user's containers; there must be one.
func (l *lab) containerOf(t *testing.T, user string) container.Summary {
	t.Helper()
	list := l.containersOf(t, user)
	if len(list) == 0 {
		t.Fatalf("%s has no container", user)
	}
	return list[0]
}

// register makes a sandbox named after the user.
func (l *lab) register(t *testing.T, user string) {
	t.Helper()
	l.registerAs(t, user, types.Registration{UserID: user})
}

// workspace is the grant of the scenarios that are not about grants.
var workspace = []string{"@workspace"}

// unhurried is the timeout of a call that has much to do, or waits for others: nearly all that a scenario has.
var unhurried = new(int64(240_000))

// run runs a command and expects the service not to fail. A call without permissions gets @workspace;
// with an empty list it gets none.
func (l *lab) run(t *testing.T, user string, e types.Exec) types.Output {
	t.Helper()
	if e.Permissions == nil {
		e.Permissions = workspace
	}
	out, err := l.client.Exec(context.Background(), user, e)
	if err != nil {
		t.Fatalf("exec %.200q %.200q: %v", e.Command, e.Argv, err)
	}
	return out
}

// sh runs a shell command, which must succeed, and returns its stdout without the last newline.
func (l *lab) sh(t *testing.T, user, command string) string {
	t.Helper()
	out := l.run(t, user, types.Exec{Command: command})
	if out.Failed {
		t.Fatalf("%.200s: failed: %.500q %.500q", command, out.Stdout, out.Stderr)
	}
	return strings.TrimSuffix(out.Stdout, "\n")
}

// inside runs a command in a container through Docker, bypassing our service.
func (l *lab) inside(t *testing.T, id string, argv ...string) string {
	t.Helper()
	return l.insideAs(t, id, container.ExecOptions{Cmd: argv})
}

// insideAs is inside as another user, or with more rights.
func (l *lab) insideAs(t *testing.T, id string, how container.ExecOptions) string {
	t.Helper()
	how.AttachStdout, how.AttachStderr = true, true
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	created, err := l.engine.ContainerExecCreate(ctx, id, how)
	if err != nil {
		t.Fatal(err)
	}
	attached, err := l.engine.ContainerExecAttach(ctx, created.ID, container.ExecAttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer attached.Close()
	// Docker may keep the stream open if the container ends before the command.
	defer context.AfterFunc(ctx, attached.Close)()
	var out bytes.Buffer
	if _, err := stdcopy.StdCopy(&out, &out, attached.Reader); err != nil {
		t.Fatalf("%q: %v", how.Cmd, err)
	}
	return out.String()
}
