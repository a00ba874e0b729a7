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
	"slices"
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

// asked asks this host, etcd and the other hosts. It implements doctor.Asked.
type asked struct {
	*cluster.Cluster // Hoards
	cfg              config.Config
	certs            forward.Certificates
}

// noEtcd is asked by a host that cannot call etcd.
type noEtcd struct {
	doctor.Asked
	why error
}

// Certificates implements doctor.Asked.
func (n noEtcd) Certificates() (map[string]time.Time, error) { return nil, n.why }

// Cluster returns the checks of a cluster.
func Cluster(cfg config.Config) (checks []doctor.Check, end func(), err error) {
	if !cfg.Cluster.On() {
		return nil, nil,
			errors.New("--cluster: cluster.name is empty in the settings, so this host is the only one")
	}
	c := &doctor.Cluster{Name: cfg.Cluster.Name, Now: time.Now(),
		OwnHomes: cfg.Cluster.Homes == "local"}
	etcd, certs, fault := member.Dial(cfg.Cluster)
	if fault != nil { // without certificates nothing can be asked
		c.Ask = noEtcd{why: fault}
		return []doctor.Check{c.CertificatesCheck()}, func() {}, nil
	}
	known := cluster.New(etcd, cluster.Config{Host: cfg.Cluster.Name, Log: zerolog.Nop()})
	c.Ask = asked{known, cfg, certs}
	return c.Checks(), func() { _ = etcd.Close() }, nil
}

// Certificates implements doctor.Asked.
func (a asked) Certificates() (map[string]time.Time, error) { return Expiry(a.cfg.Cluster) }

// Sysctl implements doctor.Asked.
func (a asked) Sysctl(name string) (int, error) { return sysctl(name) }

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
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth,
		x509.ExtKeyUsageClientAuth} {
		_, err := pair.Leaf.Verify(x509.VerifyOptions{
			DNSName: s.Name, Roots: roots, CurrentTime: pair.Leaf.NotAfter.Add(-time.Second),
			KeyUsages: []x509.ExtKeyUsage{usage},
		})
		if err != nil {
			return nil, fmt.Errorf("%s cannot be used for host %q: %w", s.CertFile, s.Name, err)
		}
	}
	return all, nil
}

// Etcd implements doctor.Asked.
func (a asked) Etcd(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	begun := time.Now()
	_, err := a.List(ctx, "nodes", "")
	return time.Since(begun), err
}

// each asks all hosts at once.
func (a asked) each(ctx context.Context, file string,
	told func(cluster.Node, forward.Sight, time.Time, error)) error {
	nodes, err := a.ReadNodes(ctx)
	var asking sync.WaitGroup
	var mu sync.Mutex
	for _, node := range nodes {
		asking.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
			defer cancel()
			begun := time.Now()
			sight, err := a.certs.Look(ctx, node, file)
			mu.Lock()
			defer mu.Unlock()
			told(node, sight, begun, err)
		})
	}
	asking.Wait()
	return err
}

// Hosts implements doctor.Asked.
func (a asked) Hosts(ctx context.Context) (list []doctor.Host, err error) {
	members, err := a.List(ctx, "members", "") // first: a host that joins now is not taken for lost
	if err != nil {
		return nil, err
	}
	err = a.each(ctx, "none", func(n cluster.Node, s forward.Sight, begun time.Time, err error) {
		half := begun.Add(time.Since(begun) / 2) // about when the host read its clock
		list = append(list, doctor.Host{Name: n.Name, Version: n.Version, Instance: n.Instance,
			Fault: err, Ahead: s.Now.Sub(half), Expires: s.Expires, Settings: s.Settings})
	})
	for name := range members {
		if !slices.ContainsFunc(list, func(h doctor.Host) bool { return h.Name == name }) {
			list = append(list, doctor.Host{Name: name, Lost: true, Fault: errLost})
		}
	}
	return list, err
}

var errLost = errors.New("it is lost: it has no lease")

// Homes tries in usersDir what users' programs and the service do there.
func (a asked) Homes() (faults []error) {
	name, other := a.ownFile(), a.ownFile()
	defer os.Remove(name)
	defer os.Remove(other)
	fault := func(what string, err error) {
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", what, err))
		}
	}
	if err := errors.Join(os.WriteFile(name, []byte("new"), 0o600),
		os.WriteFile(other, []byte("old"), 0o600)); err != nil {
		return []error{err}
	}
	fault("cannot replace a file by a rename", os.Rename(name, other))
	file, err := os.OpenFile(other, os.O_RDWR, 0)
	if err != nil {
		return append(faults, err)
	}
	defer file.Close()
	fault("cannot lock with flock", unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB))
	fault("cannot lock with fcntl",
		unix.FcntlFlock(file.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}))
	at := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	fault("cannot set times", os.Chtimes(other, at, at))
	info, err := os.Stat(other)
	if err == nil && !info.ModTime().Equal(at) {
		err = errors.New("mtime differs")
	}
	fault("cannot keep times that were set", err)
	return faults
}

func (a asked) ownFile() string {
	return filepath.Join(a.cfg.UsersDir, ".doctor-"+rand.Text())
}

// Unseen makes a file, then replaces it, and returns the hosts that still read the old content
// after a second.
func (a asked) Unseen(ctx context.Context) (map[string]error, error) {
	name := a.ownFile()
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
			err := a.each(ctx, name, func(n cluster.Node, s forward.Sight, _ time.Time, err error) {
				if err == nil && s.Content != content {
					if missing++; late {
						hosts[n.Name] = fmt.Errorf(
							"a file that has %q is read as %q after a second", content, s.Content)
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
