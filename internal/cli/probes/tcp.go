package probes

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/cli/doctor"
)

// tcpChecks returns the checks of the TCP listeners, E2B's included, or nil if there are none.
// service is the service's process id, or 0 if it does not run.
func tcpChecks(s *Settings, service int) (checks []doctor.Check) {
	tcp := s.TCP
	for _, way := range []struct{ setting, address string }{{"tcp.listen", tcp.Listen},
		{"e2b.listen", s.E2B.Listen}} {
		if way.address == "" {
			continue
		}
		checks = append(checks, doctor.TCPAddress(way.setting, way.address, service, func() error {
			listener, err := net.Listen("tcp", way.address)
			if err != nil {
				return err
			}
			return listener.Close()
		}, func() (doctor.Program, error) { return listensAt(way.address) }))
	}
	if len(checks) == 0 {
		return nil
	}
	checks = append(checks, doctor.TCPTokens(tcp.TokensFile, func() error {
		_, err := access.ReadTokens(tcp.TokensFile)
		return err
	}))
	if tcp.CertFile == "" {
		return checks // the service warns of it where that matters
	}
	certificate := doctor.Certificate{
		File: tcp.CertFile, KeyFile: tcp.KeyFile, Look: lookAt, Now: time.Now(),
		Load: func() (*x509.Certificate, error) {
			encryption, err := access.Encryption(tcp.CertFile, tcp.KeyFile, tcp.ClientCAFile)
			if err != nil {
				return nil, err
			}
			return x509.ParseCertificate(encryption.Certificates[0].Certificate[0])
		},
		Shown: func(ctx context.Context) (*x509.Certificate, error) {
			if service == 0 {
				return nil, nil
			}
			return certificateAt(ctx, cmp.Or(tcp.Listen, s.E2B.Listen))
		},
	}
	return append(checks, certificate.Valid())
}

// listensAt finds the program that prevents others from listening at an address.
func listensAt(address string) (doctor.Program, error) {
	at, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return doctor.Program{}, err
	}
	sockets := map[string]bool{}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		list, err := netlink.SocketDiagTCP(family)
		if err != nil {
			return doctor.Program{}, fmt.Errorf("cannot ask the kernel which one: %w", err)
		}
		for _, s := range list {
			if s.State == netlink.TCP_LISTEN && int(s.ID.SourcePort) == at.Port &&
				conflict(s.ID.Source, at.IP) {
				sockets[fmt.Sprintf("socket:[%d]", s.INode)] = true
			}
		}
	}
	return holderOf(sockets)
}

// conflict reports whether a listener at one address of a port excludes one at the other.
func conflict(a, b net.IP) bool {
	return len(a) == 0 || len(b) == 0 || a.IsUnspecified() || b.IsUnspecified() || a.Equal(b)
}

// holderOf finds the process that has one of these sockets open.
func holderOf(sockets map[string]bool) (doctor.Program, error) {
	files, err := filepath.Glob("/proc/[0-9]*/fd")
	if err != nil {
		return doctor.Program{}, err
	}
	var unseen error
	for _, dir := range files {
		open, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrPermission) {
			unseen = err
		}
		for _, file := range open {
			if to, err := os.Readlink(filepath.Join(dir, file.Name())); err == nil && sockets[to] {
				return program(filepath.Dir(dir)), nil
			}
		}
	}
	if unseen != nil {
		return doctor.Program{}, unseen
	}
	return doctor.Program{}, errors.New("no process of this host has it open")
}

// program returns the program of a process's folder in /proc.
func program(proc string) doctor.Program {
	pid, _ := strconv.Atoi(filepath.Base(proc))
	name, _ := os.ReadFile(filepath.Join(proc, "comm"))
	return doctor.Program{Name: strings.TrimSpace(string(name)), PID: pid}
}

// certificateAt returns the certificate that a server presents at an address. It sends no request.
func certificateAt(ctx context.Context, address string) (shown *x509.Certificate, err error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	dialer := tls.Dialer{Config: &tls.Config{
		InsecureSkipVerify: true, // the certificate is only read
		VerifyConnection: func(state tls.ConnectionState) error {
			shown = state.PeerCertificates[0]
			return nil
		},
	}}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(host, port))
	if err == nil {
		_ = conn.Close()
	}
	if shown != nil {
		return shown, nil // even if the server refuses a client without a certificate
	}
	return nil, err
}
