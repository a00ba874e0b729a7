package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/daycare-run/sandbox/client"
)

// clusterLab is three services, each with a fence, and an etcd of one member. They share one Docker,
// so Docker's own costs on several hosts are not included.
type clusterLab struct {
	*lab
	dir   string
	etcd  *exec.Cmd
	hosts []*clusterHost
}

type clusterHost struct {
	*service
	name  string
	fence *exec.Cmd
}

// clusterRuntime is the runtime under which this is measured: what several hosts add is the same
// under all runtimes.
const clusterRuntime = "runsc"

// withCluster starts the hosts, runs and removes them.
func (l *lab) withCluster(ctx context.Context, runtime string, run func(*clusterLab) error) (err error) {
	c := &clusterLab{lab: l, dir: filepath.Join(l.dir, fmt.Sprintf("cluster-%d", l.pass))}
	if err := os.MkdirAll(filepath.Join(c.dir, "users"), 0o755); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	endpoint, err := c.startEtcd(ctx)
	if err != nil {
		return err
	}
	if err := c.certify(ctx, "init"); err != nil {
		return err
	}
	for i := range 3 {
		if err := c.addHost(ctx, runtime, fmt.Sprint("host-", i+1), endpoint); err != nil {
			return err
		}
	}
	return errors.Join(c.together(ctx), run(c))
}

// certify runs `sandboxd cluster`.
func (c *clusterLab) certify(ctx context.Context, argv ...string) error {
	out, err := exec.CommandContext(ctx, filepath.Join(c.settings.bin, "sandboxd"), append([]string{"cluster", "--dir", c.dir}, argv...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("sandboxd cluster %s: %w: %s", argv[0], err, out)
	}
	return nil
}

func (c *clusterLab) startEtcd(ctx context.Context) (endpoint string, err error) {
	build, err := exec.CommandContext(ctx, "../tools/etcd/build.sh", "path").Output()
	if err != nil {
		return "", fmt.Errorf("cannot find etcd (run this in the folder bench): %w", err)
	}
	endpoint = "http://" + freeAddress()
	peer := "http://" + freeAddress()
	c.etcd = exec.Command(filepath.Join(string(bytes.TrimSpace(build)), "etcd"), "--name", "m", "--data-dir", filepath.Join(c.dir, "etcd"), "--listen-client-urls", endpoint,
		"--advertise-client-urls", endpoint, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "m="+peer, "--log-level", "error")
	c.etcd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.etcd.Start(); err != nil {
		c.etcd = nil
		return "", fmt.Errorf("etcd is not built (scripts/setup.sh bench builds it): %w", err)
	}
	return endpoint, ctx.Err()
}

// freeAddress returns a loopback address with a free port.
func freeAddress() string {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err.Error() // listening at this fails with the reason
	}
	defer free.Close()
	return free.Addr().String()
}

func (c *clusterLab) addHost(ctx context.Context, runtime, name, endpoint string) error {
	if err := c.certify(ctx, "issue", name, "127.0.0.1"); err != nil {
		return err
	}
	at := func(file string) string { return filepath.Join(c.dir, file) }
	s := &service{lab: c.lab, runtime: runtime, dir: at(name), egress: "b" + name}
	s.given = []string{
		"SANDBOXD_USERS_DIR=" + at("users"), "SANDBOXD_POOL_SIZE=0", "SANDBOXD_CLUSTER_NAME=" + name, "SANDBOXD_CLUSTER_ETCD=" + endpoint, "SANDBOXD_CLUSTER_LISTEN=" + freeAddress(),
		"SANDBOXD_CLUSTER_CA_FILE=" + at("ca.crt"), "SANDBOXD_CLUSTER_CERT_FILE=" + at(name+".crt"), "SANDBOXD_CLUSTER_KEY_FILE=" + at(name+".key"),
		"SANDBOXD_CLUSTER_SEALING_KEY_FILE=" + at("sealing.key"),
	}
	h := &clusterHost{service: s, name: name}
	c.hosts = append(c.hosts, h)
	return h.start(ctx)
}

// start starts the service and its fence.
func (h *clusterHost) start(ctx context.Context) error {
	h.ended = make(chan struct{})
	if err := h.launch(h.given); err != nil {
		return err
	}
	h.api = client.New(h.path("socket"))
	if err := h.awaitHealth(ctx); err != nil {
		return h.explain(err)
	}
	h.fence = h.command("--settings", h.path("settings.json"), "fence")
	h.fence.Env, h.fence.SysProcAttr = h.process.Env, &syscall.SysProcAttr{Setpgid: true}
	return h.fence.Start()
}

// lose ends everything of a host at once, as a power cut does.
func (h *clusterHost) lose() {
	_ = h.process.Process.Kill()
	h.endFence()
	<-h.ended
}

// endFence ends first the guard, which outlives the fence, and then the fence.
func (h *clusterHost) endFence() {
	for _, guard := range children(h.fence.Process.Pid) {
		_ = syscall.Kill(guard, syscall.SIGKILL)
	}
	_ = h.fence.Process.Kill()
	_ = h.fence.Wait()
}

// children returns the processes that a process has started.
func children(pid int) (list []int) {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, name := range threads {
		text, _ := os.ReadFile(name) // the thread may have ended
		for _, field := range strings.Fields(string(text)) {
			var child int
			if _, err := fmt.Sscan(field, &child); err == nil {
				list = append(list, child)
			}
		}
	}
	return list
}

// together waits until each host knows all hosts.
func (c *clusterLab) together(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, h := range c.hosts {
		for {
			list, err := h.api.Nodes(ctx)
			if err == nil && len(list.Nodes) == len(c.hosts) {
				break
			}
			if ctx.Err() != nil {
				return h.explain(fmt.Errorf("%s does not know the others: %w", h.name, ctx.Err()))
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	return nil
}

// close ends each host's fence, then its service, which removes the host's containers; etcd comes
// last.
func (c *clusterLab) close() (err error) {
	for _, h := range c.hosts {
		if h.fence != nil && h.fence.ProcessState == nil {
			h.endFence()
		}
		if h.process != nil && h.process.Process != nil {
			err = errors.Join(err, h.service.close())
		}
		h.removeGroups()
	}
	if c.etcd != nil {
		_ = c.etcd.Process.Kill()
		_ = c.etcd.Wait()
	}
	return err
}

// removeGroups removes the control groups that were made for the host's containers, which are named
// after its dataDir.
func (h *clusterHost) removeGroups() {
	sum := sha256.Sum256([]byte(h.path("data")))
	name := "daycaresandbox" + hex.EncodeToString(sum[:6]) + ".slice"
	all, _ := filepath.Glob("/sys/fs/cgroup/*/" + name)
	for _, group := range append(all, "/sys/fs/cgroup/"+name) {
		_ = removeGroup(group) // it may not exist
	}
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
