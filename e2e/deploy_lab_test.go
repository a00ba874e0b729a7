package e2e

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	docker "github.com/docker/docker/client"
	"github.com/docker/docker/pkg/stdcopy"

	"github.com/daycare-run/sandbox/client"
)

// A deployment is a lab whose sandboxd runs in a container, as docker-compose.yml says, with the image
// that our Dockerfile makes. Its name is also that of the project.
type deployment struct {
	*lab
	image   string
	program []string // docker-compose
	files   []string // beside docker-compose.yml
}

// composeProgram is docker-compose, or the docker command with its plugin.
func composeProgram(t *testing.T) []string {
	t.Helper()
	if name, err := exec.LookPath("docker-compose"); err == nil {
		return []string{name}
	}
	if err := exec.Command("docker", "compose", "version").Run(); err != nil {
		t.Fatal("docker-compose is missing: scripts/setup.sh tests installs it")
	}
	return []string{"docker", "compose"}
}

// newDeployment makes a project of our files, and of further ones, relative to e2e, which up brings up.
func newDeployment(t *testing.T, w *world, files ...string) *deployment {
	t.Helper()
	begin(t)
	l, err := layLab(t, runDir, machine)
	if err != nil {
		t.Fatal(err)
	}
	l.client = client.New(l.path("sandboxd.sock"))
	d := &deployment{lab: l, image: "daycare-sandboxd:" + l.egress, program: composeProgram(t), files: files}
	info, err := l.engine.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l.environ = append(os.Environ(),
		"SANDBOX_USERS_DIR="+l.path("users"),
		"SANDBOX_DATA_DIR="+l.path("data"),
		"SANDBOX_ETC_DIR="+l.path("etc"),
		"SANDBOX_RUN_DIR="+l.dir, // so that the socket is where a lab has it
		"SANDBOX_ENGINE_DIR="+info.DockerRootDir,
		"SANDBOX_ENGINE_SOCKET="+engineSocket,
		"SANDBOX_SERVICE_IMAGE="+d.image,
		"SANDBOX_OPEN_FILES=16384", // an engine without CAP_SYS_RESOURCE gives no more than it has
		"E2E_EGRESS_NAME="+l.egress,
		"E2E_ISOLATED_DNS_SERVERS="+w.DNSServers()[0].String(),
		"E2E_LOCAL_DNS_SERVERS="+w.DNSServers()[1].String(),
		"E2E_ALSO_PUBLIC="+w.public.String(),
	)
	l.down = func() { _, _ = d.try("down", "--rmi", "all", "--timeout", "20") }
	l.dumps = d.quit
	t.Cleanup(func() {
		if t.Failed() {
			logs, _ := d.try("logs", "--no-color")
			t.Logf("the end of sandboxd's log:\n%s", endOf(logs))
		}
		l.close()
		d.left(t)
	})
	if err := d.lay(); err != nil {
		t.Fatal(err)
	}
	return d
}

// lay makes the project's folder: what is in the repository's, and the programs under test.
func (d *deployment) lay() error {
	err := errors.Join(os.MkdirAll(d.path("project/bin"), 0o755), os.Mkdir(d.path("etc"), 0o755))
	for from, to := range map[string]string{
		"../deploy/settings.json": "etc/settings.json", // whose paths are not the deployment's
		"../Dockerfile":           "project/Dockerfile",
		"../.dockerignore":        "project/.dockerignore",
		"../docker-compose.yml":   "project/docker-compose.yml",
	} {
		text, readErr := os.ReadFile(from)
		err = errors.Join(err, readErr, os.WriteFile(d.path(to), text, 0o644))
	}
	for _, name := range d.files {
		text, readErr := os.ReadFile(name)
		err = errors.Join(err, readErr, os.WriteFile(d.path("project/"+filepath.Base(name)), text, 0o644))
	}
	for _, program := range []string{"sandboxd", "sandbox", "sandbox-agent"} {
		err = errors.Join(err, os.Link(filepath.Join(binaries, program), d.path("project/bin/"+program)))
	}
	return err
}

// try runs docker-compose in the project's folder and returns what it printed.
func (d *deployment) try(args ...string) (string, error) {
	argv := append(slices.Clone(d.program), "--project-name", d.egress, "--file", "docker-compose.yml")
	for _, file := range d.files {
		argv = append(argv, "--file", filepath.Base(file))
	}
	argv = append(argv, args...)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = d.path("project"), d.environ
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (d *deployment) compose(t *testing.T, args ...string) string {
	t.Helper()
	out, err := d.try(args...)
	if err != nil {
		t.Fatalf("docker-compose %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// quit is that of a lab, for the service in its container.
func (d *deployment) quit() string {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var out bytes.Buffer
	for _, c := range d.ofProject(d.engine) {
		_ = d.engine.ContainerKill(ctx, c.ID, "SIGQUIT")
		log, err := d.engine.ContainerLogs(ctx, c.ID, container.LogsOptions{ShowStdout: true, ShowStderr: true, Follow: true})
		if err != nil {
			continue
		}
		_, _ = stdcopy.StdCopy(&out, &out, log) // which ends with the container
		_ = log.Close()
	}
	_, dump, _ := strings.Cut(out.String(), dumpBegins)
	return dump
}

// up brings the service up, again where its description has changed, and waits until it answers.
func (d *deployment) up(t *testing.T) {
	t.Helper()
	d.compose(t, "up", "--detach", "--build")
	d.client.Close()
	eventually(t, "sandboxd answers", func() bool {
		_, err := d.client.Health(context.Background())
		return err == nil
	})
}

// service is the container that sandboxd runs in.
func (d *deployment) service(t *testing.T) container.InspectResponse {
	return d.container(t, "sandboxd")
}

// container is the one of a service of the project's files.
func (d *deployment) container(t *testing.T, service string) container.InspectResponse {
	t.Helper()
	list := slices.DeleteFunc(d.ofProject(d.engine), func(c container.Summary) bool { return c.Labels["com.docker.compose.service"] != service })
	if len(list) != 1 {
		t.Fatalf("the project has %d containers of %s", len(list), service)
	}
	found, err := d.engine.ContainerInspect(context.Background(), list[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func (d *deployment) ofProject(engine *docker.Client) []container.Summary {
	list, _ := engine.ContainerList(context.Background(), container.ListOptions{
		All: true, Filters: filters.NewArgs(filters.Arg("label", "com.docker.compose.project="+d.egress)),
	})
	return list
}

// left fails the test for what the deployment has left behind.
func (d *deployment) left(t *testing.T) {
	t.Helper()
	engine, err := docker.NewClientWithOpts(docker.WithHost("unix://"+engineSocket), docker.WithAPIVersionNegotiation())
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	if list := d.ofProject(engine); len(list) != 0 {
		t.Errorf("%d containers of the project are left", len(list))
	}
	if _, err := engine.ImageInspect(context.Background(), d.image); err == nil {
		t.Errorf("the image %s is left", d.image)
	}
	for _, command := range []string{"docker network ls", "docker volume ls", "nft list tables", "ip link"} {
		argv := strings.Fields(command)
		out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
		if err != nil || strings.Contains(string(out), d.egress) {
			t.Errorf("%s: %v\n%s", command, err, out)
		}
	}
	if _, err := os.Stat(d.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left: %v", d.dir, err)
	}
}
