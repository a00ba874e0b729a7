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

// containers are those that Docker has for this lab's users, running or not.
func (l *lab) containers(t *testing.T) []container.Summary {
	t.Helper()
	list, err := l.listContainers()
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(list, func(c container.Summary) bool { return l.userOf(c) == "" })
}

// userOf is whose a container is: what one from the pool was bound to is in a record. It is empty for a gateway, and for
// one whose user is still to come.
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

// instance marks what is the lab's; empty before sandboxd has run.
func (l *lab) instance() string {
	text, _ := os.ReadFile(l.path("data/instance"))
	return strings.TrimSpace(string(text))
}

// volumes are the names of those that Docker has for this lab.
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

// containersOf are a user's.
func (l *lab) containersOf(t *testing.T, user string) []container.Summary {
	t.Helper()
	return slices.DeleteFunc(l.containers(t), func(c container.Summary) bool { return l.userOf(c) != user })
}

// containerOf is one of a user's, who has to have one.
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

// unhurried is the time of a call that has much to do, or waits for others: nearly all that a scenario has.
var unhurried = new(int64(240_000))

// run executes and expects the service not to fail. A call that says nothing of permissions has
// @workspace; an empty list is none.
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

// sh runs a shell command and returns its stdout without the last newline; it has to succeed.
func (l *lab) sh(t *testing.T, user, command string) string {
	t.Helper()
	out := l.run(t, user, types.Exec{Command: command})
	if out.Failed {
		t.Fatalf("%.200s: failed: %.500q %.500q", command, out.Stdout, out.Stderr)
	}
	return strings.TrimSuffix(out.Stdout, "\n")
}

// inside runs a command in a container by Docker, past our service.
func (l *lab) inside(t *testing.T, id string, argv ...string) string {
	t.Helper()
	return l.insideAs(t, id, container.ExecOptions{Cmd: argv})
}

// insideAs does so as another user, or with more rights.
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
	// Docker may keep the stream open when the container ends in the middle.
	defer context.AfterFunc(ctx, attached.Close)()
	var out bytes.Buffer
	if _, err := stdcopy.StdCopy(&out, &out, attached.Reader); err != nil {
		t.Fatalf("%q: %v", how.Cmd, err)
	}
	return out.String()
}
