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

// dockerExec does a `docker exec` that must succeed. It returns the number of bytes on stdout.
func (s *service) dockerExec(ctx context.Context, argv ...string) (int64, error) {
	counted := &counter{to: io.Discard}
	code, err := s.dockerExecTo(ctx, counted, argv...)
	if err == nil && code != 0 {
		err = fmt.Errorf("docker exec: %s exited with %d", argv[0], code)
	}
	return counted.n, err
}

// dockerExecTo does what `docker exec` does: create, attach, read to the end, and ask for the exit
// code. The command runs as the sandbox's user.
func (s *service) dockerExecTo(ctx context.Context, stdout io.Writer, argv ...string) (int, error) {
	created, err := s.docker.ContainerExecCreate(ctx, s.container, container.ExecOptions{
		Cmd: argv, AttachStdout: true, AttachStderr: true, User: s.owner,
	})
	if err != nil {
		return 0, fmt.Errorf("docker exec: %w", err)
	}
	attached, err := s.docker.ContainerExecAttach(ctx, created.ID, container.ExecAttachOptions{})
	if err != nil {
		return 0, fmt.Errorf("docker exec: %w", err)
	}
	defer attached.Close()
	defer context.AfterFunc(ctx, attached.Close)()
	if _, err := stdcopy.StdCopy(stdout, io.Discard, attached.Reader); err != nil {
		return 0, fmt.Errorf("docker exec: %w", err)
	}
	for {
		state, err := s.docker.ContainerExecInspect(ctx, created.ID)
		if err != nil {
			return 0, fmt.Errorf("docker exec: %w", err)
		}
		if !state.Running { // Docker closes the stream a moment before it notes the end
			return state.ExitCode, nil
		}
	}
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

// dockerRun does what `docker run` does, with or without --rm: create, attach, wait in the
// background, start, read to the end. It returns the time until the container has exited and, with
// rm, has been removed. Without rm it removes the container afterwards.
func (s *service) dockerRun(ctx context.Context, t twin, rm bool) (_ time.Duration, err error) {
	t.host.AutoRemove = rm
	condition := container.WaitConditionNextExit
	if rm {
		condition = container.WaitConditionRemoved
	}
	begun := time.Now()
	// Not cancelled half-way: Docker might still make the container after our last look.
	created, err := s.docker.ContainerCreate(context.WithoutCancel(ctx), &t.config, &t.host, nil, nil, "")
	if err != nil {
		return 0, fmt.Errorf("docker run: %w", err)
	}
	if !rm {
		defer func() { err = errors.Join(err, s.remove(created.ID)) }()
	}
	attached, err := s.docker.ContainerAttach(ctx, created.ID, container.AttachOptions{Stream: true, Stdout: true, Stderr: true})
	if err != nil {
		return 0, fmt.Errorf("docker run: %w", err)
	}
	defer attached.Close()
	defer context.AfterFunc(ctx, attached.Close)()
	ended, failed := s.docker.ContainerWait(ctx, created.ID, condition)
	if err := s.docker.ContainerStart(ctx, created.ID, container.StartOptions{}); err != nil {
		return 0, fmt.Errorf("docker run: %w", err)
	}
	if _, err := stdcopy.StdCopy(io.Discard, io.Discard, attached.Reader); err != nil {
		return 0, fmt.Errorf("docker run: %w", err)
	}
	select {
	case end := <-ended:
		if end.StatusCode != 0 {
			return 0, fmt.Errorf("docker run: %s exited with %d", t.config.Cmd[0], end.StatusCode)
		}
		return time.Since(begun), nil
	case err := <-failed:
		return 0, fmt.Errorf("docker run: %w", err)
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

// removeAll removes the containers with a label. It repeats until it has found none twice in a row,
// because Docker may be making or removing one.
func removeAll(ctx context.Context, docker *client.Client, label string) error {
	for empty := 0; empty < 2; {
		list, err := docker.ContainerList(ctx, container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("label", label))})
		if err != nil {
			return fmt.Errorf("cannot remove the containers with the label %s: %w", label, err)
		}
		var removing errgroup.Group
		removing.SetLimit(removedAtOnce)
		for _, c := range list {
			removing.Go(func() error {
				err := forceRemove(ctx, docker, c.ID)
				if err != nil && !cerrdefs.IsNotFound(err) && !cerrdefs.IsConflict(err) {
					return fmt.Errorf("cannot remove container %.12s: %w", c.ID, err)
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

// removeVolumes removes the volumes with a label, which no container has any more.
func removeVolumes(ctx context.Context, docker *client.Client, label string) error {
	found, err := docker.VolumeList(ctx, volume.ListOptions{Filters: filters.NewArgs(filters.Arg("label", label))})
	if err != nil {
		return fmt.Errorf("cannot remove the volumes with the label %s: %w", label, err)
	}
	for _, v := range found.Volumes {
		if err := docker.VolumeRemove(ctx, v.Name, false); err != nil && !cerrdefs.IsNotFound(err) {
			return fmt.Errorf("cannot remove the volume %s: %w", v.Name, err)
		}
	}
	return nil
}

// removeNetworks removes the networks with a label, which no container is on any more.
func removeNetworks(ctx context.Context, docker *client.Client, label string) error {
	found, err := docker.NetworkList(ctx, network.ListOptions{Filters: filters.NewArgs(filters.Arg("label", label))})
	if err != nil {
		return fmt.Errorf("cannot remove the networks with the label %s: %w", label, err)
	}
	for _, n := range found {
		if err := docker.NetworkRemove(ctx, n.ID); err != nil && !cerrdefs.IsNotFound(err) {
			return fmt.Errorf("cannot remove the network %s: %w", n.Name, err)
		}
	}
	return nil
}
