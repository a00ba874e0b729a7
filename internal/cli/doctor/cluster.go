package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Host is a host of a cluster, as it was found.
type Host struct {
	Name, Version, Instance string
	// Fault is why the host does not answer; the fields below are not known then. Lost says that it
	// has no lease, and has not reported that nothing runs there.
	Fault   error
	Lost    bool
	Ahead   time.Duration // by how much its clock is ahead of this host's
	Expires time.Time     // when its certificate expires
	// Settings are digests of the settings that must be the same on all hosts, by their keys.
	Settings map[string]string
}

// Asked answers the questions that the checks of several hosts ask.
type Asked interface {
	// Certificates returns when this host's certificates expire, by file, or why one of them cannot
	// be used.
	Certificates() (map[string]time.Time, error)
	// Etcd returns how long etcd takes for one question.
	Etcd(context.Context) (time.Duration, error)
	// Hoards reports whether etcd keeps the history of more changes than that.
	Hoards(ctx context.Context, changes int64) (bool, error)
	// Hosts returns all hosts that have a lease, and those that are lost.
	Hosts(context.Context) ([]Host, error)
	// Homes returns what the filesystem of usersDir must be able to do and cannot; nil for nothing.
	Homes() []error
	// Unseen returns which hosts do not see a change in usersDir within a second, and why.
	Unseen(context.Context) (map[string]error, error)
	// Sysctl returns a number that the kernel has.
	Sysctl(name string) (int, error)
}

// Cluster has the checks of several hosts.
type Cluster struct {
	Name string    // this host's name
	Now  time.Time // against which certificates are checked
	Ask  Asked
	// OwnHomes says that each host has its own usersDir.
	OwnHomes bool

	asking sync.Once
	all    []Host
	err    error
}

// Limits of what is good enough for a cluster, and remedies.
const (
	slowEtcd     = 50 * time.Millisecond
	longHistory  = 100_000 // changes: some minutes of a busy cluster
	clockApart   = time.Second
	expiresSoon  = 30 * 24 * time.Hour
	etcdRemedy   = "see that a majority of etcd's members runs, that cluster.etcd names them, and that they take certificates of cluster.caFile"
	issueRemedy  = "sandboxd cluster issue makes a new one; then restart sandboxd and its fence there"
	sealingKey   = "cluster.sealingKeyFile"
	clocksRemedy = "let one source of time (chrony, systemd-timesyncd) set all hosts' clocks"
)

// Checks returns the checks of several hosts.
func (c *Cluster) Checks() []Check {
	checks := []Check{
		{"cluster etcd", c.etcd}, c.CertificatesCheck(), {"cluster hosts", c.hosts},
		{"cluster versions", c.versions},
		{"cluster settings", c.settings}, {"cluster clocks", c.clocks},
		{"cluster dataDir", c.instances}, {"cluster usersDir", c.homes},
		{"cluster inotify", c.inotify}, {"cluster connections", c.connections},
	}
	if !c.OwnHomes {
		checks = append(checks, Check{"cluster homes", c.unseen})
	}
	return checks
}

// found returns the hosts by name. They are asked once.
func (c *Cluster) found(ctx context.Context) ([]Host, error) {
	c.asking.Do(func() {
		c.all, c.err = c.Ask.Hosts(ctx)
		slices.SortFunc(c.all, func(a, b Host) int { return strings.Compare(a.Name, b.Name) })
	})
	return slices.Clone(c.all), c.err
}

// CertificatesCheck returns the one of Checks that asks nobody.
func (c *Cluster) CertificatesCheck() Check { return Check{"cluster certificates", c.certificates} }

func (c *Cluster) etcd(ctx context.Context) Finding {
	var times []time.Duration
	for range 7 {
		took, err := c.Ask.Etcd(ctx)
		if err != nil {
			return wrong(etcdRemedy, "etcd does not answer: %v", err)
		}
		times = append(times, took)
	}
	slices.Sort(times)
	median := times[len(times)/2].Round(10 * time.Microsecond)
	if median > slowEtcd {
		return warning("put etcd's data on a fast disk of its own, near the hosts",
			"etcd takes %s for an answer (at most %s is good)", median, slowEtcd)
	}
	if hoards, err := c.Ask.Hoards(ctx, longHistory); err == nil && hoards {
		return warning(
			"start each member of etcd with --auto-compaction-mode=revision --auto-compaction-retention=1000 (docs/cluster.md)",
			"etcd keeps the history of more than %d changes, as if it never compacted it: it fills up, and then nothing is recorded",
			longHistory)
	}
	return ok("etcd takes %s for an answer", median)
}

func (c *Cluster) certificates(context.Context) Finding {
	all, err := c.Ask.Certificates()
	if err != nil {
		return wrong("replace cluster.certFile and cluster.keyFile: "+issueRemedy, "%v", err)
	}
	return expiry(all, c.Now)
}

// expiry returns the finding about the certificate that expires first. all has the times by the
// certificates' names.
func expiry(all map[string]time.Time, now time.Time) Finding {
	var first string
	for name, at := range all {
		if first == "" || at.Before(all[first]) {
			first = name
		}
	}
	at := all[first]
	switch left := at.Sub(now); {
	case left <= 0:
		return wrong(issueRemedy, "the certificate of %s has expired at %s", first,
			at.UTC().Format(time.DateTime))
	case left < expiresSoon:
		return warning(issueRemedy, "the certificate of %s expires in %d days", first,
			int(left.Hours()/24))
	}
	return ok("good until %s", at.UTC().Format(time.DateOnly))
}

// known runs a check on the hosts that answer.
func (c *Cluster) known(ctx context.Context, look func([]Host) Finding) Finding {
	all, err := c.found(ctx)
	all = slices.DeleteFunc(all, func(h Host) bool { return h.Fault != nil })
	if err != nil || len(all) == 0 {
		return skipped("no host answers")
	}
	return look(all)
}

func (c *Cluster) hosts(ctx context.Context) Finding {
	all, err := c.found(ctx)
	if err != nil {
		return wrong(etcdRemedy, "etcd does not say which hosts there are: %v", err)
	}
	var names, lost, faults []string
	certificates := map[string]time.Time{}
	for _, h := range all {
		if h.Lost {
			lost = append(lost, h.Name)
			continue
		}
		if names = append(names, h.Name); h.Fault != nil {
			faults = append(faults, fmt.Sprintf("%s: %v", h.Name, h.Fault))
		} else {
			certificates["host "+h.Name] = h.Expires
		}
	}
	if !slices.Contains(names, c.Name) {
		return wrong("see that sandboxd and sandboxd fence run here, and what the fence logs",
			"this host, %s, has no lease; these hosts have one: %s", c.Name,
			strings.Join(names, ", "))
	}
	if len(faults) > 0 {
		return wrong(
			"let hosts reach each other at cluster.listen, with certificates of one authority for their cluster.name",
			"%s", strings.Join(faults, "\n"))
	}
	if f := expiry(certificates, c.Now); f.Level != OK {
		return f
	}
	if len(lost) > 0 {
		return warning(
			"bring them back; sandbox node remove HOST forgets one of which nothing runs any more",
			"lost, that is without a lease: %s; %d answer: %s", strings.Join(lost, ", "),
			len(names), strings.Join(names, ", "))
	}
	return ok("%d answer: %s", len(names), strings.Join(names, ", "))
}

// groups returns the names of hosts, grouped by what of returns for them.
func groups(all []Host, of func(Host) string) map[string][]string {
	found := map[string][]string{}
	for _, h := range all {
		found[of(h)] = append(found[of(h)], h.Name)
	}
	return found
}

func (c *Cluster) versions(ctx context.Context) Finding {
	return c.known(ctx, func(all []Host) Finding {
		found := groups(all, func(h Host) string { return h.Version })
		if len(found) == 1 {
			return ok("%s", all[0].Version)
		}
		var list []string
		for version, hosts := range found {
			list = append(list, strings.Join(hosts, ", ")+": "+version)
		}
		slices.Sort(list)
		return warning("bring all hosts to one version, each while it is drained",
			"hosts differ:\n%s", strings.Join(list, "\n"))
	})
}

func (c *Cluster) settings(ctx context.Context) Finding {
	return c.known(ctx, func(all []Host) Finding {
		all = slices.DeleteFunc(all, func(h Host) bool { return h.Settings == nil })
		if len(all) == 0 {
			return skipped("no host reports its settings: all have an earlier version")
		}
		var differ []string
		for _, key := range slices.Sorted(maps.Keys(all[0].Settings)) {
			found := groups(all, func(h Host) string { return h.Settings[key] })
			if len(found) == 1 {
				continue
			}
			var list []string
			for _, hosts := range found {
				list = append(list, strings.Join(hosts, ", "))
			}
			slices.Sort(list)
			line := key + ": " + strings.Join(list, " / ")
			if differ = append(differ, line); key == sealingKey { // the other digests are keyed with it
				differ = []string{line}
				break
			}
		}
		if len(differ) > 0 {
			return wrong(
				"make these settings and the contents of these files the same on all hosts; docs/settings.md says which need a restart of sandboxd",
				"hosts differ in\n%s", strings.Join(differ, "\n"))
		}
		return ok("the same on all hosts: %s",
			strings.Join(slices.Sorted(maps.Keys(all[0].Settings)), ", "))
	})
}

func (c *Cluster) clocks(ctx context.Context) Finding {
	return c.known(ctx, func(all []Host) Finding {
		most := slices.MaxFunc(all, func(a, b Host) int {
			return int(a.Ahead.Abs() - b.Ahead.Abs())
		})
		if most.Ahead.Abs() > clockApart {
			return warning(clocksRemedy,
				"the clock of %s is %s from this host's: times in logs, of files and in certificates are misread",
				most.Name, most.Ahead.Abs().Round(time.Millisecond))
		}
		return ok("at most %s apart", most.Ahead.Abs().Round(time.Millisecond))
	})
}

func (c *Cluster) instances(ctx context.Context) Finding {
	return c.known(ctx, func(all []Host) Finding {
		for instance, hosts := range groups(all, func(h Host) string { return h.Instance }) {
			if len(hosts) > 1 && instance != "" {
				return wrong(
					"give each host a dataDir on a disk of its own; in a copy of a machine, empty it before sandboxd starts",
					"hosts %s have one dataDir, or copies of it (instance %s)",
					strings.Join(hosts, ", "), instance)
			}
		}
		return ok("each host has its own")
	})
}

func (c *Cluster) homes(context.Context) Finding {
	if err := errors.Join(c.Ask.Homes()...); err != nil {
		return wrong("use a filesystem that can, such as NFS 4.1 or CephFS", "%v", err)
	}
	return ok("renames, locks and times work")
}

// inotify looks at the limits that users' programs that watch files share, since they run under one
// uid of the host.
func (c *Cluster) inotify(context.Context) Finding {
	low, remedy, err := sysctl(c.Ask.Sysctl).
		low(limit{"fs.inotify.max_user_instances", 128, 128},
			limit{"fs.inotify.max_user_watches", 65536, 65536})
	switch {
	case err != nil:
		return skipped("%v", err)
	case len(low) > 0:
		return warning(remedy,
			"programs that watch files will fail for some users: limits of inotify are low. Changes that other hosts make are never seen by inotify on a network filesystem")
	}
	return ok("enough watches; they do not report what another host changes")
}

// retries is how often TCP resends unacknowledged data, doubling the wait each time, before it
// gives a connection up: 4 retries take 6 to 13 s, the kernel's default of 15 takes a quarter of an
// hour.
const retries = "net.ipv4.tcp_retries2"

// connections checks how soon hosts talk again once a link between them is back. etcd's members set
// no timeouts on sending to each other (its timeout transport sets Dial, which net/http does not
// call where DialContext is set), so they wait for TCP.
func (c *Cluster) connections(context.Context) Finding {
	n, err := c.Ask.Sysctl(retries)
	if err != nil {
		return skipped("%v", err)
	}
	if n > 4 {
		return warning("sysctl -w "+retries+"=4 on each host, and a line in /etc/sysctl.d",
			"after a link was cut, members of etcd may take as long again to reconnect: %s is %d. If another member is lost meanwhile, there is no majority",
			retries, n)
	}
	return ok("dead ones are given up and made again soon after a link is cut")
}

func (c *Cluster) unseen(ctx context.Context) Finding {
	hosts, err := c.Ask.Unseen(ctx)
	if err != nil {
		return wrong("see that usersDir can be written", "%v", err)
	}
	var list []string
	for host, why := range hosts {
		list = append(list, fmt.Sprintf("%s: %v", host, why))
	}
	if slices.Sort(list); len(list) > 0 {
		return wrong(
			"mount the same filesystem at usersDir on all hosts, with attributes cached for less than a second (NFS: actimeo=1 or noac)",
			"changes made here are not seen by %s", strings.Join(list, "\n"))
	}
	return ok("changes made here are seen by all hosts within a second")
}
