package config_test

import (
	"errors"
	"fmt"
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
			Name: "daycare", Subnets: []string{"10.213.0.0/16", "172.29.0.0/16", "192.168.224.0/20"}, SubnetBits: 22,
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
		Limits:    config.Limits{CPUs: 4, Memory: 16 * gi, PIDs: 1024, OpenFiles: 16384, Shm: gi, Tmp: gi, Run: gi / 16, VarTmp: 8 * gi},
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
		Read:          config.Read{MaxImage: config.MaxImage{Bytes: 5_000_000, Pixels: 8000}},
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
		`{"idleTimeout":"1m","idle":{"removeAfter":"2m"}}`: "idle.removeAfter: it is also given by its former name",
		`{"idle":{"removeAfter":"2m"},"idleTimeout":"1m"}`: "idleTimeout: it is now called idle.removeAfter, which is also given",
		`{"idleTimeout":"1m","idleTimeout":"2m"}`:          "idleTimeout: is given more than once",
		`{"idleTimeout":"1ms"}`:                            `idle.removeAfter: "1ms" is less than 1s`,
		`{"idleTimeout":5}`:                                "idleTimeout: want a duration",
	} {
		if _, err := config.Load(settings(t, text), nil); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", text, err)
		}
	}
	former["SANDBOXD_IDLE_REMOVE_AFTER"] = "2m"
	if _, err := config.Load("", former); err == nil || !strings.Contains(err.Error(), "SANDBOXD_IDLE_TIMEOUT: is now called SANDBOXD_IDLE_REMOVE_AFTER, which is set, too") {
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

// Each path by which another process finds its file is one of that process.
func TestFileOfAnotherProcess(t *testing.T) {
	root := t.TempDir()
	at := func(path string) string { return filepath.Join(root, path) }
	if _, file, err := config.Find("", nil, at); err != nil || file != "" {
		t.Errorf("without a file: %q, %v", file, err)
	}
	for name, pids := range map[string]int64{config.DefaultFile: 300, "/named.json": 400, "/of-variable.json": 500} {
		text := fmt.Sprintf(`{"limits":{"pids":%d}}`, pids)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at(name)), 0o700), os.WriteFile(at(name), []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	variable := []string{"SANDBOXD_SETTINGS=/of-variable.json"}
	for _, tt := range []struct {
		named   string
		environ []string
		file    string
		pids    int64
	}{
		{"", nil, config.DefaultFile, 300},
		{"/named.json", variable, "/named.json", 400},
		{"", variable, "/of-variable.json", 500},
	} {
		if c, file, err := config.Find(tt.named, tt.environ, at); err != nil || file != at(tt.file) || c.Limits.PIDs != tt.pids {
			t.Errorf("%q, %q: %d of %s, %v", tt.named, tt.environ, c.Limits.PIDs, file, err)
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
