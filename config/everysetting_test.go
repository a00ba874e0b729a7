package config_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/config"
)

func TestEverySettingFromFileAndEnvironment(t *testing.T) {
	want := config.Config{
		Docker: config.Docker{
			Enabled:                      true,
			Image:                        "registry.example:5000/team/image",
			Tag:                          "v1.2",
			SocketPath:                   "/run/podman.sock",
			Runtime:                      "io.containerd.runsc.v1",
			EventsRuntime:                "runc",
			EnableWeakerNestedSandbox:    true,
			ReadOnly:                     false,
			UnconfinedSecurity:           true,
			AllowUserNamespaces:          true,
			CapAdd:                       []string{"NET_ADMIN", "SYS_TIME"},
			CapDrop:                      []string{},
			AllowLocalNetworkingForUsers: []string{"a", "b.c"},
			IsolatedDNSServers:           []string{"9.9.9.9:53"},
			LocalDNSServers:              []string{"tls://dns.example", "fd00::1"},
		},
		Egress: config.Egress{
			Name: "d", Subnets: []string{"10.0.0.0/23"}, SubnetBits: 16, ExtraPorts: []int{22, 5432}, AllowGlobalWildcard: false,
			Presets:    map[string][]string{"corp": {"git.corp.example", "*.corp.example"}, "x-1": {"a.b"}},
			AlsoPublic: []string{"10.9.0.0/16", "192.168.7.1/32"}, CAFile: "/ca", OwnAddresses: []string{"203.0.113.7"}, QueriesPerSecond: 1, MaxConnections: 65536, MaxUserConnections: 7,
			MaxDomains: 10_000, DecisionLog: 100,
		},
		UsersDir:          "/u",
		AllowedMountRoots: []string{"/u", "/srv/data"},
		EventsSocket:      "/e",
		DataDir:           "/d",
		Listen:            "/l",
		HomeOwner:         config.Owners{UID: 7, GID: 0},
		Limits: config.Limits{
			CPUs: 0.5, Memory: 1e9, PIDs: 128, OpenFiles: 2048, Shm: 64 << 20, Tmp: 65536, Run: 2 << 20, VarTmp: 3 << 40,
		},
		Quotas: config.Quotas{
			PerUser:  config.Quota{TotalQuota: config.TotalQuota{Containers: 1, ColdStarts: 2, Commands: 3, DetachedExecs: 4, Processes: 5, ExposedPorts: 6, Sandboxes: 7}, Calls: 9, RequestsPerSecond: 8},
			PerToken: config.Quota{TotalQuota: config.TotalQuota{Containers: 11, ColdStarts: 12, Commands: 13, DetachedExecs: 14, Processes: 15, ExposedPorts: 16, Sandboxes: 17}, Calls: 19, RequestsPerSecond: 18},
			Total:    config.TotalQuota{Containers: 21, ColdStarts: 22, Commands: 23, DetachedExecs: 24, Processes: 25, ExposedPorts: 26, Sandboxes: 27},
		},
		Idle: config.Idle{FreezeAfter: config.Duration(2 * time.Second), ReclaimAfter: config.Duration(3 * time.Second), RemoveAfter: config.Duration(90 * time.Second), MaxContainers: 31}, ShutdownGrace: 5,
		Pool: config.Pool{Size: 3, Max: 4, MinFreeMemory: 512 << 20},
		Exec: config.Exec{
			DefaultTimeout: 1, MaxTimeout: 2, MaxAttachedTimeout: 5, MaxOutputBytes: 3, MaxRequestBytes: 4096, KillGrace: 0,
		},
		Read:      config.Read{MaxImage: config.MaxImage{Bytes: 7, Pixels: 8}},
		Processes: config.Processes{MaxLog: 1 << 20, StopGrace: 3, ExposePorts: config.PortRange{First: 2000, Last: 2000}},
		AgentPath: "/a",
		Log:       config.Log{Level: "debug", Format: "text", Access: true},
		Access:    config.Access{Peers: []int{0, 1000}},
		TCP: config.TCP{
			Listen: ":7480", TokensFile: "/t", CertFile: "/c", KeyFile: "/k", ClientCAFile: "/ca",
			AllowedHosts: []string{"sandbox.example.org", "10.0.0.1"}, AllowedOrigins: []string{"https://console.example.org"},
		},
		E2B: config.E2B{Listen: "[::1]:7482", DefaultNetwork: "blocked", Templates: map[string]config.E2BTemplate{
			"node": {Image: "node:24", CPUs: 0.5, Memory: 1 << 30, Env: map[string]string{"A": "b"}},
		}},
		Cluster: config.Cluster{Etcd: []string{}, RemountCommand: []string{"/bin/remount", "homes"}, FenceCommand: []string{"/bin/off"}, Watchdog: "/dev/watchdog", Homes: "local"}, // the others need a name, which excludes E2B
	}
	file := settings(t, `{
		"docker": {
			"enabled": true, "image": "registry.example:5000/team/image", "tag": "v1.2",
			"socketPath": "/run/podman.sock", "runtime": "io.containerd.runsc.v1", "eventsRuntime": "runc",
			"enableWeakerNestedSandbox": true, "readOnly": false, "unconfinedSecurity": true, "allowUserNamespaces": true,
			"capAdd": ["cap_net_admin", "SYS_TIME"], "capDrop": [],
			"allowLocalNetworkingForUsers": ["a", "b.c"],
			"isolatedDnsServers": ["9.9.9.9:53"], "localDnsServers": ["tls://dns.example", "fd00::1"]
		},
		"egress": {
			"name": "d", "subnets": ["10.0.0.0/23"], "subnetBits": 16, "extraPorts": [22, 5432], "allowGlobalWildcard": false,
			"presets": {"corp": ["git.corp.example", "*.corp.example"], "x-1": ["a.b"]},
			"alsoPublic": ["10.9.0.0/16", "192.168.7.1/32"], "caFile": "/ca", "ownAddresses": ["203.0.113.7"], "askMetadata": false, "queriesPerSecond": 1, "maxConnections": 65536, "maxUserConnections": 7,
			"maxDomains": 10000, "decisionLog": 100
		},
		"usersDir": "/u", "allowedMountRoots": ["/u", "/srv/data"], "eventsSocket": "/e", "dataDir": "/d", "listen": "/l", "homeOwner": "7:0",
		"limits": {
			"cpus": 0.5, "memory": "1G", "pids": 128, "openFiles": 2048, "shm": "64Mi", "tmp": 65536, "run": "2048Ki", "varTmp": "3Ti"
		},
		"quotas": {
			"perUser": {"containers": 1, "coldStarts": 2, "commands": 3, "detachedExecs": 4, "processes": 5, "exposedPorts": 6, "sandboxes": 7, "calls": 9, "requestsPerSecond": 8},
			"perToken": {"containers": 11, "coldStarts": 12, "commands": 13, "detachedExecs": 14, "processes": 15, "exposedPorts": 16, "sandboxes": 17, "calls": 19, "requestsPerSecond": 18},
			"total": {"containers": 21, "coldStarts": 22, "commands": 23, "detachedExecs": 24, "processes": 25, "exposedPorts": 26, "sandboxes": 27}
		},
		"idle": {"freezeAfter": "2s", "reclaimAfter": "3s", "removeAfter": "90s", "maxContainers": 31, "minFreeMemory": 0},
		"shutdownGraceMs": 5,
		"pool": {"size": 3, "max": 4, "minFreeMemory": "512Mi"},
		"exec": {
			"defaultTimeoutMs": 1, "maxTimeoutMs": 2, "maxAttachedTimeoutMs": 5, "maxOutputBytes": 3, "maxRequestBytes": 4096, "killGraceMs": 0, "ahead": 0
		},
		"read": {"maxImage": {"bytes": 7, "pixels": 8}},
		"processes": {"maxLog": "1Mi", "stopGraceMs": 3, "exposePorts": "2000-2000"},
		"agentPath": "/a",
		"log": {"level": "debug", "format": "text", "access": true},
		"access": {"peers": [0, 1000]},
		"tcp": {
			"listen": ":7480", "tokensFile": "/t", "certFile": "/c", "keyFile": "/k", "clientCaFile": "/ca",
			"allowedHosts": ["sandbox.example.org", "10.0.0.1"], "allowedOrigins": ["https://console.example.org"]
		},
		"cluster": {"remountCommand": ["/bin/remount", "homes"], "fenceCommand": ["/bin/off"], "watchdog": "/dev/watchdog", "homes": "local"},
		"e2b": {"listen": "[::1]:7482", "defaultNetwork": "blocked", "templates": {
			"node": {"image": "node:24", "cpus": 0.5, "memory": "1Gi", "env": {"A": "b"}}
		}}
	}`)
	environ := map[string]string{
		"SANDBOXD_DOCKER_ENABLED":                          "true",
		"SANDBOXD_DOCKER_IMAGE":                            "registry.example:5000/team/image",
		"SANDBOXD_DOCKER_TAG":                              "v1.2",
		"SANDBOXD_DOCKER_SOCKET_PATH":                      "/run/podman.sock",
		"SANDBOXD_DOCKER_RUNTIME":                          "io.containerd.runsc.v1",
		"SANDBOXD_DOCKER_EVENTS_RUNTIME":                   "runc",
		"SANDBOXD_ALLOWED_MOUNT_ROOTS":                     "/u,/srv/data",
		"SANDBOXD_EVENTS_SOCKET":                           "/e",
		"SANDBOXD_DOCKER_ENABLE_WEAKER_NESTED_SANDBOX":     "1",
		"SANDBOXD_DOCKER_READ_ONLY":                        "false",
		"SANDBOXD_DOCKER_UNCONFINED_SECURITY":              "TRUE",
		"SANDBOXD_DOCKER_ALLOW_USER_NAMESPACES":            "true",
		"SANDBOXD_DOCKER_CAP_ADD":                          "NET_ADMIN, CAP_SYS_TIME",
		"SANDBOXD_DOCKER_CAP_DROP":                         "",
		"SANDBOXD_DOCKER_ALLOW_LOCAL_NETWORKING_FOR_USERS": "a,b.c",
		"SANDBOXD_DOCKER_ISOLATED_DNS_SERVERS":             "9.9.9.9:53",
		"SANDBOXD_DOCKER_LOCAL_DNS_SERVERS":                "tls://dns.example,fd00::1",
		"SANDBOXD_EGRESS_NAME":                             "d",
		"SANDBOXD_EGRESS_SUBNETS":                          "10.0.0.0/23",
		"SANDBOXD_EGRESS_SUBNET_BITS":                      "16",
		"SANDBOXD_EGRESS_EXTRA_PORTS":                      "22, 5432",
		"SANDBOXD_EGRESS_ALLOW_GLOBAL_WILDCARD":            "false",
		"SANDBOXD_EGRESS_PRESETS":                          ` {"corp": ["git.corp.example", "*.corp.example"], "x-1": ["a.b"]} `,
		"SANDBOXD_EGRESS_ALSO_PUBLIC":                      "10.9.0.0/16,192.168.7.1/32",
		"SANDBOXD_EGRESS_CA_FILE":                          "/ca",
		"SANDBOXD_EGRESS_OWN_ADDRESSES":                    "203.0.113.7",
		"SANDBOXD_EGRESS_ASK_METADATA":                     "false",
		"SANDBOXD_EGRESS_QUERIES_PER_SECOND":               "1",
		"SANDBOXD_EGRESS_MAX_CONNECTIONS":                  "65536",
		"SANDBOXD_EGRESS_MAX_USER_CONNECTIONS":             "7",
		"SANDBOXD_EGRESS_MAX_DOMAINS":                      "10000",
		"SANDBOXD_EGRESS_DECISION_LOG":                     "100",
		"SANDBOXD_READ_MAX_IMAGE_BYTES":                    "7",
		"SANDBOXD_READ_MAX_IMAGE_PIXELS":                   "8",
		"SANDBOXD_PROCESSES_MAX_LOG":                       "1Mi",
		"SANDBOXD_PROCESSES_STOP_GRACE_MS":                 "3",
		"SANDBOXD_PROCESSES_EXPOSE_PORTS":                  "2000-2000",
		"SANDBOXD_USERS_DIR":                               "/u",
		"SANDBOXD_DATA_DIR":                                "/d",
		"SANDBOXD_LISTEN":                                  "/l",
		"SANDBOXD_HOME_OWNER":                              "7:0",
		"SANDBOXD_LIMITS_CPUS":                             "0.5",
		"SANDBOXD_LIMITS_MEMORY":                           "1G",
		"SANDBOXD_LIMITS_PIDS":                             "128",
		"SANDBOXD_LIMITS_OPEN_FILES":                       "2048",
		"SANDBOXD_LIMITS_SHM":                              "64Mi",
		"SANDBOXD_LIMITS_TMP":                              "65536",
		"SANDBOXD_LIMITS_RUN":                              "2Mi",
		"SANDBOXD_LIMITS_VAR_TMP":                          "3Ti",
		"SANDBOXD_IDLE_FREEZE_AFTER":                       "2s",
		"SANDBOXD_IDLE_RECLAIM_AFTER":                      "3s",
		"SANDBOXD_IDLE_REMOVE_AFTER":                       "1m30s",
		"SANDBOXD_IDLE_MAX_CONTAINERS":                     "31",
		"SANDBOXD_IDLE_MIN_FREE_MEMORY":                    "0",
		"SANDBOXD_SHUTDOWN_GRACE_MS":                       "5",
		"SANDBOXD_POOL_SIZE":                               "3",
		"SANDBOXD_POOL_MAX":                                "4",
		"SANDBOXD_POOL_MIN_FREE_MEMORY":                    "512Mi",
		"SANDBOXD_EXEC_DEFAULT_TIMEOUT_MS":                 "1",
		"SANDBOXD_EXEC_MAX_TIMEOUT_MS":                     "2",
		"SANDBOXD_EXEC_MAX_ATTACHED_TIMEOUT_MS":            "5",
		"SANDBOXD_QUOTAS_PER_USER_CONTAINERS":              "1",
		"SANDBOXD_QUOTAS_PER_USER_COLD_STARTS":             "2",
		"SANDBOXD_QUOTAS_PER_USER_COMMANDS":                "3",
		"SANDBOXD_QUOTAS_PER_USER_DETACHED_EXECS":          "4",
		"SANDBOXD_QUOTAS_PER_USER_PROCESSES":               "5",
		"SANDBOXD_QUOTAS_PER_USER_EXPOSED_PORTS":           "6",
		"SANDBOXD_QUOTAS_PER_USER_SANDBOXES":               "7",
		"SANDBOXD_QUOTAS_PER_USER_CALLS":                   "9",
		"SANDBOXD_QUOTAS_PER_USER_REQUESTS_PER_SECOND":     "8",
		"SANDBOXD_QUOTAS_PER_TOKEN_CONTAINERS":             "11",
		"SANDBOXD_QUOTAS_PER_TOKEN_COLD_STARTS":            "12",
		"SANDBOXD_QUOTAS_PER_TOKEN_COMMANDS":               "13",
		"SANDBOXD_QUOTAS_PER_TOKEN_DETACHED_EXECS":         "14",
		"SANDBOXD_QUOTAS_PER_TOKEN_PROCESSES":              "15",
		"SANDBOXD_QUOTAS_PER_TOKEN_EXPOSED_PORTS":          "16",
		"SANDBOXD_QUOTAS_PER_TOKEN_SANDBOXES":              "17",
		"SANDBOXD_QUOTAS_PER_TOKEN_CALLS":                  "19",
		"SANDBOXD_QUOTAS_PER_TOKEN_REQUESTS_PER_SECOND":    "18",
		"SANDBOXD_QUOTAS_TOTAL_CONTAINERS":                 "21",
		"SANDBOXD_QUOTAS_TOTAL_COLD_STARTS":                "22",
		"SANDBOXD_QUOTAS_TOTAL_COMMANDS":                   "23",
		"SANDBOXD_QUOTAS_TOTAL_DETACHED_EXECS":             "24",
		"SANDBOXD_QUOTAS_TOTAL_PROCESSES":                  "25",
		"SANDBOXD_QUOTAS_TOTAL_EXPOSED_PORTS":              "26",
		"SANDBOXD_QUOTAS_TOTAL_SANDBOXES":                  "27",
		"SANDBOXD_EXEC_MAX_OUTPUT_BYTES":                   "3",
		"SANDBOXD_EXEC_MAX_REQUEST_BYTES":                  "4096",
		"SANDBOXD_EXEC_KILL_GRACE_MS":                      "0",
		"SANDBOXD_EXEC_AHEAD":                              "0",
		"SANDBOXD_AGENT_PATH":                              "/a",
		"SANDBOXD_LOG_LEVEL":                               "debug",
		"SANDBOXD_LOG_FORMAT":                              "text",
		"SANDBOXD_LOG_ACCESS":                              "true",
		"SANDBOXD_ACCESS_PEERS":                            "0,1000",
		"SANDBOXD_TCP_LISTEN":                              ":7480",
		"SANDBOXD_TCP_TOKENS_FILE":                         "/t",
		"SANDBOXD_TCP_CERT_FILE":                           "/c",
		"SANDBOXD_TCP_KEY_FILE":                            "/k",
		"SANDBOXD_TCP_CLIENT_CA_FILE":                      "/ca",
		"SANDBOXD_TCP_ALLOWED_HOSTS":                       "sandbox.example.org, 10.0.0.1",
		"SANDBOXD_TCP_ALLOWED_ORIGINS":                     "https://console.example.org",
		"SANDBOXD_CLUSTER_REMOUNT_COMMAND":                 "/bin/remount, homes",
		"SANDBOXD_CLUSTER_FENCE_COMMAND":                   "/bin/off",
		"SANDBOXD_CLUSTER_WATCHDOG":                        "/dev/watchdog",
		"SANDBOXD_CLUSTER_HOMES":                           "local",
		"SANDBOXD_E2B_LISTEN":                              "[::1]:7482",
		"SANDBOXD_E2B_DEFAULT_NETWORK":                     "blocked",
		"SANDBOXD_E2B_TEMPLATES":                           `{"node": {"image": "node:24", "cpus": 0.5, "memory": "1Gi", "env": {"A": "b"}}}`,
		"PATH":                                             "/bin", // not ours
		"SANDBOX_USER":                                     "x",
	}
	if diff := cmp.Diff(want, load(t, file, nil)); diff != "" {
		t.Errorf("from the file:\n%s", diff)
	}
	if diff := cmp.Diff(want, load(t, "testdata/daycare.json", environ)); diff != "" {
		t.Errorf("from the environment:\n%s", diff)
	}
}
