// Package config reads settings.json, which may have comments (// and /* */) and commas at the ends
// of lists, and the environment into a Config.
//
// It is strict: an unknown key, an unreadable value or an impossible one is a fault, and all faults
// come in one message, each with its key. The environment overrides the file, and the file
// overrides Default. A variable is named after its key: docker.socketPath is
// SANDBOXD_DOCKER_SOCKET_PATH.
package config

import "time"

// Config has the operator's settings. Load makes it, starting from Default. The json tags are the
// keys of settings.json, the env tags the names of the variables after SANDBOXD_. The reload tags
// say whether a change takes effect when the settings are read again ("live") or needs a restart
// ("restart"). shown:"no" says that a setting may hold a secret, so that Values does not show it.
type Config struct {
	// Docker is the object of this name in Daycare's settings.json, key for key.
	Docker Docker `json:"docker" envPrefix:"DOCKER_"`

	// Egress says what containers can reach over the network.
	Egress Egress `json:"egress" envPrefix:"EGRESS_"`

	// UsersDir holds a directory for each user on the host; a user's home is
	// <usersDir>/<userId>/home. Absolute and clean. Default /data/users.
	UsersDir string `json:"usersDir" env:"USERS_DIR" reload:"restart"`

	// AllowedMountRoots are the directories of the host below which a sandbox's further mounts and
	// skills may be. Each is absolute and clean. Default: only usersDir; an empty list allows none.
	AllowedMountRoots []string `json:"allowedMountRoots" env:"ALLOWED_MOUNT_ROOTS" reload:"live"`

	// EventsSocket is the caller's own control socket, which calls with @events may open. Absolute,
	// clean, not in UsersDir, at most 107 bytes. Default "": no socket, and @events is refused.
	EventsSocket string `json:"eventsSocket" env:"EVENTS_SOCKET" reload:"live"`

	// DataDir holds the service's own records and logs. Absolute, clean, not in UsersDir. Default
	// /var/lib/daycare-sandbox.
	DataDir string `json:"dataDir" env:"DATA_DIR" reload:"restart"`

	// Listen is the Unix socket of the API. Absolute, clean, not in UsersDir, at most 107 bytes,
	// which is the kernel's limit. Default /run/daycare-sandbox/sandboxd.sock.
	Listen string `json:"listen" env:"LISTEN" reload:"restart"`

	// Access says who may use that socket.
	Access Access `json:"access" envPrefix:"ACCESS_"`

	// TCP is for callers over TCP, beside the socket.
	TCP TCP `json:"tcp" envPrefix:"TCP_"`

	// E2B is the API for clients of E2B.
	E2B E2B `json:"e2b" envPrefix:"E2B_"`

	// Cluster makes this host one of several.
	Cluster Cluster `json:"cluster" envPrefix:"CLUSTER_"`

	// HomeOwner owns the homes that the service creates: one owner of all homes, as uid:gid, or a
	// range of ids, of which each home gets its own, as user and as group. A home that exists
	// already keeps its owner. Commands run as the owner of the home, so it is never root, and
	// nobody else on the host should have these ids. Default 200000-299999.
	HomeOwner Owners `json:"homeOwner" env:"HOME_OWNER" reload:"live"`

	// Limits bound each container.
	Limits Limits `json:"limits" envPrefix:"LIMITS_"`

	// Quotas bound each user, each token and all of them together.
	Quotas Quotas `json:"quotas" envPrefix:"QUOTAS_"`

	// Idle says what happens to containers in which nothing runs.
	Idle Idle `json:"idle" envPrefix:"IDLE_"`

	// Pool says how many containers are kept ready for new users.
	Pool Pool `json:"pool" envPrefix:"POOL_"`

	// Exec bounds each command.
	Exec Exec `json:"exec" envPrefix:"EXEC_"`

	// Read bounds what is read of a file.
	Read Read `json:"read" envPrefix:"READ_"`

	// Processes bounds durable processes.
	Processes Processes `json:"processes" envPrefix:"PROCESSES_"`

	// ShutdownGrace is how long running commands may go on when the service is told to stop; in
	// milliseconds, from 0 to 600000. The service's supervisor must wait longer: docker stop waits
	// for 10 s, systemd for 90 s. Default 10000.
	ShutdownGrace Millis `json:"shutdownGraceMs" env:"SHUTDOWN_GRACE_MS" reload:"live"`

	// AgentPath is the path of the program sandbox-agent on the host, absolute and clean, not in
	// UsersDir. Default "": the program in the directory of the service's own executable.
	AgentPath string `json:"agentPath" env:"AGENT_PATH" reload:"restart"`

	// Log says what is logged and how.
	Log Log `json:"log" envPrefix:"LOG_"`
}

// MountRoots returns AllowedMountRoots, or its default.
func (c Config) MountRoots() []string {
	if c.AllowedMountRoots == nil {
		return []string{c.UsersDir}
	}
	return c.AllowedMountRoots
}

// Docker says how containers are made.
type Docker struct {
	// Enabled must be true, the default: this service is the Docker mode.
	Enabled bool `json:"enabled" env:"ENABLED" reload:"restart"`

	// Image is the sandbox image without a tag, or with a digest, in which case Tag is ignored.
	// Default daycare-sandbox.
	Image string `json:"image" env:"IMAGE" reload:"live"`

	// Tag is the tag of Image. Default latest.
	Tag string `json:"tag" env:"TAG" reload:"live"`

	// SocketPath is Docker's Unix socket. Absolute, clean, not in UsersDir, at most 107 bytes.
	// Default /var/run/docker.sock.
	SocketPath string `json:"socketPath" env:"SOCKET_PATH" reload:"restart"`

	// Runtime is the name of an OCI runtime that Docker knows. If it is gVisor, and Docker also
	// knows <runtime>-offline, the same program with the same arguments followed by --network=none,
	// containers of calls without a network use that one, which saves Docker's part of their start.
	// Default runsc.
	Runtime string `json:"runtime" env:"RUNTIME" reload:"live"`

	// EventsRuntime is the runtime of the containers of calls with @events. It must let programs
	// open a Unix socket of the host, as gVisor does with --host-uds=open. Default runsc-events.
	EventsRuntime string `json:"eventsRuntime" env:"EVENTS_RUNTIME" reload:"live"`

	// EnableWeakerNestedSandbox accepts a weaker runtime if Docker does not know Runtime. Default
	// false: that is an error at start-up.
	EnableWeakerNestedSandbox bool `json:"enableWeakerNestedSandbox" env:"ENABLE_WEAKER_NESTED_SANDBOX" reload:"restart"`

	// ReadOnly makes the container's root filesystem read-only. Default true.
	ReadOnly bool `json:"readOnly" env:"READ_ONLY" reload:"live"`

	// UnconfinedSecurity runs containers without Docker's seccomp and AppArmor profiles. The
	// agent's own filter stays. Default false.
	UnconfinedSecurity bool `json:"unconfinedSecurity" env:"UNCONFINED_SECURITY" reload:"live"`

	// AllowUserNamespaces lets commands make user namespaces, and in them mounts and other
	// namespaces, as browsers and bubblewrap do. It is refused with CapAdd SYS_ADMIN or ALL, with
	// which a command could remove masks. Default false.
	AllowUserNamespaces bool `json:"allowUserNamespaces" env:"ALLOW_USER_NAMESPACES" reload:"live"`

	// CapAdd names capabilities to add after CapDrop, or ALL. After Load they are upper case
	// without CAP_. Commands never run as root and get no new privileges, so this is only their
	// bounding set, which gives them nothing by itself. Default none.
	CapAdd []string `json:"capAdd" env:"CAP_ADD" reload:"live"`

	// CapDrop names capabilities to remove from Docker's default set, or ALL. After Load they are
	// upper case without CAP_. Default ALL; a given list is taken literally, so an empty list drops
	// nothing.
	CapDrop []string `json:"capDrop" env:"CAP_DROP" reload:"live"`

	// AllowLocalNetworkingForUsers lists the ids of the users who have the profile "local". Default
	// none.
	AllowLocalNetworkingForUsers []string `json:"allowLocalNetworkingForUsers" env:"ALLOW_LOCAL_NETWORKING_FOR_USERS" reload:"live"`

	// IsolatedDNSServers are the resolvers of the profile "isolated": an address, address:port, or
	// tls://host[:port]. At least one. Default 1.1.1.1 and 8.8.8.8.
	IsolatedDNSServers []string `json:"isolatedDnsServers" env:"ISOLATED_DNS_SERVERS" reload:"live"`

	// LocalDNSServers are the resolvers of the profile "local", in the same form. Default
	// none: the host's own resolvers.
	LocalDNSServers []string `json:"localDnsServers" env:"LOCAL_DNS_SERVERS" reload:"live"`
}

// Limits bound what one container may use.
type Limits struct {
	// CPUs is the number of CPUs, which may be a fraction. At least 0.01, Docker's minimum. Default
	// 4.
	CPUs float64 `json:"cpus" env:"CPUS" reload:"live"`

	// Memory bounds memory, including everything in tmpfs. At least 64Mi. Default 16Gi.
	Memory Size `json:"memory" env:"MEMORY" reload:"live"`

	// PIDs bounds the number of processes and threads, without gVisor's own. At least 128. Default
	// 1024.
	PIDs int64 `json:"pids" env:"PIDS" reload:"live"`

	// OpenFiles is how many descriptors a process may have: its RLIMIT_NOFILE. From 1024 to
	// 1048576, and no more than Docker's own limit, unless Docker may raise it. Default 16384.
	OpenFiles int64 `json:"openFiles" env:"OPEN_FILES" reload:"live"`

	// Shm is the size of /dev/shm. At least 64Ki, as with each tmpfs here. Default 1Gi.
	Shm Size `json:"shm" env:"SHM" reload:"live"`

	// Tmp is the size of /tmp. Default 1Gi.
	Tmp Size `json:"tmp" env:"TMP" reload:"live"`

	// Run is the size of /run. Default 64Mi.
	Run Size `json:"run" env:"RUN" reload:"live"`

	// VarTmp is the size of /var/tmp, where TMPDIR points under gVisor. What is in it counts as
	// memory, so it is half of Memory at most. Default 8Gi.
	VarTmp Size `json:"varTmp" env:"VAR_TMP" reload:"live"`
}

// Exec bounds what one command may use. Times are at most a day: what runs longer should be a
// process.
type Exec struct {
	// DefaultTimeout is for calls that name none; in milliseconds, at least 1. Default 30000.
	DefaultTimeout Millis `json:"defaultTimeoutMs" env:"DEFAULT_TIMEOUT_MS" reload:"live"`

	// MaxTimeout is the longest timeout that a call may name; in milliseconds, at least
	// DefaultTimeout. Default 300000.
	MaxTimeout Millis `json:"maxTimeoutMs" env:"MAX_TIMEOUT_MS" reload:"live"`

	// MaxAttachedTimeout is the longest timeout that a call with a terminal may name, and its
	// default; in milliseconds, at least 1. Default 28800000, which is 8 hours.
	MaxAttachedTimeout Millis `json:"maxAttachedTimeoutMs" env:"MAX_ATTACHED_TIMEOUT_MS" reload:"live"`

	// MaxOutputBytes is how many bytes are kept of stdout, and as many of stderr. From 1 to
	// 1073741824. Default 1000000.
	MaxOutputBytes int64 `json:"maxOutputBytes" env:"MAX_OUTPUT_BYTES" reload:"restart"`

	// MaxRequestBytes bounds the body of a request. From 1024 to 1073741824. Default 16777216.
	MaxRequestBytes int64 `json:"maxRequestBytes" env:"MAX_REQUEST_BYTES" reload:"restart"`

	// KillGrace is the time between SIGTERM and SIGKILL; in milliseconds, 0 for none. Default 2000.
	KillGrace Millis `json:"killGraceMs" env:"KILL_GRACE_MS" reload:"live"`

	// Ahead is how many shells wait in a container for its next command while no command runs
	// there: 1, or 0 for none. Such a shell takes some 7 MiB of the container's memory under
	// gVisor, otherwise 4 MiB, and needs bash and the builtin of sandbox-image/ahead.c in the
	// image. Default 1.
	Ahead int64 `json:"ahead" env:"AHEAD" reload:"live"`
}

// Read bounds what is read of a file.
type Read struct {
	// MaxImage bounds the images that a read returns as images.
	MaxImage MaxImage `json:"maxImage" envPrefix:"MAX_IMAGE_"`
}

// MaxImage bounds an image.
type MaxImage struct {
	// Bytes is the most that the file has. From 1 to 32Mi. Default 5M.
	Bytes Size `json:"bytes" env:"BYTES" reload:"live"`

	// Pixels is the most that it has in width, and in height. From 1 to 65535. Default 8000.
	Pixels int64 `json:"pixels" env:"PIXELS" reload:"live"`
}

// Pool says how many containers wait for new users. Each has started, with a home of its own, and
// uses as much as an idle container.
type Pool struct {
	// Size is how many wait for each kind of first call that has come lately, 0 for none. From 0 to
	// 1000. Default 2.
	Size int64 `json:"size" env:"SIZE" reload:"live"`

	// Max is how many wait in all. From 1 to 1000. Default 8.
	Max int64 `json:"max" env:"MAX" reload:"live"`

	// MinFreeMemory is how much memory the host must have free before another is made. At least
	// 64Ki. Default 1Gi.
	MinFreeMemory Size `json:"minFreeMemory" env:"MIN_FREE_MEMORY" reload:"live"`
}

// Processes bounds durable processes. Quotas bounds their number.
type Processes struct {
	// MaxLog bounds the log of one process, over all of its files. At least 64Ki. Default 100Mi.
	MaxLog Size `json:"maxLog" env:"MAX_LOG" reload:"live"`

	// StopGrace is the time between the signal that should stop a process and SIGKILL; in
	// milliseconds, from 1 to 600000. Default 8000.
	StopGrace Millis `json:"stopGraceMs" env:"STOP_GRACE_MS" reload:"live"`

	// ExposePorts are the ports of the host's 127.0.0.1 at which processes may be reached if their
	// callers ask for it, as first-last, such as 20000-20999; from 1024 on. A change applies to
	// processes that are started later, and to all when the service is restarted. Default "": none
	// may.
	ExposePorts PortRange `json:"exposePorts" env:"EXPOSE_PORTS" reload:"live"`
}

// Log says what is logged and how.
type Log struct {
	// Level is trace, debug, info, warn, error, fatal, panic or disabled. Default info.
	Level string `json:"level" env:"LEVEL" reload:"live"`

	// Format is json or text. Default json.
	Format string `json:"format" env:"FORMAT" reload:"live"`

	// Access logs each call in a line of level info: who called what, and how it was answered. The
	// line has nothing of the call's contents. Default false: the line has level debug.
	Access bool `json:"access" env:"ACCESS" reload:"live"`
}

// Default returns the Config of an operator who sets nothing.
func Default() Config {
	return Config{
		Docker: Docker{
			Enabled:                      true,
			Image:                        "daycare-sandbox",
			Tag:                          "latest",
			SocketPath:                   "/var/run/docker.sock",
			Runtime:                      "runsc",
			EventsRuntime:                "runsc-events",
			ReadOnly:                     true,
			CapAdd:                       []string{},
			CapDrop:                      []string{"ALL"},
			AllowLocalNetworkingForUsers: []string{},
			IsolatedDNSServers:           []string{"1.1.1.1", "8.8.8.8"},
			LocalDNSServers:              []string{},
		},
		Egress: Egress{
			Name:                "daycare",
			Subnets:             []string{"10.213.0.0/16", "172.29.0.0/16", "192.168.224.0/20"},
			SubnetBits:          22,
			ExtraPorts:          []int{},
			AllowGlobalWildcard: true,
			Presets:             map[string][]string{},
			AlsoPublic:          []string{},
			OwnAddresses:        []string{},
			AskMetadata:         true,
			QueriesPerSecond:    200,
			MaxConnections:      4096,
			MaxUserConnections:  8192,
			MaxDomains:          256,
			DecisionLog:         10_000,
		},
		UsersDir: "/data/users",
		DataDir:  "/var/lib/daycare-sandbox",
		Listen:   "/run/daycare-sandbox/sandboxd.sock",
		TCP:      TCP{AllowedHosts: []string{}, AllowedOrigins: []string{}},
		E2B:      E2B{DefaultNetwork: "open", Templates: map[string]E2BTemplate{}},
		Cluster: Cluster{Etcd: []string{}, RemountCommand: []string{}, FenceCommand: []string{},
			Homes: "shared"},
		HomeOwner: Owners{UID: 200_000, Last: 299_999},
		Limits: Limits{CPUs: 4, Memory: 16 * gi, PIDs: 1024, OpenFiles: 16384, Shm: gi, Tmp: gi,
			Run: 64 * mi, VarTmp: 8 * gi},
		Quotas: defaultQuotas(),
		Idle: Idle{FreezeAfter: Duration(30 * time.Second),
			ReclaimAfter: Duration(5 * time.Minute), RemoveAfter: Duration(24 * time.Hour),
			MaxContainers: 200, MinFreeMemory: 512 * mi},
		Pool: Pool{Size: 2, Max: 8, MinFreeMemory: gi},
		Exec: Exec{
			DefaultTimeout:     30_000,
			MaxTimeout:         300_000,
			MaxAttachedTimeout: 28_800_000,
			MaxOutputBytes:     1_000_000,
			MaxRequestBytes:    16 * int64(mi),
			KillGrace:          2_000,
			Ahead:              1,
		},
		Read:          Read{MaxImage: MaxImage{Bytes: 5_000_000, Pixels: 8000}},
		Processes:     Processes{MaxLog: 100 * mi, StopGrace: 8_000},
		ShutdownGrace: 10_000,
		Log:           Log{Level: "info", Format: "json"},
	}
}
