package probes

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/config"
	"github.com/daycare-run/sandbox/internal/cli/doctor"
	"github.com/daycare-run/sandbox/internal/cluster"
	"github.com/daycare-run/sandbox/internal/cluster/forward"
	"github.com/daycare-run/sandbox/internal/cluster/member"
)

// clusterDoctor checks etcd and the other hosts.
type clusterDoctor struct {
	cfg     config.Config
	certs   forward.Certificates
	cluster *cluster.Cluster
}

// Cluster returns the checks of a cluster.
func Cluster(ctx context.Context, cfg config.Config) (checks []doctor.Check, end func(), err error) {
	if !cfg.Cluster.On() {
		return nil, nil, errors.New("--cluster: cluster.name is empty in the settings, so this host is the only one")
	}
	d := &clusterDoctor{cfg: cfg}
	c := &doctor.Cluster{
		Name: cfg.Cluster.Name, Now: time.Now, Certificates: func() (map[string]time.Time, error) { return Expiry(cfg.Cluster) }, Ask: d.ask, Hosts: d.hosts, Homes: d.homes, Sysctl: sysctl, Unseen: d.unseen,
	}
	if cfg.Cluster.Homes == "local" {
		c.Unseen = nil
	}
	etcd, certs, fault := member.Dial(cfg.Cluster)
	if fault != nil { // without certificates nothing can be asked
		c.Certificates = func() (map[string]time.Time, error) { return nil, fault }
		return []doctor.Check{c.CertificatesCheck()}, func() {}, nil
	}
	d.certs = certs
	d.cluster = cluster.New(etcd, cluster.Config{Host: cfg.Cluster.Name, Log: zerolog.Nop()})
	c.Hoards = d.cluster.Hoards
	return c.Checks(), func() { _ = etcd.Close() }, nil
}

// Expiry returns when a host's certificates expire. They have to be valid for its name.
func Expiry(s config.Cluster) (map[string]time.Time, error) {
	pair, err := tls.LoadX509KeyPair(s.CertFile, s.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("cannot use %s with %s: %w", s.CertFile, s.KeyFile, err)
	}
	text, err := os.ReadFile(s.CAFile)
	if err != nil {
		return nil, err
	}
	roots, all := x509.NewCertPool(), map[string]time.Time{s.CertFile: pair.Leaf.NotAfter}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		authority, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.CAFile, err)
		}
		roots.AddCert(authority)
		if first, others := all[s.CAFile]; !others || authority.NotAfter.Before(first) {
			all[s.CAFile] = authority.NotAfter
		}
	}
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		_, err := pair.Leaf.Verify(x509.VerifyOptions{
			DNSName: s.Name, Roots: roots, CurrentTime: pair.Leaf.NotAfter.Add(-time.Second), KeyUsages: []x509.ExtKeyUsage{usage},
		})
		if err != nil {
			return nil, fmt.Errorf("%s cannot be used for host %q: %w", s.CertFile, s.Name, err)
		}
	}
	return all, nil
}

func (d *clusterDoctor) ask(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	begun := time.Now()
	_, err := d.cluster.List(ctx, "nodes", "")
	return time.Since(begun), err
}

// each asks all hosts at once.
func (d *clusterDoctor) each(ctx context.Context, file string, told func(cluster.Node, forward.Sight, time.Time, error)) error {
	nodes, err := d.cluster.ReadNodes(ctx)
	var asking sync.WaitGroup
	var mu sync.Mutex
	for _, node := range nodes {
		asking.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
			defer cancel()
			begun := time.Now()
			sight, err := d.certs.Look(ctx, node, file)
			mu.Lock()
			defer mu.Unlock()
			told(node, sight, begun, err)
		})
	}
	asking.Wait()
	return err
}

func (d *clusterDoctor) hosts(ctx context.Context) (list []doctor.Host, err error) {
	err = d.each(ctx, "none", func(n cluster.Node, s forward.Sight, begun time.Time, err error) {
		half := begun.Add(time.Since(begun) / 2) // about when the host read its clock
		list = append(list, doctor.Host{Name: n.Name, Version: n.Version, Instance: n.Instance, Fault: err, Ahead: s.Now.Sub(half), Expires: s.Expires, Settings: s.Settings})
	})
	return list, err
}

// homes tries in usersDir what users' programs and the service do there.
func (d *clusterDoctor) homes() (faults []error) {
	name, other := d.ownFile(), d.ownFile()
	defer os.Remove(name)
	defer os.Remove(other)
	fault := func(what string, err error) {
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", what, err))
		}
	}
	if err := errors.Join(os.WriteFile(name, []byte("new"), 0o600), os.WriteFile(other, []byte("old"), 0o600)); err != nil {
		return []error{err}
	}
	fault("cannot replace a file by a rename", os.Rename(name, other))
	file, err := os.OpenFile(other, os.O_RDWR, 0)
	if err != nil {
		return append(faults, err)
	}
	defer file.Close()
	fault("cannot lock with flock", unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB))
	fault("cannot lock with fcntl", unix.FcntlFlock(file.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}))
	at := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	fault("cannot set times", os.Chtimes(other, at, at))
	info, err := os.Stat(other)
	if err == nil && !info.ModTime().Equal(at) {
		err = errors.New("mtime differs")
	}
	fault("cannot keep times that were set", err)
	return faults
}

func (d *clusterDoctor) ownFile() string {
	return filepath.Join(d.cfg.UsersDir, ".doctor-"+rand.Text())
}

// unseen makes a file, then replaces it, and returns the hosts that still read the old content after a second.
func (d *clusterDoctor) unseen(ctx context.Context) (map[string]error, error) {
	name := d.ownFile()
	defer os.Remove(name)
	hosts := map[string]error{}
	for _, content := range []string{"first", "second"} {
		err := os.WriteFile(name+".new", []byte(content), 0o600)
		if err == nil {
			err = os.Rename(name+".new", name)
		}
		if err != nil {
			return nil, err
		}
		for end := time.Now().Add(time.Second); ; cluster.Wait(ctx, 50*time.Millisecond) {
			late, missing := time.Now().After(end), 0
			err := d.each(ctx, name, func(n cluster.Node, s forward.Sight, _ time.Time, err error) {
				if err == nil && s.Content != content {
					if missing++; late {
						hosts[n.Name] = fmt.Errorf("a file that has %q is read as %q after a second", content, s.Content)
					}
				}
			})
			if err != nil {
				return nil, err
			}
			if late {
				return hosts, nil
			}
			if missing == 0 {
				break
			}
		}
	}
	return hosts, nil
}

func sysctl(name string) (int, error) {
	text, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(name, ".", "/"))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}
