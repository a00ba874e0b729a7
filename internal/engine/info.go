package engine

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/docker/docker/api/types/system"
)

// Info is what the service needs to know about its Docker daemon.
type Info struct {
	// Version is Docker's own.
	Version string
	// API is the version of the API that is spoken with Docker.
	API string
	// CPUs is how many processors the host has.
	CPUs int
	// Runtimes are the names of the OCI runtimes, sorted, and DefaultRuntime is one of them.
	Runtimes       []string
	DefaultRuntime string
	// Programs are the paths of the programs behind the runtimes; empty for a runtime without one.
	Programs map[string]string
	// Systemd says that Docker has systemd make its control groups, whose names then have another
	// form.
	Systemd bool
	// Root is where Docker keeps images and containers, on its host.
	Root string
	// Ahead is roughly how far Docker's clock is ahead of ours; 0 if that is unknown.
	Ahead time.Duration
	// GVisor are those of Runtimes whose program is gVisor's.
	GVisor []string
	// Offline maps some of Runtimes to a runtime that gives a container a loopback when Docker
	// gives it no network at all: runc to itself, and a gVisor runtime to one whose name is the
	// same with -offline appended, and that is the same with --network=none.
	Offline map[string]string
	// Linked maps some gVisor runtimes to one whose name is the same with -linked appended, and
	// that gives a container its network interface in Docker's place (tools/runsc/linker).
	Linked map[string]string
}

// Info asks Docker about itself. Its error tells a person what to do.
func (d Docker) Info(ctx context.Context) (Info, error) {
	answer, err := d.client.Info(ctx)
	if err != nil {
		return Info{}, fmt.Errorf("cannot ask Docker: %w", d.Explain(err))
	}
	info := Info{Version: answer.ServerVersion, API: d.client.ClientVersion(),
		CPUs: answer.NCPU, DefaultRuntime: answer.DefaultRuntime, Root: answer.DockerRootDir,
		Systemd:  answer.CgroupDriver == "systemd",
		Programs: map[string]string{}, Offline: map[string]string{}, Linked: map[string]string{}}
	if now, err := time.Parse(time.RFC3339Nano, answer.SystemTime); err == nil {
		info.Ahead = time.Until(now)
	}
	for name, runtime := range answer.Runtimes {
		info.Runtimes = append(info.Runtimes, name)
		info.Programs[name] = runtime.Path
		if strings.Contains(path.Base(runtime.Path), "runsc") ||
			strings.Contains(runtime.Type, "runsc") {
			info.GVisor = append(info.GVisor, name)
		}
		if offline := offlineOf(name, answer.Runtimes); offline != "" {
			info.Offline[name] = offline
		}
		if isBeside(runtime, answer.Runtimes[name+"-linked"], "runsc-linked") {
			info.Linked[name] = name + "-linked"
		}
	}
	slices.Sort(info.Runtimes)
	slices.Sort(info.GVisor)
	return info, nil
}

// offlineOf returns the runtime that Info.Offline has for a runtime; empty for none.
func offlineOf(name string, runtimes map[string]system.RuntimeWithStatus) string {
	runtime, offline := runtimes[name], runtimes[name+"-offline"]
	switch {
	case path.Base(runtime.Path) == "runc":
		return name
	case runtime.Path != "" && offline.Path == runtime.Path &&
		slices.Equal(offline.Args, append(slices.Clone(runtime.Args), "--network=none")):
		return name + "-offline"
	// tools/runsc/freezer adds the argument itself when it is called by this name.
	case isBeside(runtime, offline, "runsc-offline"):
		return name + "-offline"
	}
	return ""
}

// isBeside reports whether a runtime is tools/runsc/freezer, and another one the same under another
// name.
func isBeside(runtime, other system.RuntimeWithStatus, name string) bool {
	return path.Base(runtime.Path) == "runsc-freezer" &&
		other.Path == path.Join(path.Dir(runtime.Path), name) && slices.Equal(other.Args, runtime.Args)
}
