package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/volume"
	"github.com/docker/docker/client"
	"github.com/docker/docker/pkg/stdcopy"
	"golang.org/x/sync/errgroup"

	"github.com/daycare-run/sandbox/internal/engine"
)

const (
	labelInstance = "run.daycare.sandbox.instance"
	labelBench    = "run.daycare.sandbox.bench"

	// imageRef is the image of the services' default settings.
	imageRef = "daycare-sandbox:latest"
	// removedAtOnce is how many containers are removed at a time.
	removedAtOnce = 4
	// removalLimit bounds the removal of everything at the end.
	removalLimit = time.Minute
)

func engineSocket() string {
	if socket := os.Getenv("SANDBOXD_DOCKER_SOCKET_PATH"); socket != "" {
		return socket
	}
	return "/var/run/docker.sock"
}

// connect connects to Docker and checks that it has the runtimes and the image.
func connect(ctx context.Context, runtimes []string) (_ *client.Client, err error) {
	docker, err := engine.Connect(engineSocket())
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, docker.Close())
		}
	}()
	info, err := engine.NewDocker(docker).Info(ctx)
	if err != nil {
		return nil, err
	}
	for _, runtime := range runtimes {
		if !slices.Contains(info.Runtimes, runtime) {
			return nil, fmt.Errorf("the engine has no runtime %q, only %s: run `make setup`, or name others with --runtimes", runtime, strings.Join(info.Runtimes, ", "))
		}
	}
	if _, err := docker.ImageInspect(ctx, imageRef); cerrdefs.IsNotFound(err) {
		return nil, fmt.Errorf("image %s is missing: run `make setup`, or `bin/sandboxd image build sandbox-image`", imageRef)
	} else if err != nil {
		return nil, fmt.Errorf("cannot look for image %s: %w", imageRef, engine.NewDocker(docker).Explain(err))
	}
	return docker, nil
}

// dockerExec does what `docker exec` does: create, attach, read to the end, and ask for the exit
// code. The command runs as the sandbox's user. printed is how many bytes came.
func (s *service) dockerExec(ctx context.Context, argv ...string) (code int, printed int64, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("docker exec: %w", err)
		}
	}()
	created, err := s.docker.ContainerExecCreate(ctx, s.container, container.ExecOptions{
		Cmd: argv, AttachStdout: true, AttachStderr: true, User: s.owner,
	})
	if err != nil {
		return 0, 0, err
	}
	attached, err := s.docker.ContainerExecAttach(ctx, created.ID, container.ExecAttachOptions{})
	if err != nil {
		return 0, 0, err
	}
	defer attached.Close()
	defer context.AfterFunc(ctx, attached.Close)()
	if printed, err = stdcopy.StdCopy(io.Discard, io.Discard, attached.Reader); err != nil {
		return 0, 0, err
	}
	for {
		state, err := s.docker.ContainerExecInspect(ctx, created.ID)
		if err != nil {
			return 0, 0, err
		}
		if !state.Running { // Docker closes the stream a moment before it notes the end
			return state.ExitCode, printed, nil
		}
	}
}

// timeDockerExec times a `docker exec` that has to exit with a code.
func (s *service) timeDockerExec(ctx context.Context, want int, argv ...string) (time.Duration, error) {
	return timed(func() error {
		code, _, err := s.dockerExec(ctx, argv...)
		if err == nil && code != want {
			err = fmt.Errorf("docker exec: %q exited with %d, not with %d", argv, code, want)
		}
		return err
	})
}

// twin is a container that differs from the sandbox's only in the program that it runs.
type twin struct {
	config container.Config
	host   container.HostConfig
}

func (s *service) twin(ctx context.Context, argv ...string) (twin, error) {
	warm, err := s.docker.ContainerInspect(ctx, s.container)
	if err != nil {
		return twin{}, err
	}
	t := twin{config: *warm.Config, host: *warm.HostConfig}
	t.config.Entrypoint, t.config.Cmd = nil, argv
	t.config.AttachStdout, t.config.AttachStderr = true, true
	t.config.Labels = map[string]string{labelBench: s.instance}
	return t, nil
}

// create makes a twin. It is not cancelled half-way: Docker might still make the container after
// our last look.
func (s *service) create(ctx context.Context, t twin) (id string, err error) {
	created, err := s.docker.ContainerCreate(context.WithoutCancel(ctx), &t.config, &t.host, nil, nil, "")
	return created.ID, err
}

// dockerRun does what `docker run --rm` does: create, attach, wait in the background, start, read
// to the end. It returns the time until the container has exited and is removed.
func (s *service) dockerRun(ctx context.Context, t twin) (_ time.Duration, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("docker run: %w", err)
		}
	}()
	t.host.AutoRemove = true
	begun := time.Now()
	id, err := s.create(ctx, t)
	if err != nil {
		return 0, err
	}
	attached, err := s.docker.ContainerAttach(ctx, id, container.AttachOptions{Stream: true, Stdout: true, Stderr: true})
	if err != nil {
		return 0, err
	}
	defer attached.Close()
	defer context.AfterFunc(ctx, attached.Close)()
	ended, failed := s.docker.ContainerWait(ctx, id, container.WaitConditionRemoved)
	if err := s.docker.ContainerStart(ctx, id, container.StartOptions{}); err != nil {
		return 0, err
	}
	if _, err := stdcopy.StdCopy(io.Discard, io.Discard, attached.Reader); err != nil {
		return 0, err
	}
	select {
	case end := <-ended:
		if end.StatusCode != 0 {
			return 0, fmt.Errorf("%s exited with %d", t.config.Cmd[0], end.StatusCode)
		}
		return time.Since(begun), nil
	case err := <-failed:
		return 0, err
	}
}

func (s *service) remove(id string) error {
	ctx, cancel := context.WithTimeout(context.Background(), removalLimit)
	defer cancel()
	return forceRemove(ctx, s.docker, id)
}

// forceRemove removes a container in any state. It resumes it first, because a paused gVisor does
// not end.
func forceRemove(ctx context.Context, docker *client.Client, id string) error {
	_ = docker.ContainerUnpause(ctx, id) // fails if it is not paused
	return docker.ContainerRemove(ctx, id, container.RemoveOptions{Force: true, RemoveVolumes: true})
}

// removeLabelled removes the containers with a label, and then the volumes and networks with it,
// which no container has any more.
func removeLabelled(ctx context.Context, docker *client.Client, label string) error {
	labelled := filters.NewArgs(filters.Arg("label", label))
	if err := removeContainers(ctx, docker, labelled); err != nil {
		return fmt.Errorf("cannot remove the containers with the label %s: %w", label, err)
	}
	volumes, err := docker.VolumeList(ctx, volume.ListOptions{Filters: labelled})
	if err != nil {
		return fmt.Errorf("cannot remove the volumes with the label %s: %w", label, err)
	}
	for _, v := range volumes.Volumes {
		if err := docker.VolumeRemove(ctx, v.Name, false); err != nil && !cerrdefs.IsNotFound(err) {
			return fmt.Errorf("cannot remove the volume %s: %w", v.Name, err)
		}
	}
	networks, err := docker.NetworkList(ctx, network.ListOptions{Filters: labelled})
	if err != nil {
		return fmt.Errorf("cannot remove the networks with the label %s: %w", label, err)
	}
	for _, n := range networks {
		if err := docker.NetworkRemove(ctx, n.ID); err != nil && !cerrdefs.IsNotFound(err) {
			return fmt.Errorf("cannot remove the network %s: %w", n.Name, err)
		}
	}
	return nil
}

// removeContainers repeats until it has found none twice in a row, because Docker may be making or
// removing one.
func removeContainers(ctx context.Context, docker *client.Client, which filters.Args) error {
	for empty := 0; empty < 2; {
		list, err := docker.ContainerList(ctx, container.ListOptions{All: true, Filters: which})
		if err != nil {
			return err
		}
		var removing errgroup.Group
		removing.SetLimit(removedAtOnce)
		for _, c := range list {
			removing.Go(func() error {
				err := forceRemove(ctx, docker, c.ID)
				if err != nil && !cerrdefs.IsNotFound(err) && !cerrdefs.IsConflict(err) {
					return err
				}
				return nil
			})
		}
		if err := removing.Wait(); err != nil {
			return err
		}
		empty++
		if len(list) > 0 {
			empty = 0
		}
		time.Sleep(200 * time.Millisecond)
	}
	return nil
}
