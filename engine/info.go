package engine

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/docker/docker/client"
)

// Info is what the service needs to know of its engine.
type Info struct {
	// Version is the engine's own.
	Version string
	// CPUs is how many the host has.
	CPUs int
	// Runtimes are the names of the OCI runtimes, sorted, and DefaultRuntime is one of them.
	Runtimes       []string
	DefaultRuntime string
	// GVisor are those of Runtimes whose program is gVisor's.
	GVisor []string
}

// Inspect asks the engine. Its error tells a person what to do.
func Inspect(ctx context.Context, docker *client.Client) (Info, error) {
	answer, err := docker.Info(ctx)
	if err != nil {
		return Info{}, fmt.Errorf("cannot ask the engine: %w", Explain(docker, err))
	}
	info := Info{Version: answer.ServerVersion, CPUs: answer.NCPU, DefaultRuntime: answer.DefaultRuntime}
	for name, runtime := range answer.Runtimes {
		info.Runtimes = append(info.Runtimes, name)
		if strings.Contains(path.Base(runtime.Path), "runsc") || strings.Contains(runtime.Type, "runsc") {
			info.GVisor = append(info.GVisor, name)
		}
	}
	slices.Sort(info.Runtimes)
	slices.Sort(info.GVisor)
	return info, nil
}
