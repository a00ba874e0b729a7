package main

import (
	"bufio"
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/docker/docker/client"
	"golang.org/x/sys/unix"
)

// machine describes where a run took place.
type machine struct {
	date     time.Time
	cpu      string
	program  time.Duration // how long true takes, start and end
	cores    int
	memory   int64 // bytes
	kernel   string
	system   string
	engine   string
	runtimes []string // name and version
	image    string
}

func inspectMachine(ctx context.Context, docker *client.Client, runtimes []string) (machine, error) {
	info, err := docker.Info(ctx)
	if err != nil {
		return machine{}, fmt.Errorf("cannot ask the engine: %w", err)
	}
	m := machine{
		date: time.Now().UTC(), cpu: cpuModel(), cores: info.NCPU, memory: info.MemTotal,
		system: info.OperatingSystem, engine: info.ServerVersion,
	}
	var starts sample
	for range 200 {
		took, err := timed(exec.Command("true").Run)
		if err := starts.add(took, err); err != nil {
			return machine{}, fmt.Errorf("cannot start a program: %w", err)
		}
	}
	m.program = starts.median()
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return machine{}, fmt.Errorf("cannot ask for the kernel's name: %w", err)
	}
	m.kernel = unix.ByteSliceToString(name.Release[:])
	for _, runtime := range runtimes {
		m.runtimes = append(m.runtimes, runtime+" "+runtimeVersion(ctx, info.Runtimes[runtime].Path))
	}
	return m, nil
}

func cpuModel() string {
	file, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

// runtimeVersion returns the version in the first line of `runtime --version`. A runsc built from
// its Go module may not know its version, but its build information has it. For
// runsc-freezer that is the runsc beside it.
func runtimeVersion(ctx context.Context, program string) string {
	path, err := exec.LookPath(program)
	if err != nil {
		return "(version unknown)"
	}
	if out, err := exec.CommandContext(ctx, path, "--version").Output(); err == nil {
		first, _, _ := strings.Cut(string(out), "\n")
		fields := strings.Fields(first)
		if len(fields) > 0 && fields[len(fields)-1] != "VERSION_MISSING" {
			return fields[len(fields)-1]
		}
	}
	if filepath.Base(path) == "runsc-freezer" {
		path = filepath.Join(filepath.Dir(path), "runsc")
	}
	built, err := buildinfo.ReadFile(path)
	if err != nil {
		return "(version unknown)"
	}
	for _, module := range append(built.Deps, &built.Main) {
		if module.Path == "gvisor.dev/gvisor" {
			return module.Version
		}
	}
	return built.Main.Version
}
