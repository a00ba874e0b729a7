package config_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/config"
)

func TestDefaults(t *testing.T) {
	const gi = 1 << 30
	want := config.Config{
		Docker: config.Docker{
			Enabled:                      true,
			Image:                        "daycare-sandbox",
			Tag:                          "latest",
			SocketPath:                   "/var/run/docker.sock",
			Runtime:                      "runsc",
			EventsRuntime:                "runsc-events",
			EnableWeakerNestedSandbox:    false,
			ReadOnly:                     true,
			UnconfinedSecurity:           false,
			CapAdd:                       []string{},
			CapDrop:                      []string{"ALL"},
			AllowLocalNetworkingForUsers: []string{},
			IsolatedDNSServers:           []string{"1.1.1.1", "8.8.8.8"},
			LocalDNSServers:              []string{},
		},
		Egress: config.Egress{
			Name: "daycare", Subnets: []string{"10.213.0.0/16", "172.29.0.0/16", "192.168.224.0/20"},
			ExtraPorts: []int{}, AllowGlobalWildcard: true, Presets: map[string][]string{}, AlsoPublic: []string{}, OwnAddresses: []string{}, AskMetadata: true,
			QueriesPerSecond: 200, MaxConnections: 4096, MaxUserConnections: 8192, MaxDomains: 256, DecisionLog: 10_000,
		},
		UsersDir:  "/data/users",
		DataDir:   "/var/lib/daycare-sandbox",
		Listen:    "/run/daycare-sandbox/sandboxd.sock",
		TCP:       config.TCP{AllowedHosts: []string{}, AllowedOrigins: []string{}},
		E2B:       config.E2B{DefaultNetwork: "open", Templates: map[string]config.E2BTemplate{}},
		Cluster:   config.Cluster{Etcd: []string{}, RemountCommand: []string{}, FenceCommand: []string{}, Homes: "shared"},
		HomeOwner: config.Owners{UID: 200_000, Last: 299_999},
		Limits:    config.Limits{CPUs: 4, Memory: 16 * gi, PIDs: 1024, OpenFiles: 16384, Shm: gi, Tmp: gi, Run: gi / 16, VarTmp: gi},
		Quotas: config.Quotas{
			PerUser:  config.Quota{TotalQuota: config.TotalQuota{Containers: 16, ColdStarts: 2, Commands: 100, DetachedExecs: 64, Processes: 64, ExposedPorts: 32, Sandboxes: 1000}, Calls: 200, RequestsPerSecond: 1000},
			PerToken: config.Quota{TotalQuota: config.TotalQuota{Containers: 64, ColdStarts: 4, Commands: 200, DetachedExecs: 128, Processes: 256, ExposedPorts: 128, Sandboxes: 2000}, Calls: 400, RequestsPerSecond: 2000},
			Total:    config.TotalQuota{Containers: 500, ColdStarts: 0, Commands: 500, DetachedExecs: 256, Processes: 1000, ExposedPorts: 1000, Sandboxes: 100_000},
		},
		Idle: config.Idle{FreezeAfter: config.Duration(30 * time.Second), ReclaimAfter: config.Duration(5 * time.Minute), RemoveAfter: config.Duration(24 * time.Hour), MaxContainers: 200, MinFreeMemory: gi / 2},
		Pool: config.Pool{Size: 2, Max: 8, MinFreeMemory: gi},
		Exec: config.Exec{
			DefaultTimeout: 30_000, MaxTimeout: 300_000, MaxAttachedTimeout: 28_800_000, MaxOutputBytes: 1_000_000, MaxRequestBytes: 16_777_216, KillGrace: 2_000, Ahead: 1,
		},
		Processes:     config.Processes{MaxLog: 100 << 20, StopGrace: 8000},
		ShutdownGrace: 10_000,
		Log:           config.Log{Level: "info", Format: "json"},
	}
	for name, got := range map[string]config.Config{
		"no file":      load(t, "", nil),
		"empty object": load(t, settings(t, `{}`), nil),
		"empty parts":  load(t, settings(t, `{"docker":{},"egress":{"presets":{}},"limits":{},"exec":{},"log":{}}`), nil),
	} {
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
}

// testdata/daycare.json is the example of Daycare's own documentation.
func TestDaycareSettings(t *testing.T) {
	want := config.Default()
	want.Docker.ReadOnly = false
	want.Docker.CapAdd = []string{"NET_ADMIN"}
	want.Docker.CapDrop = []string{"MKNOD"}
	want.Docker.AllowLocalNetworkingForUsers = []string{"user-admin"}
	want.Docker.LocalDNSServers = []string{"192.168.0.1"}
	if diff := cmp.Diff(want, load(t, "testdata/daycare.json", nil)); diff != "" {
		t.Error(diff)
	}
}

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
			Name: "d", Subnets: []string{"10.0.0.0/23"}, ExtraPorts: []int{22, 5432}, AllowGlobalWildcard: false,
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
		Cluster: config.Cluster{Etcd: []string{}, RemountCommand: []string{"/bin/remount", "homes"}, FenceCommand: []string{"/bin/off"}, Homes: "local"}, // the others need a name, which excludes E2B
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
			"name": "d", "subnets": ["10.0.0.0/23"], "extraPorts": [22, 5432], "allowGlobalWildcard": false,
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
		"processes": {"maxLog": "1Mi", "stopGraceMs": 3, "exposePorts": "2000-2000"},
		"agentPath": "/a",
		"log": {"level": "debug", "format": "text", "access": true},
		"access": {"peers": [0, 1000]},
		"tcp": {
			"listen": ":7480", "tokensFile": "/t", "certFile": "/c", "keyFile": "/k", "clientCaFile": "/ca",
			"allowedHosts": ["sandbox.example.org", "10.0.0.1"], "allowedOrigins": ["https://console.example.org"]
		},
		"cluster": {"remountCommand": ["/bin/remount", "homes"], "fenceCommand": ["/bin/off"], "homes": "local"},
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

// A setting may be given by the name that it had in a former version, but not by both.
func TestFormerNames(t *testing.T) {
	want := config.Default()
	want.Idle.RemoveAfter = config.Duration(time.Minute)
	former := map[string]string{"SANDBOXD_IDLE_TIMEOUT": "1m"}
	for name, got := range map[string]config.Config{
		"file":        load(t, settings(t, `{"idleTimeout":"1m"}`), nil),
		"environment": load(t, settings(t, `{"idle":{"removeAfter":"2m"}}`), former),
	} {
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
	for text, says := range map[string]string{
		`{"idleTimeout":"1m","idle":{"removeAfter":"2m"}}`: "idle.removeAfter: it is there by its former name, too",
		`{"idle":{"removeAfter":"2m"},"idleTimeout":"1m"}`: "idleTimeout: it is idle.removeAfter now, which is there, too",
		`{"idleTimeout":"1m","idleTimeout":"2m"}`:          "idleTimeout: is given more than once",
		`{"idleTimeout":"1ms"}`:                            `idle.removeAfter: "1ms" is less than 1s`,
		`{"idleTimeout":5}`:                                "idleTimeout: want a duration",
	} {
		if _, err := config.Load(settings(t, text), nil); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", text, err)
		}
	}
	former["SANDBOXD_IDLE_REMOVE_AFTER"] = "2m"
	if _, err := config.Load("", former); err == nil || !strings.Contains(err.Error(), "SANDBOXD_IDLE_TIMEOUT: is SANDBOXD_IDLE_REMOVE_AFTER now, which is set, too") {
		t.Errorf("both: %v", err)
	}
}

func TestComments(t *testing.T) {
	path := settings(t, `/* of ours, "a" */ { // first
		"log": {"level": "debug", /* why // not */ "format": "text",}, "listen": "/run//*x*/",
	} // last`)
	if _, err := config.Load(path, nil); err == nil || !strings.Contains(err.Error(), `listen: "/run//*x*/" is not clean`) {
		t.Errorf("a comment in a string: %v", err)
	}
	path = settings(t, "/* a\n */ { // b\n\"log\": {\"level\": \"debug\", /* c // d */ \"format\": \"text\",},\n} // e")
	if got := load(t, path, nil).Log; got.Level != "debug" || got.Format != "text" {
		t.Errorf("%+v", got)
	}
}

func TestCapDrop(t *testing.T) {
	tests := []struct {
		name, file string
		environ    map[string]string
		want       []string
	}{
		{"absent", `{}`, nil, []string{"ALL"}},
		{"empty", `{"docker":{"capDrop":[]}}`, nil, []string{}},
		{"given", `{"docker":{"capDrop":["Cap_MkNod"]}}`, nil, []string{"MKNOD"}},
		{"emptied by the environment", `{}`, map[string]string{"SANDBOXD_DOCKER_CAP_DROP": ""}, []string{}},
		{"restored by the environment", `{"docker":{"capDrop":[]}}`,
			map[string]string{"SANDBOXD_DOCKER_CAP_DROP": "all"}, []string{"ALL"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := load(t, settings(t, tt.file), tt.environ).Docker.CapDrop
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestListsAndObjectsAreReplaced(t *testing.T) {
	path := settings(t, `{"egress":{"extraPorts":[22],"presets":{"a":["a.b"]},"alsoPublic":["10.0.0.0/8"]}}`)
	got := load(t, path, map[string]string{
		"SANDBOXD_EGRESS_EXTRA_PORTS": "", "SANDBOXD_EGRESS_PRESETS": `{"b":["b.c"]}`, "SANDBOXD_EGRESS_ALSO_PUBLIC": "",
	}).Egress
	want := config.Default().Egress
	want.Presets = map[string][]string{"b": {"b.c"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestReference(t *testing.T) {
	const digest = "@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	tests := []struct{ image, want string }{
		{"daycare-sandbox", "daycare-sandbox:latest"},
		{"localhost:5000/a/b", "localhost:5000/a/b:latest"},
		{"daycare-sandbox" + digest, "daycare-sandbox" + digest},
	}
	for _, tt := range tests {
		got := load(t, "", map[string]string{"SANDBOXD_DOCKER_IMAGE": tt.image}).Docker.Reference()
		if got != tt.want {
			t.Errorf("%s: Reference() = %q, want %q", tt.image, got, tt.want)
		}
	}
}

func TestFilesThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "missing.json")
	if _, err := config.Load(missing, nil); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), missing) {
		t.Errorf("missing file: %v", err)
	}
	if _, err := config.Load(dir, nil); err == nil {
		t.Error("a directory loads")
	}
	if _, err := config.Load(settings(t, `{}`+strings.Repeat(" ", 1<<20)), nil); err == nil || !strings.Contains(err.Error(), "more than 1048576 bytes") {
		t.Errorf("big file: %v", err)
	}
}

// A file that was cut at any byte is refused: nothing that it said is silently the default.
func TestFileThatWasCut(t *testing.T) {
	text, err := os.ReadFile("testdata/daycare.json")
	if err != nil {
		t.Fatal(err)
	}
	path := settings(t, "")
	for length := range len(strings.TrimSpace(string(text))) {
		if err := os.WriteFile(path, text[:length], 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := config.Load(path, nil); err == nil {
			t.Fatalf("cut to %d bytes, it loads", length)
		}
	}
}

func load(t testing.TB, path string, environ map[string]string) config.Config {
	t.Helper()
	c, err := config.Load(path, environ)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Fatalf("what was loaded is not valid: %v", err)
	}
	return c
}

// settings writes a settings.json and returns its path.
func settings(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "settings.json")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
