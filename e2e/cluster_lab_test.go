package e2e

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netns"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/cluster/etcdtest"
)

// clusterLab is three hosts on one bridge, each a network namespace with a Docker daemon, an etcd, a fence and a sandboxd of
// its own. They see one folder of homes, each through a filesystem of its own (e2e/loopback), whose caches know nothing of
// what the others do.
type clusterLab struct {
	hub   netns.NsHandle // has the bridge
	dir   string
	hosts []*clusterHost
}

type clusterHost struct {
	*lab
	name, address string
	engine        *privateEngine
	fence         *program
	etcd          *program
	homes         *program // serves its view of them
	guards        []int    // those of its fences
	settings      []string
	current       []string // the environment of this version's programs
}

// openCluster starts it as the version whose programs are in a folder; empty is this one.
func openCluster(t *testing.T, runtime, from string) *clusterLab {
	t.Helper()
	begin(t)
	c := &clusterLab{}
	var err error
	if c.dir, err = os.MkdirTemp("", "cluster-"); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(c.dir, 0o711); err != nil {
		t.Fatal(err)
	}
	mkdir(t, c.dir+"/users")
	c.layBridge(t)
	t.Cleanup(func() { c.close(t) })
	certificates := filepath.Join(c.dir, "certificates")
	run := func(argv ...string) {
		if out, err := exec.Command(filepath.Join(binaries, "sandboxd"), append([]string{"cluster", "--dir", certificates}, argv...)...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", argv, err, out)
		}
	}
	run("init")
	for i := range 3 {
		h := &clusterHost{name: fmt.Sprintf("host-%d", i+1), address: fmt.Sprintf("10.77.0.%d", 11+i)}
		c.hosts = append(c.hosts, h)
		run("issue", h.name, h.address)
		h.engine = layEngine(t, map[string]any{"bridge": "none", "iptables": false, "ip-masq": false})
		c.plug(t, h, i)
	}
	for _, h := range c.hosts {
		c.diskOfEtcd(t, h)
		h.startEtcd(t, c, certificates)
	}
	c.showHomes(t)
	tokens := filepath.Join(certificates, "tokens.json")
	if err := os.WriteFile(tokens, []byte(`{"tokens":[{"name":"of-tess","token":"`+scopedToken+`","users":["tess"]},{"name":"anne","token":"`+annesKey+`"},{"name":"ben","token":"`+bensKey+`"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, h := range c.hosts {
		h.engine.start(t)
		h.engine.place.giveImage(t, "small:latest", "/usr/bin/bash", "/usr/lib/x86_64-linux-gnu/libtinfo.so.6", "/usr/bin/cat", "/usr/bin/perl", "/usr/lib/x86_64-linux-gnu/libcrypt.so.1", "/usr/lib/x86_64-linux-gnu/libm.so.6")
		at := func(name string) string { return filepath.Join(certificates, name) }
		h.settings = append(runtimeSettings(runtime),
			"SANDBOXD_DOCKER_IMAGE=small", "SANDBOXD_POOL_SIZE=1", "SANDBOXD_USERS_DIR="+c.homesAt(h), "SANDBOXD_CLUSTER_NAME="+h.name,
			"SANDBOXD_CLUSTER_ETCD="+c.endpoints(), "SANDBOXD_CLUSTER_LISTEN="+h.address+":7483",
			"SANDBOXD_CLUSTER_CA_FILE="+at("ca.crt"), "SANDBOXD_CLUSTER_CERT_FILE="+at(h.name+".crt"),
			"SANDBOXD_CLUSTER_KEY_FILE="+at(h.name+".key"), "SANDBOXD_CLUSTER_SEALING_KEY_FILE="+at("sealing.key"),
			"SANDBOXD_TCP_LISTEN="+h.address+":7480", "SANDBOXD_TCP_CERT_FILE="+at(h.name+".crt"), "SANDBOXD_TCP_KEY_FILE="+at(h.name+".key"),
			"SANDBOXD_TCP_TOKENS_FILE="+tokens, "SANDBOXD_E2B_LISTEN="+h.address+":7482", "SANDBOXD_E2B_DOMAIN=boxes.test",
			"SANDBOXD_DOCKER_ISOLATED_DNS_SERVERS="+clusterResolver(), "SANDBOXD_EGRESS_ALSO_PUBLIC="+clusterInternet().Public.String(),
		)
		if h.lab, err = settledLab(t, runDir, h.engine.place, h.settings); err != nil {
			t.Fatal(err)
		}
		if h.from, h.current = from, h.environ; from != os.Getenv("SANDBOX_E2E_FROM") { // it knows no E2B of several hosts
			h.environ = slices.DeleteFunc(slices.Clone(h.environ), func(v string) bool { return strings.HasPrefix(v, "SANDBOXD_E2B_") })
		}
		if err := h.start(); err != nil {
			t.Fatal(err)
		}
		h.startFence(t)
	}
	for _, h := range c.hosts {
		eventually(t, "each host knows all", func() bool { return h.knows(c) })
	}
	return c
}

// homesAt is where a host sees the homes.
func (c *clusterLab) homesAt(h *clusterHost) string { return filepath.Join(c.dir, "at-"+h.name) }

// showHomes has each host see them.
func (c *clusterLab) showHomes(t *testing.T) {
	t.Helper()
	loopback := buildLoopback(t, c.dir)
	for _, h := range c.hosts {
		h.homes = h.engine.place.show(t, loopback, c.dir+"/users", c.homesAt(h))
	}
}

// buildLoopback builds e2e/loopback in a folder.
func buildLoopback(t *testing.T, dir string) (program string) {
	t.Helper()
	program = filepath.Join(dir, "loopback")
	build := exec.Command("go", "build", "-o", program, "./loopback")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return program
}

// show has a folder be seen at another place, through a filesystem of its own, until that is unmounted.
func (p *place) show(t *testing.T, loopback, folder, at string) *program {
	t.Helper()
	mkdir(t, at)
	putFile(t, folder+"/.there", "")
	shows := p.program(t, os.Environ(), loopback, folder, at)
	eventually(t, folder+" is seen at "+at, func() bool {
		select {
		case <-shows.exited:
			t.Fatalf("%s", shows.log)
		default:
		}
		return exists(at + "/.there")
	})
	return shows
}

func (c *clusterLab) endpoints() string {
	var all []string
	for _, h := range c.hosts {
		all = append(all, "https://"+h.address+":2379")
	}
	return strings.Join(all, ",")
}

// etcdAt is where a host's member of etcd has its data.
func (c *clusterLab) etcdAt(h *clusterHost) string { return filepath.Join(c.dir, "etcd-"+h.name) }

func (h *clusterHost) startEtcd(t *testing.T, c *clusterLab, certificates string) {
	t.Helper()
	server, err := etcdtest.Program()
	if err != nil {
		t.Fatal(err)
	}
	var members []string
	for _, other := range c.hosts {
		members = append(members, other.name+"=http://"+other.address+":2380")
	}
	client, peer := "https://"+h.address+":2379", "http://"+h.address+":2380"
	h.etcd = h.engine.place.program(t, os.Environ(), server, "--name", h.name, "--data-dir", c.etcdAt(h),
		"--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
		"--initial-cluster", strings.Join(members, ","), "--client-cert-auth", "--trusted-ca-file", filepath.Join(certificates, "ca.crt"),
		"--cert-file", filepath.Join(certificates, h.name+".crt"), "--key-file", filepath.Join(certificates, h.name+".key"),
		"--unsafe-no-fsync", "--log-level", "error")
}

func (h *clusterHost) startFence(t *testing.T) {
	t.Helper()
	h.fence = h.place.program(t, h.environ, filepath.Join(cmp.Or(h.from, binaries), "sandboxd"), "fence")
	eventually(t, "the fence has a guard", func() bool {
		list := childrenOf(h.fence.cmd.Process.Pid)
		h.guards = append(h.guards, list...)
		return len(list) > 0
	})
}

// knows reports whether the host has joined and knows the others.
func (h *clusterHost) knows(c *clusterLab) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	list, err := h.client.Nodes(ctx)
	return err == nil && len(list.Nodes) == len(c.hosts) && !slices.ContainsFunc(list.Nodes, func(n types.Node) bool { return n.Lost })
}

// come has all that a host may have lost run again. So has every other one, as systemd would: on a busy machine a fence may have
// killed a service that no scenario has touched.
func (c *clusterLab) come(t *testing.T, h *clusterHost) {
	t.Helper()
	c.cut(t, h, false)
	for _, h := range c.hosts {
		h.revive(t, c)
	}
	for _, other := range c.hosts {
		eventually(t, "the host is back", func() bool { return other.knows(c) })
	}
}

// revive starts what has ended on a host.
func (h *clusterHost) revive(t *testing.T, c *clusterLab) {
	t.Helper()
	select {
	case <-h.engine.exited:
		h.engine.start(t)
	default:
	}
	select {
	case <-h.exited:
		if err := h.start(); err != nil {
			t.Fatal(err)
		}
	default:
	}
	if h.fence.hasExited() {
		h.startFence(t)
	}
	if h.etcd.hasExited() {
		h.startEtcd(t, c, filepath.Join(c.dir, "certificates"))
	}
}

func (c *clusterLab) close(t *testing.T) {
	for _, h := range c.hosts {
		if t.Failed() && h.lab != nil {
			t.Logf("%s:\n%s", h.name, h.log.tail())
			if h.fence != nil {
				t.Logf("its fence:\n%s", h.fence.log.tail())
			}
		}
	}
	for _, h := range c.hosts {
		if h.fence != nil {
			h.fence.kill()
		}
		for _, pid := range h.guards {
			if strings.Contains(holds(fmt.Sprintf("/proc/%d/cmdline", pid)), "--guard-of") {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		if h.lab != nil {
			h.lab.close()
		}
		for _, p := range []*program{h.etcd, h.homes} {
			if p != nil {
				p.kill()
			}
		}
		for _, at := range []string{c.homesAt(h), c.etcdAt(h)} {
			_ = syscall.Unmount(at, syscall.MNT_DETACH)
		}
		if err := h.engine.close(); err != nil {
			t.Errorf("the engine's files are left: %v", err)
		}
		if h.lab != nil {
			h.removeGroup()
		}
	}
	_ = c.hub.Close()
	if err := removeTree(c.dir); err != nil {
		t.Error(err)
	}
}

func killed(p *exec.Cmd) { _ = p.Process.Signal(syscall.SIGKILL) }
