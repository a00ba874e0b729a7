package e2e

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/docker/docker/api/types/container"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// What scenarios about files do on the host, as root, bypassing our service.

// none is the empty list of grants; nil would mean @workspace.
var none = []string{}

// at returns the host's path of a file in a user's home.
func (l *lab) at(user, name string) string { return filepath.Join(l.home(user), name) }

// registerAs registers a sandbox of any kind.
func (l *lab) registerAs(t *testing.T, id string, r types.Registration) {
	t.Helper()
	if _, err := l.client.Put(t.Context(), id, r); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.dropIdle(r.UserID) })
}

// dropIdle removes a user's containers in which nothing runs. A scenario that has ended no longer needs them, and all
// containers of the suite together have more threads than a kernel has ids for.
func (l *lab) dropIdle(user string) {
	list, _ := l.client.Containers(context.Background()) // if the service is gone, its lab is being removed
	for _, c := range list {
		if c.UserID == user && c.Commands == 0 {
			l.removeByForce(c.ID)
		}
	}
}

// removeByForce removes a container as `docker rm -f` does. It thaws the container first: Docker takes long to remove a
// frozen one, and leaves its shim.
func (l *lab) removeByForce(id string) {
	_ = l.engine.ContainerUnpause(context.Background(), id)
	_ = l.engine.ContainerRemove(context.Background(), id, container.RemoveOptions{Force: true, RemoveVolumes: true})
}

// ownerIn returns the owner for what a scenario makes in a directory: the directory's owner, or ownerUID if that is root.
func ownerIn(t *testing.T, dir string) int {
	t.Helper()
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if uid := info.Sys().(*syscall.Stat_t).Uid; uid != 0 {
		return int(uid)
	}
	return ownerUID
}

// mkdir makes a directory on the host, and those above it, each for the owner from ownerIn.
func mkdir(t *testing.T, name string) {
	t.Helper()
	if _, err := os.Lstat(name); err == nil {
		return
	}
	mkdir(t, filepath.Dir(name))
	uid := ownerIn(t, filepath.Dir(name))
	if err := errors.Join(os.Mkdir(name, 0o755), os.Chown(name, uid, uid)); err != nil {
		t.Fatal(err)
	}
}

// put makes a file that everyone may read in a user's home, with the directories above it.
func (l *lab) put(t *testing.T, user, name, content string) {
	t.Helper()
	mkdir(t, l.home(user))
	putFile(t, l.at(user, name), content)
}

func putFile(t *testing.T, name, content string) {
	t.Helper()
	mkdir(t, filepath.Dir(name))
	uid := ownerIn(t, filepath.Dir(name))
	if err := errors.Join(os.WriteFile(name, []byte(content), 0o644), os.Chown(name, uid, uid)); err != nil {
		t.Fatal(err)
	}
}

// holds returns the content of a file of the host, or nothing if it cannot be read.
func holds(name string) string {
	content, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	return string(content)
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

// below lists everything below a directory of the host, sorted.
func below(t *testing.T, dir string) []string {
	t.Helper()
	names := []string{}
	err := filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		if rest, err := filepath.Rel(dir, name); err == nil && rest != "." {
			names = append(names, rest)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	return names
}

// owner returns the uid of the owner of a user's home, or 0.
func (l *lab) owner(user string) uint32 {
	info, err := os.Lstat(l.home(user))
	if err != nil {
		return 0
	}
	return info.Sys().(*syscall.Stat_t).Uid
}

// owns reports whether a file of the host belongs to the owner of the user's home, who is not root.
func (l *lab) owns(user, name string) bool {
	info, err := os.Lstat(name)
	if err != nil {
		return false
	}
	stat := info.Sys().(*syscall.Stat_t)
	return stat.Uid == l.owner(user) && stat.Gid == stat.Uid && stat.Uid != 0
}

// kindOf returns the kind of a refusal, or an empty one.
func kindOf(err error) types.Kind {
	var failure *client.Error
	if errors.As(err, &failure) {
		return failure.Kind
	}
	return ""
}

// cool removes a user's containers behind the service's back, and waits until the service knows.
func (l *lab) cool(t *testing.T, user string) {
	t.Helper()
	for _, found := range l.containersOf(t, user) {
		l.removeByForce(found.ID)
	}
	eventually(t, "the service knows that "+user+" has no container", func() bool { return l.warm(user) == 0 && len(l.containersOf(t, user)) == 0 })
}

// warm returns how many containers the service has for a user.
func (l *lab) warm(user string) int {
	list, err := l.client.Containers(context.Background())
	if err != nil {
		return -1
	}
	n := 0
	for _, c := range list {
		if c.UserID == user {
			n++
		}
	}
	return n
}

// read reads a text through the API, which must succeed.
func (l *lab) read(t *testing.T, id, path string) string {
	t.Helper()
	got, err := l.client.Read(t.Context(), id, types.Read{Target: client.Target(path)})
	if err != nil {
		t.Fatalf("read %s: %v", path, err)
	}
	return got.Content
}

// write writes a file through the API, which must succeed.
func (l *lab) write(t *testing.T, id, path, content string) types.Written {
	t.Helper()
	got, err := l.client.Write(t.Context(), id, types.Write{Target: client.Target(path), Content: content})
	if err != nil {
		t.Fatalf("write %s: %v", path, err)
	}
	return got
}

// bash runs a script with grants and returns what it printed, however it ended.
func (l *lab) bash(t *testing.T, id string, grants []string, script string) string {
	t.Helper()
	out := l.run(t, id, types.Exec{Permissions: grants, Command: script})
	return strings.TrimSpace(out.Stdout + out.Stderr)
}

// fileCalls returns all calls of the API that would read or change a path.
func (l *lab) fileCalls(id, path string) map[string]func(ctx context.Context) (string, error) {
	file := client.Target(path)
	spare := "~/spare"
	return map[string]func(ctx context.Context) (string, error){
		"read": func(ctx context.Context) (string, error) {
			r, err := l.client.Read(ctx, id, types.Read{Target: file})
			return r.Content, err
		},
		"read binary": func(ctx context.Context) (string, error) {
			r, err := l.client.Read(ctx, id, types.Read{Target: file, Binary: true})
			if err != nil {
				return "", err
			}
			content, err := client.Content(r)
			return string(content), err
		},
		"download": func(ctx context.Context) (string, error) {
			d, err := l.client.Download(ctx, id, path, 0)
			if err != nil {
				return "", err
			}
			defer d.Close()
			var content strings.Builder
			_, err = io.Copy(&content, d)
			return content.String(), err
		},
		"write": func(ctx context.Context) (string, error) {
			_, err := l.client.Write(ctx, id, types.Write{Target: file, Content: "planted"})
			return "", err
		},
		"append": func(ctx context.Context) (string, error) {
			_, err := l.client.Write(ctx, id, types.Write{Target: file, Content: "planted", Append: true})
			return "", err
		},
		"upload": func(ctx context.Context) (string, error) {
			_, err := l.client.Upload(ctx, id, path, strings.NewReader("planted"), false)
			return "", err
		},
		"mkdir":     func(ctx context.Context) (string, error) { return "", l.client.Mkdir(ctx, id, path, false) },
		"move from": func(ctx context.Context) (string, error) { return "", l.client.Move(ctx, id, path, spare, true) },
		"move to": func(ctx context.Context) (string, error) {
			return "", l.client.Move(ctx, id, "~/plain/spare", path, true)
		},
		"remove": func(ctx context.Context) (string, error) { return "", l.client.Remove(ctx, id, path, true) },
	}
}
