package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dnsfilter"
	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/images"
	"github.com/daycare-run/sandbox/internal/cli/doctor"
	"github.com/daycare-run/sandbox/internal/dockerd"
	"github.com/daycare-run/sandbox/internal/egress"
	"github.com/daycare-run/sandbox/internal/version"
)

// hostChecks are those that need no service. Without settings there is nothing to hold a host against. close
// gives up what they use.
func hostChecks(s *doctorSettings, probeName string) (checks []doctor.Check, close func()) {
	checks = []doctor.Check{doctor.Settings(s.from, s.err), doctor.Rights(os.Geteuid())}
	if s.err != nil {
		return checks, func() {}
	}
	root, weaker := os.Geteuid() == 0, s.Docker.EnableWeakerNestedSandbox
	docker, err := dockerd.Connect(s.Docker.SocketPath)
	close = func() {
		if docker != nil {
			_ = docker.Close()
		}
	}
	ask := sync.OnceValues(func() (dockerd.Info, error) {
		if err != nil {
			return dockerd.Info{}, err
		}
		// The engine's client does not tell this from an engine that is down.
		if err := unix.Access(s.Docker.SocketPath, unix.W_OK); errors.Is(err, fs.ErrPermission) {
			return dockerd.Info{}, err
		}
		ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
		defer cancel()
		return dockerd.Inspect(ctx, docker)
	})
	s.engine = func(context.Context) (doctor.Engine, error) { return asEngine(ask()) }
	unused := ""
	if s.EventsSocket == "" {
		unused = "eventsSocket is empty, so that no call may have @events"
	}
	checks = append(checks,
		doctor.EngineAnswers(s.Docker.SocketPath, s.engine),
		doctor.RuntimeKnown("docker.runtime", s.Docker.Runtime, "", weaker, s.engine, programVersion))
	if s.Docker.EventsRuntime != s.Docker.Runtime {
		checks = append(checks, doctor.RuntimeKnown("docker.eventsRuntime", s.Docker.EventsRuntime, unused, weaker, s.engine, programVersion))
	}
	checks = append(checks,
		doctor.ImageThere(s.Docker.Reference(), images.Version, s.engine, func(ctx context.Context) (string, error) {
			found, err := images.NewFinder(docker, s.Docker.Reference()).Find(ctx)
			return found.Version, err
		}),
		doctor.RulesUsable(root, weaker, func() error { return egress.Probe(s.Egress.Name) }),
		doctor.Forwarding(func(name string) (string, error) {
			text, err := os.ReadFile(filepath.Join("/proc/sys", name))
			return string(text), err
		}),
	)
	checks = append(checks, ownAddresses(s))
	for _, u := range resolvers(s) {
		checks = append(checks, u.Resolvers(probeName, dnsfilter.Ask)...)
	}
	checks = append(checks,
		doctor.NameserverPort(takeNameserverPort),
		doctor.Socket(s.Listen, filepath.Dir(s.Listen), lookAt))
	checks = append(checks, tcpChecks(s, servicePID(s.Listen))...)
	checks = append(checks,
		doctor.Folder("usersDir", s.UsersDir, lookAt),
		doctor.Folder("dataDir", s.DataDir, lookAt),
		doctor.Disk("usersDir", s.UsersDir, spaceAt),
		doctor.Disk("dataDir", s.DataDir, spaceAt))
	checks = append(checks, doctor.Disk("engine", "the engine's root", func(string) (doctor.Space, error) {
		info, err := ask()
		if err != nil {
			return doctor.Space{}, errors.New("the engine does not answer")
		}
		return spaceAt(info.Root)
	}))
	checks = append(checks, doctor.Leftovers(root, func(ctx context.Context) ([]string, error) {
		if _, err := ask(); err != nil {
			return nil, errors.New("the engine does not answer")
		}
		belongings, err := dockerexec.Belongings(ctx, docker)
		if err != nil {
			return nil, err
		}
		shims, err := dockerexec.ForgottenShims(ctx, docker, "")
		return leftovers(belongings, shims), err
	}))
	clocks := doctor.Clocks{Now: time.Now, Built: version.Read().Time, Synced: clockIsSynced}
	return append(checks, clocks.Right(s.engine)), close
}

func asEngine(info dockerd.Info, err error) (doctor.Engine, error) {
	return doctor.Engine{Version: info.Version, API: info.API, Runtimes: info.Programs, GVisor: info.GVisor, Ahead: info.Ahead}, err
}

// ownAddresses asks the cloud, as the service does when it starts.
func ownAddresses(s *doctorSettings) doctor.Check {
	var ask func(context.Context) []string
	if s.Egress.AskMetadata {
		ask = func(ctx context.Context) (list []string) {
			for _, addr := range egress.PublicAddresses(ctx, egress.MetadataServer) {
				list = append(list, addr.String())
			}
			return list
		}
	}
	return doctor.OwnAddresses(s.Egress.OwnAddresses, ask)
}

// resolvers are those of both profiles, each server once.
func resolvers(s *doctorSettings) []doctor.Upstreams {
	isolated := doctor.Upstreams{Key: "docker.isolatedDnsServers", Servers: s.Docker.IsolatedDNSServers}
	local := doctor.Upstreams{Key: "docker.localDnsServers", Servers: s.Docker.LocalDNSServers}
	if len(local.Servers) == 0 {
		if len(s.Docker.AllowLocalNetworkingForUsers) == 0 {
			return []doctor.Upstreams{isolated} // nobody asks the host's own
		}
		local.Servers, local.Err = egress.HostResolvers()
		local.Key += " (the host's own)"
	}
	return []doctor.Upstreams{isolated, local}
}

// programVersion is the first line of what a program says of itself.
func programVersion(ctx context.Context, program string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, "--version").Output()
	if err != nil {
		return "", err
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return line, nil
}

// takeNameserverPort takes port 53 of a loopback address that nobody has, and gives it back.
func takeNameserverPort() error {
	const nobodys = "127.53.53.53:53"
	udp, err := net.ListenPacket("udp4", nobodys)
	if err != nil {
		return err
	}
	defer udp.Close()
	tcp, err := net.Listen("tcp4", nobodys)
	if err != nil {
		return err
	}
	return tcp.Close()
}

func lookAt(path string) (doctor.Place, error) {
	info, err := os.Stat(path)
	if err != nil {
		return doctor.Place{}, err
	}
	place := doctor.Place{Mode: info.Mode()}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		place.UID = stat.Uid
	}
	if os.Geteuid() == 0 {
		place.Unwritable = unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK, unix.AT_EACCESS)
	}
	return place, nil
}

// spaceAt is that of the filesystem that a path is on, or will be.
func spaceAt(path string) (doctor.Space, error) {
	var s unix.Statfs_t
	err := unix.Statfs(path, &s)
	for errors.Is(err, fs.ErrNotExist) && path != "/" {
		path = filepath.Dir(path)
		err = unix.Statfs(path, &s)
	}
	if err != nil {
		return doctor.Space{}, fmt.Errorf("cannot look at the disk of %s: %w", path, err)
	}
	size := uint64(s.Bsize)
	// Root may use what is reserved, but the users' commands may not.
	return doctor.Space{Bytes: s.Blocks * size, FreeBytes: s.Bavail * size, Files: s.Files, FreeFiles: s.Ffree}, nil
}

func clockIsSynced() (bool, error) {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	if err != nil {
		return false, fmt.Errorf("cannot ask the kernel whether its clock is kept right: %w", err)
	}
	return state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0, nil
}
