package cleanup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/config"
	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/datadir"
)

func TestCleanupRefusesBesideAService(t *testing.T) {
	dir := t.TempDir()
	d, err := datadir.Open(dir, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	c := &Cleanup{Config: config.Config{DataDir: dir, Listen: filepath.Join(dir, "none")}, Out: &bytes.Buffer{}}
	err = c.Run(t.Context())
	if held := (HeldError{}); !errors.As(err, &held) || !strings.Contains(err.Error(), "a service runs (pid ") {
		t.Errorf("got %v", err)
	}
}

// interrupts cancels a context at the first line that is printed.
type interrupts struct{ cancel func() }

func (i interrupts) Write(line []byte) (int, error) {
	i.cancel()
	return len(line), nil
}

// An interrupted cleanup removes nothing more: the records would go although what they are about is still there.
func TestInterruptedCleanup(t *testing.T) {
	dir, instance := t.TempDir(), "0123456789abcdef"
	kept := []string{"data/instance", "data/lock", "data/processes/p-1/record.json", "users/.pool/" + instance + "-1/.spool-1", "users/alice/processes/p-1/process.log"}
	for _, name := range kept {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(instance+"\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	c := &Cleanup{Data: true, Config: config.Config{
		DataDir: filepath.Join(dir, "data"), UsersDir: filepath.Join(dir, "users"), Listen: filepath.Join(dir, "none"),
	}}
	c.Config.Egress.Name = "interrupted-cleanup"
	removed := 0
	c.Config.Docker.SocketPath = fakeDocker(t, instance, func() { removed++ })
	ctx, cancel := context.WithCancel(t.Context())
	c.Out = interrupts{cancel}
	if err := c.Run(ctx); err == nil || !strings.Contains(err.Error(), "interrupted before everything was removed") {
		t.Error(err)
	}
	if removed != 1 {
		t.Errorf("%d volumes were removed", removed)
	}
	for _, name := range kept {
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}

// fakeDocker is a Docker with two volumes of an instance, and returns its socket.
func fakeDocker(t *testing.T, instance string, removed func()) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "docker.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	labels := dockerexec.Owner{Instance: instance}.InstanceLabels()
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch _, what, _ := strings.Cut(strings.TrimPrefix(req.URL.Path, "/v"), "/"); {
		case req.Method == http.MethodDelete:
			removed()
			w.WriteHeader(http.StatusNoContent)
		case what == "volumes":
			_ = json.NewEncoder(w).Encode(map[string]any{"Volumes": []map[string]any{{"Name": "one", "Labels": labels}, {"Name": "two", "Labels": labels}}})
		case what == "_ping":
			w.Header().Set("Api-Version", "1.41")
		default:
			_, _ = io.WriteString(w, "[]")
		}
	})}}
	server.Start()
	t.Cleanup(server.Close)
	return socket
}

// What belongs to a service that runs is never chosen; what to others, only where that was asked for.
func TestCleanupSparesRunningServices(t *testing.T) {
	own, gone, running := t.TempDir(), filepath.Join(t.TempDir(), "gone"), t.TempDir()
	if err := os.WriteFile(filepath.Join(own, "instance"), []byte("0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := datadir.Open(running, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	thing := func(name, instance, dir string) dockerexec.Belonging {
		return dockerexec.Belonging{Kind: "container", Name: name, Owner: dockerexec.Owner{Instance: instance, DataDir: dir}}
	}
	all := []dockerexec.Belonging{
		thing("own", "0123456789abcdef", own), thing("own, of a lost id", "1", own), thing("own, moved", "0123456789abcdef", gone),
		thing("left", "2", gone), thing("of nobody", "3", ""), thing("runs", "4", running), thing("runs, too", "5", running),
	}
	for _, tt := range []struct {
		all  bool
		want string
		kept int
	}{
		{false, "own|own, of a lost id|own, moved", 0},
		{true, "own|own, of a lost id|own, moved|left|of nobody", 1},
	} {
		c := &Cleanup{All: tt.all, Config: config.Config{DataDir: own}}
		mine, free := c.choose(all)
		free()
		var names []string
		for _, b := range mine {
			names = append(names, b.Name)
		}
		if got := strings.Join(names, "|"); got != tt.want || len(c.kept) != tt.kept {
			t.Errorf("all %v: %s, kept %q", tt.all, got, c.kept)
		}
	}
}

// Of the service's files those go that it makes again; with --data its records, too; never what is somebody else's.
func TestFilesOfACleanup(t *testing.T) {
	for _, how := range []struct{ data, cluster bool }{{false, false}, {true, false}, {true, true}} {
		data, host, pooled := how.data, "", "mine"
		if how.cluster {
			host, pooled = "host-1", "host-1.mine"
		}
		dir := t.TempDir()
		for _, name := range []string{
			"data/agent/a", "data/image/Dockerfile", "data/gateway/run", "data/masks/m", "data/pool/classes.json", "data/authority/key", "data/credentials/github.json", "data/console.key", "data/e2b.key", "data/sandboxes/a.json", "data/processes/p-1/record.json", "data/instance", "data/lock", "data/operators",
			"users/alice/home/note", "users/alice/.spool-mine-1", "users/alice/.spool-others-1", "users/alice/processes/p-1/process.log",
			"users/.pool/" + pooled + "-1/.spool-1", "users/.pool/" + pooled + "-2/user/home/used", "users/.pool/others-1/.spool-1",
		} {
			path := filepath.Join(dir, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		c := &Cleanup{Data: data, Out: &bytes.Buffer{}, Config: config.Config{
			DataDir: filepath.Join(dir, "data"), UsersDir: filepath.Join(dir, "users"), Listen: filepath.Join(dir, "sock"),
		}}
		c.Config.Cluster.Name = host
		c.instances = map[string]bool{"mine": true, "": true}
		unused := filepath.Join(dir, "users/.pool", pooled+"-1/user/home")
		if err := errors.Join(os.MkdirAll(unused+"/.ssh", 0o700), os.WriteFile(unused+"/.netrc", nil, 0o444)); err != nil {
			t.Fatal(err)
		}
		c.files(t.Context())
		pool := []string{"users/.pool/" + pooled + "-2/user/home/used", "users/.pool/others-1/.spool-1"}
		want := slices.Concat([]string{"data/authority/key", "data/console.key", "data/credentials/github.json", "data/e2b.key", "data/instance", "data/lock", "data/operators", "data/pool/classes.json", "data/processes/p-1/record.json", "data/sandboxes/a.json"}, pool, []string{"users/alice/.spool-others-1", "users/alice/home/note", "users/alice/processes/p-1/process.log"})
		if data {
			want = slices.Concat([]string{"data/operators"}, pool, []string{"users/alice/.spool-others-1", "users/alice/home/note"})
		}
		if how.cluster { // whose records others have, too
			want = append(want, "users/alice/processes/p-1/process.log")
		}
		var left []string
		_ = filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
			if err == nil && !entry.IsDir() {
				name, _ := filepath.Rel(dir, path)
				left = append(left, name)
			}
			return err
		})
		if _, err := os.Lstat(filepath.Join(dir, "users/.pool", pooled+"-1")); err == nil || len(c.faults) != 1 { // one has what somebody has put there
			t.Errorf("data %v: a home that nobody has got is there, %v", data, c.faults)
		}
		if !slices.Equal(left, want) {
			t.Errorf("data %v: left %q, %v", data, left, c.faults)
		}
	}
}

// The folder of the pool goes with the last of what is in it.
func TestThePoolsFolderOfACleanup(t *testing.T) {
	for _, left := range []string{"", "mine-1/user/home", "others-1/user/home"} {
		users := t.TempDir()
		if err := os.MkdirAll(filepath.Join(users, ".pool", left), 0o700); err != nil {
			t.Fatal(err)
		}
		c := &Cleanup{Out: &bytes.Buffer{}, Config: config.Config{UsersDir: users}, instances: map[string]bool{"mine": true, "": true}}
		c.pool(t.Context())
		_, err := os.Lstat(filepath.Join(users, ".pool"))
		if stays := err == nil; stays != strings.HasPrefix(left, "others") || len(c.faults) > 0 {
			t.Errorf("with %q it is there: %v, %v", left, stays, c.faults)
		}
	}
}
