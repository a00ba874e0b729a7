// Package probes has the checks of doctor for a host: it asks the host, its Docker, the service's
// own process and, in a cluster, the other hosts what the checks of internal/cli/doctor want to
// know. It changes nothing, except that it makes files in usersDir for a moment where it checks a
// cluster's homes.
//
// host.go asks the host and Docker, tcp.go what listens, cluster.go etcd and the other hosts,
// leftovers.go what services that are gone have left, and settings.go finds the settings that all
// is checked against.
package probes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dnsfilter"
	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/images"
	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/cgroup"
	"github.com/daycare-run/sandbox/internal/cli/doctor"
	"github.com/daycare-run/sandbox/internal/egress"
	"github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/version"
)

// Host returns the checks that need no service. Without settings there is nothing to check a host
// against. close releases what the checks use.
func Host(s *Settings, probeName string) (checks []doctor.Check, close func()) {
	checks = []doctor.Check{doctor.Settings(s.From, s.Err), doctor.Rights(os.Geteuid())}
	if s.Err != nil {
		return checks, func() {}
	}
	host := &dockerHost{settings: s, root: os.Geteuid() == 0}
	host.client, host.err = engine.Connect(s.Docker.SocketPath)
	host.inspect = sync.OnceValues(host.ask)
	s.AskDocker = func(context.Context) (engine.Info, error) { return host.inspect() }
	checks = append(checks, host.checks()...)
	checks = append(checks, networkChecks(s, probeName, host.root)...)
	const service = 0 // its uid
	checks = append(checks, doctor.Socket(s.Listen, filepath.Dir(s.Listen),
		access.SocketMode(s.Access.PeerUIDs(service), service), lookAt))
	checks = append(checks, tcpChecks(s, servicePID(s.Listen))...)
	each, user := int(s.Limits.PIDs), s.Quotas.PerUser
	checks = append(checks,
		doctor.Folder("usersDir", s.UsersDir, lookAt),
		doctor.Folder("dataDir", s.DataDir, lookAt),
		doctor.Disk("usersDir", s.UsersDir, spaceAt),
		doctor.Disk("dataDir", s.DataDir, spaceAt),
		doctor.Disk("engine", "Docker's root", host.space),
		doctor.IdleMemory(idleMemory(s)),
		doctor.KernelLimits(each*(user.Containers+user.Processes), each*int(s.Limits.OpenFiles),
			sysctl),
		doctor.OpenFiles(s.AskDocker, func() (string, uint64, error) { return mayOpen("/proc") }),
		doctor.Leftovers(host.root, host.leftovers))
	clocks := doctor.Clocks{Now: time.Now(), Built: version.Read().Time, Synced: clockIsSynced}
	return append(checks, clocks.Right(s.AskDocker)), host.close
}

// idleMemory checks whether the service, or this program if none runs, can reclaim the memory of
// frozen containers.
func idleMemory(s *Settings) func() (doctor.Memory, error) {
	return func() (doctor.Memory, error) {
		host := cgroup.ThisHost()
		if pid := servicePID(s.Listen); pid != 0 { // the service may see the control groups at another path
			host.ControlGroups = fmt.Sprintf("/proc/%d/root%s", pid, host.ControlGroups)
		}
		swap, err := host.Swap()
		return doctor.Memory{
			Wanted: s.Idle.ReclaimAfter > 0 && s.Idle.FreezeAfter > 0, Compressed: swap.Compressed,
			Disk: swap.Disk, Fault: host.MayReclaim(),
		}, err
	}
}

// dockerHost is Docker as the checks see it.
type dockerHost struct {
	settings *Settings
	root     bool // the checks run as root
	client   *engine.Client
	err      error // from connecting
	inspect  func() (engine.Info, error)
}

func (h *dockerHost) close() {
	if h.client != nil {
		_ = h.client.Close()
	}
}

func (h *dockerHost) ask() (engine.Info, error) {
	if h.err != nil {
		return engine.Info{}, h.err
	}
	// Docker's client does not distinguish missing permission from a daemon that is down.
	if err := unix.Access(h.settings.Docker.SocketPath, unix.W_OK); errors.Is(err,
		fs.ErrPermission) {
		return engine.Info{}, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	return engine.NewDocker(h.client).Info(ctx)
}

// checks returns the checks of Docker itself, its runtimes and the image.
func (h *dockerHost) checks() []doctor.Check {
	s := h.settings
	weaker, unused := s.Docker.EnableWeakerNestedSandbox, ""
	if s.EventsSocket == "" {
		unused = "eventsSocket is empty, so that no call may have @events"
	}
	checks := []doctor.Check{
		doctor.DockerAnswers(s.Docker.SocketPath, s.AskDocker),
		doctor.RuntimeKnown("docker.runtime", s.Docker.Runtime, "", weaker, s.AskDocker,
			programVersion),
		doctor.OfflineRuntime(s.Docker.Runtime, s.AskDocker),
		doctor.LinkedRuntime(s.Docker.Runtime, s.AskDocker, executable),
		doctor.FreezingRuntime(s.Docker.Runtime, s.AskDocker),
		doctor.BootPrograms(s.Docker.Runtime, s.AskDocker, executable),
	}
	if s.Docker.EventsRuntime != s.Docker.Runtime {
		checks = append(checks, doctor.RuntimeKnown("docker.eventsRuntime", s.Docker.EventsRuntime,
			unused, weaker, s.AskDocker, programVersion))
	}
	return append(checks, doctor.ImageThere(s.Docker.Reference(), images.Version, s.AskDocker,
		func(ctx context.Context) (string, error) {
			found, err := images.NewFinder(h.client, s.Docker.Reference()).Find(ctx)
			return found.Version, err
		}))
}

func (h *dockerHost) space(string) (doctor.Space, error) {
	info, err := h.inspect()
	if err != nil {
		return doctor.Space{}, errors.New("no answer from Docker")
	}
	return spaceAt(info.Root)
}

func (h *dockerHost) leftovers(ctx context.Context) ([]string, error) {
	if _, err := h.inspect(); err != nil {
		return nil, errors.New("no answer from Docker")
	}
	belongings, err := dockerexec.Belongings(ctx, engine.NewDocker(h.client))
	if err != nil {
		return nil, err
	}
	shims, err := dockerexec.Owner{}.ForgottenShims(ctx, engine.NewDocker(h.client))
	return leftovers(belongings, shims), err
}

// networkChecks returns the checks of rules, forwarding, addresses and resolvers.
func networkChecks(s *Settings, probeName string, root bool) []doctor.Check {
	checks := []doctor.Check{
		doctor.RulesUsable(root, s.Docker.EnableWeakerNestedSandbox, func() error {
			return egress.Probe(s.Egress.Name)
		}),
		doctor.Forwarding(sysctl),
		ownAddresses(s),
	}
	for _, u := range resolvers(s) {
		checks = append(checks, u.Resolvers(probeName, dnsfilter.Ask)...)
	}
	return append(checks, doctor.NameserverPort(takeNameserverPort))
}

// ownAddresses asks the cloud's metadata service, as the service does when it starts.
func ownAddresses(s *Settings) doctor.Check {
	var ask func(context.Context) ([]string, error)
	if s.Egress.AskMetadata {
		ask = func(ctx context.Context) (list []string, _ error) {
			addrs, err := egress.PublicAddresses(ctx, egress.MetadataServer)
			for _, addr := range addrs {
				list = append(list, addr.String())
			}
			return list, err
		}
	}
	return doctor.OwnAddresses(s.Egress.OwnAddresses, ask)
}

// resolvers returns the DNS servers of both profiles, each server once.
func resolvers(s *Settings) []doctor.Upstreams {
	isolated := doctor.Upstreams{Key: "docker.isolatedDnsServers",
		Servers: s.Docker.IsolatedDNSServers}
	local := doctor.Upstreams{Key: "docker.localDnsServers", Servers: s.Docker.LocalDNSServers}
	if len(local.Servers) == 0 {
		if len(s.Docker.AllowLocalNetworkingForUsers) == 0 {
			return []doctor.Upstreams{isolated} // nothing queries the host's own resolvers
		}
		local.Servers, local.Err = egress.HostResolvers()
		local.Key += " (the host's own)"
	}
	return []doctor.Upstreams{isolated, local}
}

// programVersion returns the first line of a program's version output.
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

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

// takeNameserverPort binds port 53 of a loopback address that nothing else uses, and releases it.
func takeNameserverPort() error {
	nobodys := fmt.Sprintf("127.53.%d.%d:53", rand.N(256), rand.N(256)) // another doctor may be looking, too
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

// spaceAt returns the space of the filesystem that path is on, or will be on.
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
	size, journal := uint64(s.Bsize), true
	if s.Type == unix.EXT4_SUPER_MAGIC {
		journal = journaled(path)
	}
	// Root may use the reserved blocks, but users' commands may not.
	return doctor.Space{Bytes: s.Blocks * size, FreeBytes: s.Bavail * size, Files: s.Files,
		FreeFiles: s.Ffree, NoJournal: !journal}, nil
}

// journaled reports whether the ext4 at path has a journal, or cannot be told about. Only one with a
// journal has a mode for its data among its options in /proc.
func journaled(path string) bool {
	var at unix.Stat_t
	if unix.Stat(path, &at) != nil {
		return true
	}
	device, err := os.Readlink(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(at.Dev), unix.Minor(at.Dev)))
	if err != nil {
		return true
	}
	options, err := os.ReadFile("/proc/fs/ext4/" + filepath.Base(device) + "/options")
	return err != nil || bytes.Contains(options, []byte("\ndata="))
}

// mayOpen returns the program that starts containers, containerd or else dockerd, and how many files
// it may have open. Programs of this name in containers do not count.
func mayOpen(proc string) (program string, limit uint64, _ error) {
	limits, err := filepath.Glob(proc + "/[0-9]*/limits")
	if err != nil {
		return "", 0, err
	}
	own, _ := os.Readlink(proc + "/self/ns/pid")
	for _, file := range limits {
		dir := filepath.Dir(file)
		comm, _ := os.ReadFile(dir + "/comm")
		text, err := os.ReadFile(file)
		name := strings.TrimSpace(string(comm))
		if err != nil || name != "containerd" && (name != "dockerd" || program != "") {
			continue // it has ended, or is another program
		}
		if namespace, _ := os.Readlink(dir + "/ns/pid"); namespace != own {
			continue
		}
		_, line, _ := strings.Cut(string(text), "Max open files")
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		// A program in Go, as gVisor's are, raises the first number to the second when it starts.
		if limit, err = strconv.ParseUint(fields[1], 10, 64); err != nil {
			limit = math.MaxUint64 // "unlimited"
		}
		if program = name; name == "containerd" {
			break
		}
	}
	if program == "" {
		return "", 0, errors.New("neither containerd nor dockerd is seen here")
	}
	return program, limit, nil
}

func clockIsSynced() (bool, error) {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	if err != nil {
		return false, fmt.Errorf("cannot ask the kernel whether its clock is kept right: %w", err)
	}
	return state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0, nil
}
