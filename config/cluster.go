package config

import (
	"net"
	"net/url"

	"github.com/daycare-run/sandbox/internal/strictjson"
)

// Cluster makes this host one of several, which share usersDir and an etcd. All paths are absolute
// and clean, and not in UsersDir. E2B.Listen must be set on all hosts or on none.
type Cluster struct {
	// Name is this host's name, which no other host has, and which its certificate is for: 1 to 63
	// of a-z, 0-9 and -, a letter or digit first and last. Default "": this host is the only one.
	Name string `json:"name" env:"NAME" reload:"restart"`

	// Etcd are the addresses of etcd's members, such as https://10.0.0.1:2379. Over https, the
	// service calls etcd with this host's certificate. Must be set if Name is.
	Etcd []string `json:"etcd" env:"ETCD" reload:"restart"`

	// Listen is the address and port, such as 10.0.0.1:7483, at which the other hosts call this
	// one. Must be set if Name is.
	Listen string `json:"listen" env:"LISTEN" reload:"restart"`

	// CAFile has the authority that has signed the certificates of the hosts, and no others:
	// whoever has one may act for any user. CertFile and KeyFile are this host's, as client and as
	// server. All PEM. Must be set if Name is.
	CAFile   string `json:"caFile" env:"CA_FILE" reload:"restart"`
	CertFile string `json:"certFile" env:"CERT_FILE" reload:"restart"`
	KeyFile  string `json:"keyFile" env:"KEY_FILE" reload:"restart"`

	// SealingKeyFile has 32 bytes, the same on all hosts, with which the secrets of durable
	// processes are sealed. Must be set if Name is.
	SealingKeyFile string `json:"sealingKeyFile" env:"SEALING_KEY_FILE" reload:"restart"`

	// RemountCommand is a program with its arguments that makes the storage of homes usable again.
	// It is run before this host takes users, for at most 5 s. Default none.
	RemountCommand []string `json:"remountCommand" env:"REMOUNT_COMMAND" reload:"restart" shown:"no"`

	// FenceCommand is a program with its arguments that makes sure that nothing runs on a lost
	// host, for example by switching its power off. Another host takes over the lost host's users
	// only after it has exited with 0; FENCE_HOST and FENCE_EPOCH in its environment name the lost
	// host. One host runs it, for at most a minute, and again until it succeeds. The same on all
	// hosts. Default none: a lost host has killed what it ran if it can do anything at all.
	FenceCommand []string `json:"fenceCommand" env:"FENCE_COMMAND" reload:"restart" shown:"no"`

	// Watchdog is a device, such as /dev/watchdog, which the fence holds: it resets the host if the
	// fence cannot kill what runs before another host takes the users over. It may also be a named
	// pipe: the fence writes to it at least once a second while all is well, and V when the host
	// must not be reset any more. Default "": none.
	Watchdog string `json:"watchdog" env:"WATCHDOG" reload:"restart"`

	// Homes says who sees usersDir: "shared" means all hosts, "local" that each host has its own.
	// Then a user stays with the host that has the home, and waits for that host when it is lost.
	// The same on all hosts. Default "shared".
	Homes string `json:"homes" env:"HOMES" reload:"restart"`
}

// On reports whether there are several hosts.
func (c Cluster) On() bool { return c.Name != "" }

func (c Cluster) check(f *faults) {
	if !c.On() {
		if c.Listen != "" || len(c.Etcd) > 0 || c.CAFile != "" || c.CertFile != "" ||
			c.KeyFile != "" || c.SealingKeyFile != "" {
			f.Add("cluster.name", "is empty, but other settings of cluster are set: name this host")
		}
		return
	}
	if !labelPattern.MatchString(c.Name) {
		f.Add("cluster.name",
			"%s is no name of a host: want 1 to 63 of a-z, 0-9 and -, a letter or digit first and last",
			strictjson.Quote(c.Name))
	}
	if len(c.Etcd) == 0 {
		f.Add("cluster.etcd",
			"is empty: name the addresses of etcd's members, such as https://10.0.0.1:2379")
	}
	for _, address := range c.Etcd {
		if u, err := url.Parse(address); err != nil || u.Scheme != "http" && u.Scheme != "https" ||
			u.Host == "" || u.Path != "" || u.User != nil {
			f.Add("cluster.etcd", "%s is no address such as https://10.0.0.1:2379",
				strictjson.Quote(address))
		}
	}
	if err := checkListen(c.Listen); err != nil {
		f.Add("cluster.listen", "%s %s", strictjson.Quote(c.Listen), err)
	} else if host, _, _ := net.SplitHostPort(c.Listen); host == "" || host == "0.0.0.0" ||
		host == "::" {
		f.Add("cluster.listen", "%s is for all addresses: name one that the other hosts can call",
			strictjson.Quote(c.Listen))
	}
	if c.Homes != "shared" && c.Homes != "local" {
		f.Add("cluster.homes", "%s is neither \"shared\" nor \"local\"", strictjson.Quote(c.Homes))
	} else if c.Homes == "local" && len(c.FenceCommand) > 0 {
		f.Add("cluster.fenceCommand",
			"is set, but with cluster.homes \"local\" no user is taken over: leave it empty")
	}
}
