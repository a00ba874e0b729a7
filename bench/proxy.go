package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// proxyNumber is the address of the test internet at which the proxy listens.
const proxyNumber = 30

// proxy is HAProxy, which reads the name in a TLS greeting, connects to the origin and splices, as
// the guard does. It is in the test internet, where a program reaches it past the guard. So what it
// adds to a direct connection is what a proxy other than the guard would add.
type proxy struct {
	process *exec.Cmd
	addr    netip.Addr
}

// haproxySettings is a format for an address, a name and an origin.
const haproxySettings = `global
	maxconn 4096
defaults
	mode tcp
	option splice-auto
	timeout connect 10s
	timeout client 1m
	timeout server 1m
frontend tls
	bind %[1]s:443
	tcp-request inspect-delay 5s
	tcp-request content reject unless { req.ssl_hello_type 1 }
	tcp-request content reject unless { req.ssl_sni -i %[2]s }
	default_backend origin
backend origin
	server origin %[3]s:443
`

func (l *lab) startProxy(ctx context.Context) (_ *proxy, err error) {
	p := &proxy{addr: l.world.Addr(proxyNumber)}
	settings := filepath.Join(l.dir, "haproxy.cfg")
	if err := os.WriteFile(settings, fmt.Appendf(nil, haproxySettings, p.addr, originName, l.world.Addr(originNumber)), 0o600); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(l.dir, "haproxy.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.process = exec.CommandContext(ctx, "ip", "netns", "exec", worldName, "haproxy", "-db", "-f", settings)
	p.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.process.Stdout, p.process.Stderr = log, log
	if err := p.process.Start(); err != nil {
		return nil, fmt.Errorf("cannot start haproxy: %w", err)
	}
	for range 100 {
		if conn, err := net.Dial("tcp", netip.AddrPortFrom(p.addr, 443).String()); err == nil {
			return p, conn.Close()
		}
		time.Sleep(20 * time.Millisecond)
	}
	said, _ := os.ReadFile(log.Name())
	return nil, errors.Join(fmt.Errorf("haproxy does not listen: %.500s", said), p.stop())
}

func (p *proxy) stop() error {
	_ = p.process.Process.Kill()
	_ = p.process.Wait() // killed, which is no fault
	return nil
}
