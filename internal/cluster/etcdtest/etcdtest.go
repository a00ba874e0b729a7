// Package etcdtest starts a real etcd for tests, on a loopback port and in a folder of its own.
package etcdtest

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// Program is the server, which scripts/setup.sh etcd builds.
func Program() (string, error) {
	_, here, _, _ := runtime.Caller(0)
	build := filepath.Join(filepath.Dir(here), "../../../tools/etcd/build.sh")
	dir, err := exec.Command(build, "path").Output()
	if err != nil {
		return "", fmt.Errorf("tools/etcd/build.sh: %w", err)
	}
	program := filepath.Join(strings.TrimSpace(string(dir)), "etcd")
	if _, err := os.Stat(program); err != nil {
		return "", fmt.Errorf("etcd is not built (scripts/setup.sh etcd builds it): %w", err)
	}
	return program, nil
}

// Start runs a server of one member until the test ends, and returns a client.
func Start(t testing.TB) (client *clientv3.Client, endpoint string) {
	t.Helper()
	program, err := Program()
	if err != nil {
		t.Fatal(err)
	}
	endpoint, peer := "http://"+free(t), "http://"+free(t)
	var log bytes.Buffer
	server := exec.Command(program, "--name", "one", "--data-dir", t.TempDir(), "--listen-client-urls", endpoint, "--advertise-client-urls", endpoint,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "one="+peer, "--unsafe-no-fsync", "--log-level", "error")
	server.Stdout, server.Stderr = &log, &log
	server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	client, err = clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = client.Close()
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := client.Get(ctx, "there"); err != nil {
		t.Fatalf("etcd does not answer: %v: %s", err, log.String())
	}
	return client, endpoint
}

// free is an address of the loopback that nobody listens at.
func free(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}
