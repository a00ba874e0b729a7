package config

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/tidwall/jsonc"
)

func FuzzLoad(f *testing.F) {
	example, err := os.ReadFile("testdata/daycare.json")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(example, "", "")
	f.Add([]byte(`{"limits":{"memory":"1Gi","cpus":1e3,"shm":65536},"idle":{"removeAfter":"1h"}}`), "LIMITS_PIDS", "128")
	f.Add([]byte(`{"docker":{"capAdd":[1,"x",null],"capAdd":[]},"x":{"y":[`), "DOCKER_CAP_DROP", "")
	f.Add([]byte(`{"docker":{"isolatedDnsServers":["tls://a.b:853","[::1]:53"]}}`), "HOME_OWNER", "1:1")
	f.Add([]byte(`{"egress":{"name":"d","subnets":["10.0.0.0/8","192.168.0.0/23"],"extraPorts":[22,5432]}}`), "EGRESS_EXTRA_PORTS", "22, 23")
	f.Add([]byte(`{"egress":{"presets":{"a":["b.c",1],"a":null,"B":[""]},"alsoPublic":["10.0.0.0/8"]}}`), "EGRESS_PRESETS", `{"a":["*.b.c"]}`)
	f.Add([]byte(`{}{}`), "EXEC_MAX_TIMEOUT_MS", "99999999999999999999")
	f.Add([]byte(``), "NO_SUCH", "x")
	f.Add([]byte("{ // {\n\"listen\":\"//a\\\\\"//\n}"), "", "")
	f.Fuzz(func(t *testing.T, data []byte, variable, value string) {
		environ := map[string]string{prefix + variable: value}
		if variable == "" {
			environ = nil
		}
		c, wrong := load(data, environ)
		if len(wrong) > 0 {
			if !reflect.DeepEqual(c, Config{}) {
				t.Fatalf("a Config comes with the faults: %+v", c)
			}
			if lines := strings.Count(wrong.Error(), "\n"); lines != len(wrong) {
				t.Fatalf("%d faults on %d lines:\n%v", len(wrong), lines, wrong)
			}
			return
		}
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		// A second reader must not object to what was accepted as JSON.
		if data != nil && !json.Valid(jsonc.ToJSON(data)) {
			t.Fatalf("%q is no JSON, but loads", data)
		}
	})
}

// A field without its tags could be set by nobody and would be missed by no other test.
func TestEveryFieldIsTagged(t *testing.T) {
	var c Config
	seen := make(map[string]bool)
	for _, f := range settings(&c) {
		if strings.HasSuffix(f.key, ".") || f.key == "" || seen[f.key] || seen[f.variable] || strings.HasSuffix(f.variable, "_") {
			t.Errorf("the tags of %q (%q) are wrong", f.key, f.variable)
		}
		seen[f.key], seen[f.variable] = true, true
	}
}
