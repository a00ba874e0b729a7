package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/api/types"
)

// cold has the times of `true` if there is no container yet; run is docker run --rm, and raw the
// runtime alone.
type cold struct{ api, run, raw sample }

// coldTarget is how long an exec may take, relative to docker run --rm.
const coldTarget = 1.15

func (s *service) measureCold(ctx context.Context) (found cold, err error) {
	t, err := s.twin(ctx, "true")
	if err != nil {
		return found, err
	}
	raw, err := s.rawRun(ctx)
	if err != nil {
		return found, err
	}
	users := 0
	err = byTurns(s.settings.cold, 1,
		once(&found.api, func() (time.Duration, error) {
			users++
			return s.timeCold(ctx, types.Registration{UserID: fmt.Sprint("cold-", users)}, types.Exec{Argv: []string{"true"}})
		}),
		once(&found.run, func() (time.Duration, error) { return s.dockerRun(ctx, t) }),
		once(&found.raw, raw))
	return found, err
}

// bundles are where containerd keeps the bundles of Docker's containers.
var bundles = []string{"/run/docker/containerd/daemon/io.containerd.runtime.v2.task/moby", "/run/containerd/io.containerd.runtime.v2.task/moby"}

// rawRun returns a function that has the runtime run `true` without an engine: in a copy of the warm
// container's bundle, with the same mounts and limits, until it has exited and is removed.
func (s *service) rawRun(ctx context.Context) (func() (time.Duration, error), error) {
	var text []byte
	for _, dir := range bundles {
		if found, err := os.ReadFile(filepath.Join(dir, s.container, "config.json")); err == nil {
			text = found
		}
	}
	var bundle specs.Spec
	if err := json.Unmarshal(text, &bundle); err != nil {
		return nil, fmt.Errorf("no bundle of a container is in %s: %w", bundles, err)
	}
	info, err := s.docker.Info(ctx)
	if err != nil {
		return nil, err
	}
	runtime := info.Runtimes[s.runtime]
	if offline, there := info.Runtimes[s.runtime+"-offline"]; there {
		runtime = offline // the one for containers without a network
	}
	bundle.Process.Args, bundle.Process.Terminal, bundle.Hooks = []string{"true"}, false, nil
	dir := filepath.Join(s.dir, "raw")
	runs := 0
	return func() (time.Duration, error) {
		runs++
		id := fmt.Sprintf("bench-raw-%d", runs)
		bundle.Linux.CgroupsPath = "/" + id
		text, err := json.Marshal(bundle)
		if err != nil {
			return 0, err
		}
		if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600)); err != nil {
			return 0, err
		}
		defer func() { _ = unix.Unmount(dir+"/state/null-netns", unix.MNT_DETACH) }() // gVisor's, for all of its containers
		return timed(func() error {
			out, err := exec.CommandContext(ctx, runtime.Path, append(slices.Clone(runtime.Args), "--root", dir+"/state", "run", "--bundle", dir, id)...).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%s run: %w: %s", runtime.Path, err, out)
			}
			return nil
		})
	}, nil
}

// timeCold measures the first exec of a new user, including the making of the home, and removes the
// container.
func (s *service) timeCold(ctx context.Context, r types.Registration, e types.Exec) (time.Duration, error) {
	user := r.UserID
	if _, err := s.api.Put(ctx, user, r); err != nil {
		return 0, err
	}
	took, err := timed(func() error {
		out, err := s.call(ctx, user, e)
		if err == nil && !out.Cold {
			err = errors.New("the first exec of a new user found a container")
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	label := filters.NewArgs(filters.Arg("label", labelInstance+"="+s.instance), filters.Arg("label", "run.daycare.sandbox.user="+user))
	list, err := s.docker.ContainerList(ctx, container.ListOptions{Filters: label})
	if err != nil {
		return 0, err
	}
	for _, c := range list {
		if err := s.remove(c.ID); err != nil {
			return 0, err
		}
	}
	return took, s.api.Delete(ctx, user)
}

func coldSection(f findings) section {
	s := section{
		title: "Cold exec of `true`",
		how: "Through the API: the first exec of a user who has never been seen, until the answer is decoded. It includes making\n" +
			"the home and the container, starting it, and the agent's session; the container stays. docker run: create, attach,\n" +
			"start and read to the end, through the Engine API, with the sandbox's own image, user and host configuration\n" +
			"(mounts, limits, security options, no network) and `--rm`, until the container has exited and is removed. The runtime\n" +
			"alone: `run` of the same bundle, without Docker. They take turns, and each turn begins with another one.",
		head: timesHead("runtime", "way"),
	}
	for _, r := range f.runtimes {
		s.times(r.cold.api, r.runtime, "API, no container yet")
		s.times(r.cold.run, r.runtime, "docker run --rm")
		s.times(r.cold.raw, r.runtime, "the runtime alone")
		s.judge(atMost(r.runtime, "p50 of API ÷ docker run --rm", ratio(r.cold.api.median(), r.cold.run.median()), coldTarget, times))
	}
	return s
}
