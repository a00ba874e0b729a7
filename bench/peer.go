package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// peer is a server that is compared, or that ours is compared with, in a process of its own.
type peer struct {
	process *exec.Cmd
	addr    netip.AddrPort
}

// startPeer starts a program and returns when it listens at an address. Its output goes to a file
// of that name. stop ends it.
func (l *lab) startPeer(ctx context.Context, name string, addr netip.AddrPort, argv ...string) (*peer, error) {
	log, err := os.Create(filepath.Join(l.dir, name+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p := &peer{exec.CommandContext(ctx, argv[0], argv[1:]...), addr}
	p.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.process.Stdout, p.process.Stderr = log, log
	if err := p.process.Start(); err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", name, err)
	}
	for range 500 {
		if conn, err := net.Dial("tcp", addr.String()); err == nil {
			return p, conn.Close()
		}
		time.Sleep(20 * time.Millisecond)
	}
	p.stop()
	said, _ := os.ReadFile(log.Name())
	return nil, fmt.Errorf("%s does not listen at %s: %.500s", name, addr, said)
}

func (p *peer) pid() int { return p.process.Process.Pid }

// stop kills the process, which is no fault.
func (p *peer) stop() {
	_ = p.process.Process.Kill()
	_ = p.process.Wait()
}

// freePort returns a port of an address that is free for TCP.
func freePort(addr netip.Addr) (netip.AddrPort, error) {
	listener, err := net.Listen("tcp", netip.AddrPortFrom(addr, 0).String())
	if err != nil {
		return netip.AddrPort{}, err
	}
	return listener.Addr().(*net.TCPAddr).AddrPort(), listener.Close()
}
