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

	"github.com/daycare-run/sandbox/internal/waittest"
)

// Program returns the path of the server, which scripts/setup.sh tests builds.
func Program() (string, error) {
	_, here, _, _ := runtime.Caller(0)
	build := filepath.Join(filepath.Dir(here), "../../../tools/etcd/build.sh")
	dir, err := exec.Command(build, "path").Output()
	if err != nil {
		return "", fmt.Errorf("tools/etcd/build.sh: %w", err)
	}
	program := filepath.Join(strings.TrimSpace(string(dir)), "etcd")
	if _, err := os.Stat(program); err != nil {
		return "", fmt.Errorf("etcd is not built (scripts/setup.sh tests builds it): %w", err)
	}
	return program, nil
}

// Start runs a server of one member until the test ends, and returns a client.
func Start(t testing.TB) (client *clientv3.Client, endpoint string) {
	t.Helper()
	client, endpoints, _ := StartMembers(t, 1)
	return client, endpoints[0]
}

// member is one server.
type member struct {
	*exec.Cmd
	exited chan struct{}
	log    bytes.Buffer // to be read when it has exited
}

// StartMembers runs a server of so many members until the test ends, with further options. signal
// sends one of them a signal: SIGKILL ends it, SIGSTOP makes it silent until SIGCONT.
func StartMembers(t testing.TB, members int,
	options ...string) (client *clientv3.Client, endpoints []string,
	signal func(member int, sent syscall.Signal)) {
	t.Helper()
	program, err := Program()
	if err != nil {
		t.Fatal(err)
	}
	for try := 1; ; try++ { // another program may take a port that was free, such as for a connection of its own
		servers, endpoints, ended := start(t, program, members, options)
		for _, endpoint := range endpoints { // for a client that comes too early waits a second
			address := strings.TrimPrefix(endpoint, "http://")
			waittest.Comes(func() bool {
				conn, err := net.Dial("tcp", address)
				if err == nil {
					_ = conn.Close()
				}
				return err == nil || ended.Err() != nil
			})
		}
		client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close() })
		ctx, cancel := context.WithTimeout(ended, time.Minute)
		_, err = client.Get(ctx, "there")
		cancel()
		if err == nil {
			return client, endpoints, func(member int, sent syscall.Signal) {
				_ = servers[member].Process.Signal(sent)
				if sent == syscall.SIGKILL {
					<-servers[member].exited
				}
			}
		}
		for _, m := range servers {
			_ = m.Process.Kill()
			<-m.exited
		}
		if err = fmt.Errorf("etcd does not answer: %w: %s", err,
			&servers[0].log); ended.Err() == nil || try == 5 {
			t.Fatal(err)
		}
	}
}

// start starts the servers on free ports. The context ends when one of them does.
func start(t testing.TB, program string, members int,
	options []string) (servers []*member, endpoints []string, ended context.Context) {
	t.Helper()
	var peers, all []string
	for i := range members {
		endpoints, peers = append(endpoints, "http://"+free(t)), append(peers, "http://"+free(t))
		all = append(all, fmt.Sprintf("m%d=%s", i, peers[i]))
	}
	ended, end := context.WithCancel(context.Background())
	t.Cleanup(end)
	for i := range members {
		m := &member{exited: make(chan struct{})}
		m.Cmd = exec.Command(program, "--name", fmt.Sprint("m", i), "--data-dir", t.TempDir(),
			"--listen-client-urls", endpoints[i],
			"--advertise-client-urls", endpoints[i], "--listen-peer-urls", peers[i],
			"--initial-advertise-peer-urls", peers[i],
			"--initial-cluster", strings.Join(all, ","), "--unsafe-no-fsync", "--log-level",
			"error")
		if members == 1 { // which has nobody to wait for
			m.Args = append(m.Args, "--heartbeat-interval", "10", "--election-timeout", "100")
		}
		m.Args = append(m.Args, options...)
		m.Stdout, m.Stderr = &m.log, &m.log
		m.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := m.Start(); err != nil {
			t.Fatal(err)
		}
		go func() {
			_ = m.Wait()
			close(m.exited)
			end()
		}()
		servers = append(servers, m)
		t.Cleanup(func() { _ = m.Process.Kill(); <-m.exited })
	}
	return servers, endpoints, ended
}

// free returns a loopback address that nothing listens on.
func free(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}
