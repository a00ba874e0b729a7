package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"

	"github.com/daycare-run/sandbox/internal/dockerd"
)

// cpuGroups is the cgroup v1 hierarchy of processor time, where it is mounted by itself.
const cpuGroups = "/sys/fs/cgroup/cpu"

// The share of each host leaves enough of the processors for callers and etcd.
const (
	sharePart   = 0.15
	sharePeriod = 20 * time.Millisecond
	shareWindow = 4 * time.Second
	sharedUsers = 6 // two for each host
	callsOfUser = 4 // at a time
	shareRounds = 3 // of each way, for each host
	sharedImage = "bench"
)

// engine is a host's own Docker, in one control group with the host's containers, its service and
// its fence.
type engine struct {
	group   string
	process *exec.Cmd
	docker  *client.Client
}

// The scripts enter a host's control group and make it the root of the visible ones. The network is
// etcd's, because a dockerd without a bridge removes the bridge that it finds.
const (
	firstInside = `set -e; group=$1 network=$2; shift 2; echo $$ >"$group/cgroup.procs"
exec nsenter --net="/proc/$network/ns/net" unshare --mount --cgroup sh -ec 'umount ` + cpuGroups + `; mount -t cgroup -o cpu cgroup ` + cpuGroups + `; exec "$@"' sh "$@"`
	laterInside = `set -e; group=$1 first=$2; shift 2; echo $$ >"$group/cgroup.procs"; exec nsenter --net --mount --cgroup --target "$first" "$@"`
)

// startEngine starts a Docker for a service, and makes the service use it.
func (c *clusterLab) startEngine(ctx context.Context, s *service) (_ *engine, err error) {
	e := &engine{group: filepath.Join(cpuGroups, filepath.Base(c.lab.dir)+"-"+s.egress)}
	if err := os.Mkdir(e.group, 0o755); err != nil {
		return e, fmt.Errorf("cannot limit hosts to a share of the processors, which needs control groups of version 1: %w", err)
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return e, err
	}
	info, err := c.docker.Info(ctx)
	if err != nil {
		return e, err
	}
	known := map[string]any{}
	for name, r := range info.Runtimes {
		if r.Path != "" && name != "runc" {
			known[name] = r.Runtime
		}
	}
	text, err := json.Marshal(map[string]any{"bridge": "none", "iptables": false, "ip-masq": false, "runtimes": known})
	if err != nil {
		return e, err
	}
	if err := os.WriteFile(s.path("daemon.json"), text, 0o600); err != nil {
		return e, err
	}
	socket := s.path("docker.sock")
	e.process = exec.Command("sh", "-c", firstInside, "sh", e.group, fmt.Sprint(c.etcd.Process.Pid), "dockerd", "--config-file", s.path("daemon.json"), "--host", "unix://"+socket,
		"--data-root", s.path("engine"), "--exec-root", s.path("engine-exec"), "--pidfile", s.path("engine.pid"))
	e.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	log, err := os.Create(s.path("engine.log"))
	if err != nil {
		return e, err
	}
	defer log.Close()
	e.process.Stdout, e.process.Stderr = log, log
	if err := e.process.Start(); err != nil {
		e.process = nil
		return e, err
	}
	if e.docker, err = dockerd.Connect(socket); err != nil {
		return e, err
	}
	own := *s.lab
	own.docker, s.lab = e.docker, &own
	s.within = []string{"sh", "-c", laterInside, "sh", e.group, fmt.Sprint(e.process.Process.Pid)}
	s.given = append(s.given, "SANDBOXD_DOCKER_SOCKET_PATH="+socket, "SANDBOXD_DOCKER_IMAGE="+sharedImage,
		fmt.Sprint("SANDBOXD_LIMITS_CPUS=", hostShare())) // the kernel allows a group no more than its parent has
	return e, c.giveImage(ctx, s)
}

// giveImage makes an image that holds only `true`, from the existing image, for a Docker without
// images.
func (c *clusterLab) giveImage(ctx context.Context, s *service) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	files := exec.CommandContext(ctx, "docker", "--host", "unix://"+engineSocket(), "run", "--rm", "--network", "none", "--entrypoint", "sh", imageRef, "-c",
		`tar -ch $(ldd /bin/true | grep -o '/[^ ]*') /bin/true`)
	content, err := files.Output()
	if err != nil {
		return fmt.Errorf("cannot take an image apart: %w", err)
	}
	for {
		if _, err = s.docker.Ping(ctx); err == nil {
			break
		}
		if ctx.Err() != nil {
			text, _ := os.ReadFile(s.path("engine.log"))
			return fmt.Errorf("a host's dockerd does not answer: %w: %s", err, text[max(0, len(text)-1000):])
		}
		time.Sleep(20 * time.Millisecond)
	}
	progress, err := s.docker.ImageImport(ctx, image.ImportSource{Source: bytes.NewReader(content), SourceName: "-"}, sharedImage, image.ImportOptions{})
	if err != nil {
		return err
	}
	defer progress.Close()
	var said bytes.Buffer
	if _, err = said.ReadFrom(progress); err == nil && strings.Contains(said.String(), "error") {
		err = errors.New(said.String())
	}
	return err
}

// hostShare returns a host's share, in processors.
func hostShare() float64 { return sharePart * float64(runtime.NumCPU()) }

// hold limits everything of a host to its share of the processors.
func (e *engine) hold() error {
	quota := time.Duration(hostShare() * float64(sharePeriod))
	return errors.Join(
		os.WriteFile(filepath.Join(e.group, "cpu.cfs_period_us"), fmt.Append(nil, sharePeriod.Microseconds()), 0),
		os.WriteFile(filepath.Join(e.group, "cpu.cfs_quota_us"), fmt.Append(nil, quota.Microseconds()), 0))
}

func (e *engine) close() error {
	if e.docker != nil {
		_ = e.docker.Close()
	}
	if e.process != nil {
		_ = e.process.Process.Signal(syscall.SIGTERM)
		killing := time.AfterFunc(stopLimit, func() { _ = e.process.Process.Kill() })
		_ = e.process.Wait()
		killing.Stop()
	}
	return removeGroup(e.group)
}

// removeGroup removes a control group and those below it, once nothing runs there.
func removeGroup(dir string) (err error) {
	var groups []string
	_ = filepath.WalkDir(dir, func(name string, entry os.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			groups = append(groups, name)
		}
		return nil
	})
	for _, name := range slices.Backward(groups) {
		for range 100 { // its processes end a little later
			if err = os.Remove(name); err == nil || errors.Is(err, fs.ErrNotExist) {
				err = nil
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	return err
}

// measureShared compares one host with all three.
func (c *clusterLab) measureShared(ctx context.Context, found *clustered) error {
	holders := map[string]*clusterHost{}
	users := make([]string, sharedUsers)
	for i := range users {
		user := fmt.Sprint("shared-", i)
		users[i] = user
		if err := c.hosts[0].register(ctx, user); err != nil {
			return err
		}
		if _, err := c.hosts[0].exec(ctx, user, "true"); err != nil {
			return err
		}
		var err error
		if holders[user], _, err = c.holder(ctx, user); err != nil {
			return err
		}
	}
	for _, h := range c.hosts {
		if err := h.engine.hold(); err != nil {
			return err
		}
	}
	atHolder := func(user string, _ int) *clusterHost { return holders[user] }
	inTurn := func(_ string, turn int) *clusterHost { return c.hosts[turn%len(c.hosts)] }
	if _, err := execRate(ctx, users, inTurn); err != nil { // to warm up
		return err
	}
	for turn := range shareRounds * len(c.hosts) {
		one := c.hosts[turn%len(c.hosts)]
		ways := []shareWay{
			{into: &found.oneHost, door: atHolder,
				users: slices.DeleteFunc(slices.Clone(users), func(user string) bool { return holders[user] != one }),
				idle:  slices.DeleteFunc(slices.Clone(c.hosts), func(other *clusterHost) bool { return other == one })},
			{into: &found.allHosts, door: inTurn, users: users},
			{into: &found.ownDoors, door: atHolder, users: users},
		}
		for i := range ways {
			if err := ways[(turn+i)%len(ways)].measure(ctx); err != nil { // every way follows every other
				return err
			}
		}
	}
	return nil
}

// shareWay is a set of calls, each to the host that door returns; idle are the hosts that get no
// calls.
type shareWay struct {
	into  *speeds
	door  func(user string, turn int) *clusterHost
	users []string
	idle  []*clusterHost
}

func (w shareWay) measure(ctx context.Context) error {
	release, err := occupy(w.idle)
	if err != nil {
		return err
	}
	defer release()
	rate, err := execRate(ctx, w.users, w.door)
	*w.into = append(*w.into, rate)
	return err
}

// occupy makes hosts use up their shares of the processors until release is called. Where
// processors are idle, gVisor's threads spin for work. That would use up some of the only busy
// host's share, but not when all hosts are busy.
func occupy(hosts []*clusterHost) (release func(), err error) {
	var loops []*exec.Cmd
	release = func() {
		for _, loop := range loops {
			_ = loop.Process.Kill()
			_ = loop.Wait()
		}
	}
	for _, h := range hosts {
		loop := exec.Command("sh", "-c", `echo $$ >"$1/cgroup.procs" && while :; do :; done`, "sh", h.engine.group)
		if err := loop.Start(); err != nil {
			release()
			return nil, err
		}
		loops = append(loops, loop)
	}
	return release, nil
}

// execRate returns how many warm execs end per second; door returns the host that a call goes to.
func execRate(ctx context.Context, users []string, door func(user string, turn int) *clusterHost) (float64, error) {
	var calls sync.WaitGroup
	var ended atomic.Int64
	faults := make(chan error, len(users)*callsOfUser)
	begun := time.Now()
	for i := range cap(faults) {
		user := users[i%len(users)]
		calls.Go(func() {
			for turn := i; time.Since(begun) < shareWindow; turn++ {
				if _, err := door(user, turn).exec(ctx, user, "true"); err != nil {
					faults <- err
					return
				}
				ended.Add(1)
			}
		})
	}
	calls.Wait()
	took := time.Since(begun)
	close(faults)
	return float64(ended.Load()) / took.Seconds(), <-faults
}
