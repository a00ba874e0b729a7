package config_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/config"
)

func TestValidate(t *testing.T) {
	long := "/" + strings.Repeat("s", 107)
	tests := []struct {
		name string
		set  func(*config.Config)
		want []string
	}{
		{"enabled", func(c *config.Config) { c.Docker.Enabled = false },
			[]string{`docker.enabled: false is refused: this service is the Docker mode`}},
		{"image in upper case", func(c *config.Config) { c.Docker.Image = "Sandbox" },
			[]string{`docker.image: "Sandbox" is no image: invalid reference format: repository name (library/Sandbox) must be lowercase`}},
		{"image with a tag", func(c *config.Config) { c.Docker.Image = "sandbox:1" },
			[]string{`docker.image: "sandbox:1" has a tag, which belongs in docker.tag`}},
		{"tag", func(c *config.Config) { c.Docker.Tag = "a b" },
			[]string{`docker.tag: "a b" is no tag: want up to 128 letters, digits, _, . and -`}},
		{"tag with a newline", func(c *config.Config) { c.Docker.Tag = "a\n" },
			[]string{`docker.tag: "a\n" is no tag: want up to 128 letters, digits, _, . and -`}},
		{"runtime", func(c *config.Config) { c.Docker.Runtime = "../runc" },
			[]string{`docker.runtime: "../runc" is no name of a runtime: want letters, digits, _, . and -`}},
		{"namespaces with SYS_ADMIN", func(c *config.Config) {
			c.Docker.AllowUserNamespaces, c.Docker.CapAdd = true, []string{"NET_RAW", "SYS_ADMIN"}
		},
			[]string{`docker.allowUserNamespaces: true together with "SYS_ADMIN" in docker.capAdd would let commands unmount what hides files from them: leave one out`}},
		{"namespaces with other capabilities", func(c *config.Config) {
			c.Docker.AllowUserNamespaces, c.Docker.CapAdd = true, []string{"NET_RAW"}
		}, nil},
		{"no resolvers", func(c *config.Config) { c.Docker.IsolatedDNSServers, c.Docker.LocalDNSServers = nil, nil },
			[]string{`docker.isolatedDnsServers: [] names no resolver, and isolated users never get the host's own`}},
		{"socket relative", func(c *config.Config) { c.Docker.SocketPath = "unix:///run/docker.sock" },
			[]string{`docker.socketPath: "unix:///run/docker.sock" is not absolute`}},
		{"path empty", func(c *config.Config) { c.DataDir = "" }, []string{`dataDir: "" is empty`}},
		{"path not clean", func(c *config.Config) { c.DataDir = "/var/../etc/" },
			[]string{`dataDir: "/var/../etc/" is not clean: write "/etc"`}},
		{"path with a control character", func(c *config.Config) { c.AgentPath = "/a\x00b" },
			[]string{`agentPath: "/a\x00b" holds a control character`}},
		{"path too long", func(c *config.Config) { c.DataDir = "/" + strings.Repeat("d", 4096) },
			[]string{`dataDir: "/` + strings.Repeat("d", 99) + `"... has 4097 bytes, more than 4096`}},
		{"mount root that is relative", func(c *config.Config) { c.AllowedMountRoots = []string{"/srv", "data"} },
			[]string{`allowedMountRoots[1]: "data" is not absolute`}},
		{"control socket in a home", func(c *config.Config) { c.EventsSocket = c.UsersDir + "/a/home/s" },
			[]string{`eventsSocket: "/data/users/a/home/s" is in usersDir, where users write`}},
		{"users everywhere", func(c *config.Config) { c.UsersDir = "/" },
			[]string{`usersDir: "/" is the whole host`}},
		{"socket longest", func(c *config.Config) { c.Listen = long[:107] }, nil},
		{"socket too long", func(c *config.Config) { c.Listen = long },
			[]string{`listen: "` + long[:100] + `"... has 108 bytes, but a socket's path at most 107`}},
		{"engine's socket", func(c *config.Config) { c.Listen = c.Docker.SocketPath },
			[]string{`listen: "/var/run/docker.sock" is Docker's socket`}},
		{"our own among the users'", func(c *config.Config) {
			c.DataDir, c.Listen, c.AgentPath = "/data/users", "/data/users/s", "/data/users/x/home/agent"
			c.Docker.SocketPath = "/data/users2/docker.sock" // beside it
		}, []string{
			`dataDir: "/data/users" is in usersDir, where users write`,
			`listen: "/data/users/s" is in usersDir, where users write`,
			`agentPath: "/data/users/x/home/agent" is in usersDir, where users write`,
		}},
		{"users in the data directory", func(c *config.Config) { c.UsersDir = c.DataDir + "/users" }, nil},
		{"ports for root", func(c *config.Config) { c.Processes.ExposePorts = config.PortRange{First: 1023, Last: 2000} },
			[]string{`processes.exposePorts: "1023-2000" has to go upwards, from 1024 on`}},
		{"ports downwards", func(c *config.Config) { c.Processes.ExposePorts = config.PortRange{First: 2000, Last: 1999} },
			[]string{`processes.exposePorts: "2000-1999" has to go upwards, from 1024 on`}},
		{"ports", func(c *config.Config) { c.Processes.ExposePorts = config.PortRange{First: 1024, Last: 65535} }, nil},
		{"root as owner", func(c *config.Config) { c.HomeOwner = config.Owners{} },
			[]string{`homeOwner: "0:0" is root, but commands run as the home's owner`}},
		{"root among the owners", func(c *config.Config) { c.HomeOwner = config.Owners{Last: 9} },
			[]string{`homeOwner: "0-9" is root, but commands run as the home's owner`}},
		{"owners downwards", func(c *config.Config) { c.HomeOwner = config.Owners{UID: 9, Last: 8} },
			[]string{`homeOwner: "9-8" has to go upwards`}},
		{"owners up to minus one", func(c *config.Config) { c.HomeOwner = config.Owners{UID: 9, Last: 1<<32 - 1} },
			[]string{`homeOwner: "9-4294967295": 4294967295 is more than 2147483646, the largest id that commands may run as`}},
		{"one owner", func(c *config.Config) { c.HomeOwner = config.Owners{UID: 1000, GID: 1000} }, nil},
		{"a large range", func(c *config.Config) { c.HomeOwner = config.Owners{UID: 9, Last: 1<<31 - 2} }, nil},
		{"one owner too many", func(c *config.Config) { c.HomeOwner = config.Owners{UID: 9, Last: 1<<31 - 1} },
			[]string{`homeOwner: "9-2147483647": 2147483647 is more than 2147483646, the largest id that commands may run as`}},
		{"minus one as owner", func(c *config.Config) { c.HomeOwner = config.Owners{UID: 1000, GID: 1<<32 - 1} },
			[]string{`homeOwner: "1000:4294967295": 4294967295 is more than 2147483646, the largest id that commands may run as`}},
		{"limits too small", func(c *config.Config) {
			c.Limits = config.Limits{CPUs: 0, Memory: 64<<20 - 1, PIDs: 127, OpenFiles: 1023, Shm: 0, Tmp: 1, Run: -1, VarTmp: 65535}
		}, []string{
			`limits.cpus: 0 is not from 0.01 to 8192`,
			`limits.memory: "67108863" is less than 64Mi`,
			`limits.pids: 127 is not from 128 to 4194304`,
			`limits.openFiles: 1023 is not from 1024 to 1048576`,
			`limits.shm: "0" is less than 64Ki`,
			`limits.tmp: "1" is less than 64Ki`,
			`limits.run: "-1" is less than 64Ki`,
			`limits.varTmp: "65535" is less than 64Ki`,
		}},
		{"limits smallest", func(c *config.Config) {
			c.Limits = config.Limits{CPUs: 0.01, Memory: 64 << 20, PIDs: 128, OpenFiles: 1024, Shm: 65536, Tmp: 65536, Run: 65536, VarTmp: 65536}
		}, nil},
		{"idle", func(c *config.Config) {
			c.Idle = config.Idle{FreezeAfter: config.Duration(999 * time.Millisecond), RemoveAfter: config.Duration(999 * time.Millisecond)}
		}, []string{
			`idle.freezeAfter: "999ms" is less than 1s, and not 0s, which is never`, `idle.removeAfter: "999ms" is less than 1s`,
			`idle.maxContainers: 0 is not from 1 to 1000000`,
		}},
		{"shutdown grace", func(c *config.Config) { c.ShutdownGrace = 600_001 },
			[]string{`shutdownGraceMs: 600001 is not from 0 to 600000`}},
		{"pool", func(c *config.Config) { c.Pool = config.Pool{Size: -1, Max: 1001} },
			[]string{"pool.size: -1 is not from 0 to 1000", "pool.max: 1001 is not from 1 to 1000", `pool.minFreeMemory: "0" is less than 64Ki`}},
		{"timeouts", func(c *config.Config) { c.Exec.DefaultTimeout, c.Exec.KillGrace = 300_001, -1 }, []string{
			`exec.maxTimeoutMs: 300000 is less than exec.defaultTimeoutMs, 300001`,
			`exec.killGraceMs: -1 is not from 0 to 86400000`,
		}},
		{"timeout at a terminal", func(c *config.Config) { c.Exec.MaxAttachedTimeout = 86_400_001 },
			[]string{`exec.maxAttachedTimeoutMs: 86400001 is not from 1 to 86400000`}},
		{"quotas", func(c *config.Config) {
			c.Quotas.PerUser.Containers, c.Quotas.PerToken.RequestsPerSecond, c.Quotas.Total.ColdStarts, c.Quotas.Total.Commands = 0, -1, -1, 1_000_001
		}, []string{
			`quotas.perUser.containers: 0 is not from 1 to 1000000`,
			`quotas.perToken.requestsPerSecond: -1 is not from 1 to 1000000`,
			`quotas.total.coldStarts: -1 is not from 0 to 1000000`,
			`quotas.total.commands: 1000001 is not from 1 to 1000000`,
		}},
		{"sizes of an exec", func(c *config.Config) { c.Exec.MaxOutputBytes, c.Exec.MaxRequestBytes = 0, 1<<30+1 }, []string{
			`exec.maxOutputBytes: 0 is not from 1 to 1073741824`,
			`exec.maxRequestBytes: 1073741825 is not from 1024 to 1073741824`,
		}},
		{"processes", func(c *config.Config) { c.Processes = config.Processes{MaxLog: 1} }, []string{
			`processes.maxLog: "1" is less than 64Ki`,
			`processes.stopGraceMs: 0 is not from 1 to 600000`,
		}},
		{"log", func(c *config.Config) { c.Log = config.Log{Level: "warning", Format: "JSON"} }, []string{
			`log.level: "warning" is none of trace, debug, info, warn, error, fatal, panic, disabled`,
			`log.format: "JSON" is none of json, text (did you mean json?)`,
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { validate(t, tt.set, tt.want) })
	}
}

// validate changes the default settings and wants these faults with them, or none.
func validate(t *testing.T, set func(*config.Config), want []string) {
	t.Helper()
	c := config.Default()
	set(&c)
	var got []string
	if err := c.Validate(); err != nil {
		got = faultLines(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestLists(t *testing.T) {
	capability := func(c *config.Config) *[]string { return &c.Docker.CapAdd }
	user := func(c *config.Config) *[]string { return &c.Docker.AllowLocalNetworkingForUsers }
	resolver := func(c *config.Config) *[]string { return &c.Docker.IsolatedDNSServers }
	local := func(c *config.Config) *[]string { return &c.Docker.LocalDNSServers }
	subnet := func(c *config.Config) *[]string { return &c.Egress.Subnets }
	public := func(c *config.Config) *[]string { return &c.Egress.AlsoPublic }
	tests := []struct {
		name string
		list func(*config.Config) *[]string
		good []string
		bad  []string
	}{
		{"capabilities", capability,
			[]string{"ALL", "all", "NET_ADMIN", "net_admin", "CAP_NET_ADMIN", "Cap_Bpf", "CHECKPOINT_RESTORE"},
			[]string{"", "CAP_", "NET ADMIN", "NETADMIN", "CAP_CAP_CHOWN", "CHOWN\n"}},
		{"users", user,
			[]string{"a", "0", "user-admin", "a.b_c-d", strings.Repeat("a", 63)},
			[]string{"", "A", ".a", "-a", "_a", "a..b", "..", "a/b", "a\n", "é", strings.Repeat("a", 64)}},
		{"resolvers", resolver,
			[]string{
				"1.1.1.1", "1.1.1.1:5353", "::1", "fd00::1", "[fd00::1]:53", "tls://1.1.1.1", "tls://1.1.1.1:853",
				"tls://fd00::1", "tls://[fd00::1]:853", "tls://dns.google", "tls://dns.google.", "tls://DNS.Google:853",
				"tls://localhost",
			},
			[]string{
				"", "dns.google", "dns.google:53", "1.1.1", "1.1.1.256", "1.1.1.1:", "1.1.1.1:0", "1.1.1.1:65536",
				"1.1.1.1:dns", "fe80::1%eth0", "0.0.0.0", "::", "224.0.0.1", "[::1]", "https://1.1.1.1/dns-query",
				"tls://", "tls://:853", "tls://dns.google:", "tls://dns.google:0", "tls://dns..google",
				"tls://-dns.google", "tls://1.1.1.1.1", "tls://dns.google/", "tls://dns google", "tls://tls://a",
				"tls://" + strings.Repeat("a.", 127) + "a", "1.1.1.1 ",
			}},
		{"local resolvers", local, []string{"192.168.0.1", "tls://nas.home"}, []string{"", "nas.home", "192.168.0.1:0"}},
		{"subnets", subnet,
			[]string{"10.0.0.0/9", "10.128.0.0/9", "172.16.0.0/12", "192.168.0.0/17", "192.168.128.0/23", "100.64.0.0/10"},
			[]string{
				"", "10.128.0.0", "10.128.0.0/", "10.128.0.0/24", "10.128.0.0/32", "10.128.0.0/33", "10.128.0.0/-1",
				"10.128.0.0/016", "10.128.0.0/+9", "10.0128.0.0/16", "10.128/16", "10.128.0.1/16", "10.128.0.0/16 ",
				"10.0.0.0/9", "10.0.0.0/8", "10.127.254.0/23", "0.0.0.0/0", "8.0.0.0/6", "172.0.0.0/8", "172.32.0.0/16",
				"192.168.0.0/15", "192.169.0.0/16", "100.128.0.0/16", "100.0.0.0/8", "127.0.0.0/16", "169.254.0.0/16",
				"198.18.0.0/15", "fd00::/16", "::ffff:10.128.0.0/112", "fe80::%1/16",
			}},
		{"ranges public besides", public,
			[]string{"10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.1.1/32", "198.51.100.0/24", "1.0.0.0/8", "223.0.0.0/8"},
			[]string{
				"", "10.0.0.1", "10.0.0.1/8", "0.0.0.0/0", "128.0.0.0/1", "10.0.0.0/7", "0.0.0.0/8", "0.1.0.0/16",
				"127.0.0.0/8", "127.0.0.1/32", "169.0.0.0/8", "169.254.0.0/16", "169.254.169.254/32", "224.0.0.0/8",
				"239.1.0.0/16", "240.0.0.0/8", "255.255.255.255/32", "fd00::/8", "::ffff:10.0.0.0/112",
			}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := config.Default()
			*tt.list(&c) = tt.good
			if err := c.Validate(); err != nil {
				t.Error(err)
			}
			for _, bad := range tt.bad {
				*tt.list(&c) = []string{tt.good[0], bad}
				if err := c.Validate(); err == nil {
					t.Errorf("%q is valid", bad)
				} else if got := faultLines(err); len(got) != 1 || !strings.Contains(got[0], "[1]: \"") {
					t.Errorf("%q: %v", bad, err)
				}
			}
		})
	}
}

func TestSize(t *testing.T) {
	tests := []struct {
		text string
		want config.Size
		back string
	}{
		{"0", 0, "0"},
		{"1", 1, "1"},
		{"1048577", 1048577, "1048577"},
		{"1048576", 1 << 20, "1Mi"},
		{"1024Ki", 1 << 20, "1Mi"},
		{"16Gi", 16 << 30, "16Gi"},
		{"3Ti", 3 << 40, "3Ti"},
		{"1K", 1000, "1K"},
		{"1500M", 1_500_000_000, "1500M"},
		{"1G", 1_000_000_000, "1G"},
		{"2T", 2_000_000_000_000, "2T"},
		{"9223372036854775807", 1<<63 - 1, "9223372036854775807"},
	}
	for _, tt := range tests {
		var got, again config.Size
		if err := got.UnmarshalJSON(fmt.Appendf(nil, "%q", tt.text)); err != nil || got != tt.want || got.String() != tt.back {
			t.Errorf("%q = %d, %q, %v, want %d, %q", tt.text, got, got, err, tt.want, tt.back)
		}
		if err := again.UnmarshalJSON(fmt.Appendf(nil, "%q", got.String())); err != nil || again != got {
			t.Errorf("%q reads back as %d, %v", got, again, err)
		}
	}
}

func TestTextsThatAreRefused(t *testing.T) {
	var (
		size     config.Size
		duration config.Duration
		owner    config.Owners
	)
	tests := []struct {
		into interface{ UnmarshalJSON([]byte) error }
		bad  []string
	}{
		{&size, []string{"", "Gi", "-1", "+1", "1.5Gi", "1g", "1gi", "1 Gi", " 1", "1GiB", "1GiGi", "0x10", "1e3", "1_000",
			"9223372036854775808", "8388608Ti", "99999999999999999999"}},
		{&duration, []string{"", "15", "m", "15 m", "1d", "x"}},
		{&owner, []string{"", "1000", ":", "1000:", ":1000", "a:b", "-1:0", "1:2:3", "4294967296:0", "1000:1000 "}},
	}
	for _, tt := range tests {
		for _, bad := range tt.bad {
			if err := tt.into.UnmarshalJSON(fmt.Appendf(nil, "%q", bad)); err == nil {
				t.Errorf("%T reads %q as %v", tt.into, bad, tt.into)
			}
		}
	}
	if size != 0 || duration != 0 || owner != (config.Owners{}) {
		t.Errorf("a refused text changes the value: %v, %v, %v", size, duration, owner)
	}
}

func TestMillis(t *testing.T) {
	if got := config.Millis(86_400_000).Duration(); got != 24*time.Hour {
		t.Errorf("a day is %v", got)
	}
}
