package e2e

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/cluster/etcdtest"
)

// A host of a cluster as docker-compose.cluster.yml brings it up, with its member of etcd.
func TestComposeCluster(t *testing.T) {
	d := newDeployment(t, openWorld(t), "docker-compose.isolated.yml", "../docker-compose.cluster.yml")
	joinAlone(t, d)
	d.up(t)
	eventually(t, "the host takes a user", func() bool {
		_, err := d.client.Put(context.Background(), "worker", types.Registration{UserID: "worker"})
		return err == nil
	})
	if out := d.sh(t, "worker", "uname -r"); !strings.Contains(out, "gvisor") {
		t.Errorf("%q", out)
	}
	p := d.startProcess(t, "worker", types.StartProcess{Name: "counter", Command: counting})
	prints(t, p, "line 3\n")

	fence := d.container(t, "fence")
	if err := syscall.Kill(fence.State.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "there is another fence", func() bool {
		now := d.container(t, "fence").State
		return now.Running && now.Pid != fence.State.Pid
	})
	lines := strings.Count(logOf(t, p), "\n")
	eventually(t, "the process goes on", func() bool { return strings.Count(logOf(t, p), "\n") > lines })

	for _, service := range []string{"sandboxd", "fence"} { // neither is started again, as somebody has killed it
		if err := d.engine.ContainerKill(t.Context(), d.container(t, service).ID, "SIGKILL"); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the guard has killed the process", func() bool {
		list := d.processContainers(t)
		return len(list) == 1 && list[0].State == "exited"
	})
	d.client.Close()
	d.compose(t, "up", "--detach")
	eventually(t, "the host takes its users again", func() bool {
		out, err := d.client.Exec(context.Background(), "worker", types.Exec{Command: "echo here"})
		return err == nil && out.Stdout == "here\n"
	})
}

// joinAlone makes the deployment a cluster of one host, at an address of the loopback that no other test has.
func joinAlone(t *testing.T, d *deployment) {
	t.Helper()
	etcd, err := etcdtest.Program()
	if err != nil {
		t.Fatal(err)
	}
	number := make([]byte, 3)
	_, _ = rand.Read(number) // it never fails
	address := fmt.Sprintf("127.%d.%d.%d", 64+number[0]%64, number[1], 1+number[2]%254)
	for _, args := range [][]string{{"init"}, {"join", "host-1", address, "--settings", d.path("etc/settings.json")}} {
		cmd := exec.Command(filepath.Join(binaries, "sandboxd"), append(append([]string{"cluster"}, args...), "--dir", d.path("etc/cluster"))...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", args, err, out)
		}
	}
	text := strings.ReplaceAll(readText(t, d.path("etc/settings.json")), d.path("etc"), "/etc/daycare-sandbox")
	if err := os.WriteFile(d.path("etc/settings.json"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	d.environ = append(d.environ, "COMPOSE_PROFILES=etcd", "SANDBOX_OOM_SCORE_ADJ=0", "SANDBOX_ETCD="+etcd, "SANDBOX_ETCD_DIR="+d.path("etcd"),
		"SANDBOX_HOST=host-1", "SANDBOX_ADDRESS="+address, "SANDBOX_ETCD_MEMBERS=host-1=https://"+address+":2380")
}
