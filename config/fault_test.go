package config_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/config"
)

func TestFaultsOfTheFile(t *testing.T) {
	long := strings.Repeat("x", 200)
	tests := []struct {
		name, file string
		want       []string // each fault, in order
	}{
		// Keys.
		{"unknown key", `{"docker":{"runtme":"runsc"}}`, []string{`docker.runtme: unknown key (did you mean runtime?)`}},
		{"two letters exchanged", `{"limits":{"cpsu":2}}`, []string{`limits.cpsu: unknown key (did you mean cpus?)`}},
		{"unknown key, wrong case", `{"Docker":{}}`, []string{`Docker: unknown key (did you mean docker?)`}},
		{"unknown key of egress", `{"egress":{"extraPort":[22]}}`, []string{`egress.extraPort: unknown key (did you mean extraPorts?)`}},
		{"unknown key like none", `{"telemetry":{"docker":{}}}`, []string{`telemetry: unknown key`}},
		{"unknown key twice", `{"x":1,"x":2}`, []string{`x: unknown key`}},
		{"unknown key, value not shown", `{"token":"hunter2"}`, []string{`token: unknown key`}},
		{"key that could break the message", `{"a\nb":1}`, []string{`"a\nb": unknown key`}},
		{"empty key", `{"":1}`, []string{`"": unknown key`}},
		{"long key", `{"` + long + `":1}`, []string{`"` + long[:100] + `"...: unknown key`}},
		{"duplicate key", `{"listen":"/a","listen":"/b"}`, []string{`listen: is given more than once, here as "/b"`}},
		{"duplicate section", `{"log":{},"log":{"level":"info"}}`,
			[]string{`log: is given more than once, here as {"level":"info"}`}},

		// Syntax.
		{"empty", ``, []string{`line 1, column 1: the JSON ends too early`}},
		{"truncated", "{\n\"log\": {", []string{`line 2, column 9, near log: the JSON ends too early`}},
		{"only a comment", `// x`, []string{`line 1, column 5: the JSON ends too early`}},
		{"place after comments", "// a: \"\n{ // {\n  \"x\": 1;, // \"x\": 2\n}", []string{
			`x: unknown key`,
			`line 3, column 9: cannot be read as JSON: invalid character ';' after object value (expecting ',' or '}')`,
		}},
		{"comment in a string", `{"dataDir":"//x\\\"//"}`, []string{`dataDir: "//x\\\"//" is not clean: write "/x\\\""`}},
		{"comment that does not end", `{/* x }`, []string{`line 1, column 2: cannot be read as JSON: invalid character '/' at start of value`}},
		{"half a comment", `{"listen":"/a"/}`, []string{`line 1, column 15, near listen: cannot be read as JSON: invalid character '/' after object value (expecting ',' or '}')`}},
		{"trailing value", "{}\n{}", []string{`line 1, column 3: there is more after the first value`}},
		{"trailing data", `{} x`, []string{`line 1, column 4: cannot be read as JSON: invalid character 'x' at start of value`}},
		{"not UTF-8", "{\"\xff\":1}", []string{`line 1, column 3: cannot be read as JSON: invalid UTF-8`}},
		{"faults before the break", `{"a":1,"limits":{"pids":"x",]}`, []string{
			`a: unknown key`,
			`limits.pids: want a whole number, got "x"`,
			`line 1, column 29, near limits.pids: cannot be read as JSON: invalid character ']' after object value (expecting ',' or '}')`,
		}},

		// Types.
		{"no object", `[]`, []string{`the whole file: want an object, got []`}},
		{"null", `null`, []string{`the whole file: want an object, got null`}},
		{"section no object", `{"docker": [1, 2]}`, []string{`docker: want an object, got [1,2]`}},
		{"string", `{"docker":{"image":3}}`, []string{`docker.image: want a string, got 3`}},
		{"bool", `{"docker":{"readOnly":"true"}}`, []string{`docker.readOnly: want true or false, got "true"`}},
		{"whole number", `{"limits":{"pids":1.5}}`, []string{`limits.pids: want a whole number, got 1.5`}},
		{"number", `{"limits":{"cpus":"4"}}`, []string{`limits.cpus: want a number, got "4"`}},
		{"list", `{"docker":{"capAdd":"ALL"}}`, []string{`docker.capAdd: want a list of strings, got "ALL"`}},
		{"null list", `{"docker":{"capDrop":null}}`, []string{`docker.capDrop: want a list of strings, got null`}},
		{"items", `{"docker":{"capAdd":[1,"ALL",null,{"a":1,"a":2}]}}`, []string{
			`docker.capAdd[0]: want a string, got 1`,
			`docker.capAdd[2]: want a string, got null`,
			`docker.capAdd[3]: want a string, got {"a":1,"a":2}`,
		}},
		{"whole numbers", `{"egress":{"extraPorts":22,"maxDomains":"9"}}`, []string{
			`egress.extraPorts: want a list of whole numbers, got 22`,
			`egress.maxDomains: want a whole number, got "9"`,
		}},
		{"items that are numbers", `{"egress":{"extraPorts":["22",22.5,null,99999999999999999999,0,22,22]}}`, []string{
			`egress.extraPorts[0]: want a whole number, got "22"`,
			`egress.extraPorts[1]: want a whole number, got 22.5`,
			`egress.extraPorts[2]: want a whole number, got null`,
			`egress.extraPorts[3]: 99999999999999999999 is out of range`,
			`egress.extraPorts[4]: 0 is not from 1 to 65535`,
			`egress.extraPorts[6]: 22 is given more than once`,
		}},
		{"object of lists", `{"egress":{"presets":[]}}`, []string{`egress.presets: want an object of lists of strings, got []`}},
		{"null object", `{"egress":{"presets":null}}`, []string{`egress.presets: want an object of lists of strings, got null`}},
		{"members of an object", `{"egress":{"presets":{"a":"a.b","b":["b.c",7,""],"c":null,"a":["x"],"D":[],"e f":[{}]}}}`, []string{
			`egress.presets.a: want a list of strings, got "a.b"`,
			`egress.presets.b[1]: want a string, got 7`,
			`egress.presets.c: want a list of strings, got null`,
			`egress.presets.a: is given more than once, here as ["x"]`,
			`egress.presets."e f"[0]: want a string, got {}`,
			`egress.presets.D: "D" is no name of a preset: want 1 to 32 of a-z, 0-9 and "-", a letter first`,
			`egress.presets.D: [] names no domain`,
			`egress.presets.b[2]: "" names no domain`,
			`egress.presets."e f": "e f" is no name of a preset: want 1 to 32 of a-z, 0-9 and "-", a letter first`,
		}},
		{"object that breaks off", `{"egress":{"presets":{"a":["x"`, []string{`line 1, column 31, near egress.presets.a[1]: the JSON ends too early`}},
		{"size", `{"limits":{"memory":true}}`, []string{`limits.memory: want a size such as 16Gi, got true`}},
		{"duration", `{"idle":{"removeAfter":900}}`, []string{`idle.removeAfter: want a duration such as 15m, got 900`}},
		{"ports", `{"processes":{"exposePorts":"80"}}`, []string{`processes.exposePorts: "80-80" has to go upwards, from 1024 on`}},
		{"ports out of bounds", `{"processes":{"exposePorts":"2000-65536"}}`, []string{`processes.exposePorts: "2000-65536" is no range of ports: want first-last, such as 20000-20999`}},
		{"ports as a list", `{"processes":{"exposePorts":[2000]}}`, []string{`processes.exposePorts: want a range of ports such as 20000-20999, got [2000]`}},
		{"owner", `{"homeOwner":1000}`, []string{`homeOwner: want an owner such as 1000:1000 or a range of them such as 200000-299999, got 1000`}},
		{"owners", `{"homeOwner":"9-"}`, []string{`homeOwner: "9-" is no range of ids: want first-last, such as 200000-299999`}},
		{"number out of range", `{"limits":{"cpus":1e999,"pids":99999999999999999999}}`, []string{
			`limits.cpus: 1e999 is out of range`,
			`limits.pids: 99999999999999999999 is out of range`,
		}},
		{"long value", `{"limits":{"pids":"` + long + `"}}`,
			[]string{`limits.pids: want a whole number, got "` + long[:100] + `"...`}},
		{"long list", `{"log":["` + long + `"]}`, []string{`log: want an object, got ["` + long[:98] + `...`}},

		// A mistyped value is told once, and hides nothing.
		{"several kinds at once", `{"docker":{"enabled":false,"imag":"x","capAdd":[5,"NOPE"]},"limits":{"memory":5},"log":7}`,
			[]string{
				`docker.imag: unknown key (did you mean image?)`,
				`docker.capAdd[0]: want a string, got 5`,
				`log: want an object, got 7`,
				`docker.enabled: false is refused: this service is the Docker mode`,
				`docker.capAdd[1]: "NOPE" is no Linux capability`,
				`limits.memory: "5" is less than 64Mi`,
			}},
		{"comparison with a mistyped value", `{"exec":{"maxTimeoutMs":"x","defaultTimeoutMs":400000}}`,
			[]string{`exec.maxTimeoutMs: want a whole number, got "x"`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := settings(t, tt.file)
			got := faultsOf(t, path, nil, "cannot use the settings of "+path+": ")
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestFaultsOfTheEnvironment(t *testing.T) {
	tests := []struct {
		name, variable, value string
		want                  string
	}{
		{"unknown", "SANDBOXD_LIMITS_MEMRY", "1Gi", `SANDBOXD_LIMITS_MEMRY: unknown variable (did you mean SANDBOXD_LIMITS_MEMORY?)`},
		{"only the prefix", "SANDBOXD_", "x", `SANDBOXD_: unknown variable`},
		{"a section", "SANDBOXD_DOCKER", "{}", `SANDBOXD_DOCKER: unknown variable`},
		{"a prefix of a section", "SANDBOXD_DOCKER_", "x", `SANDBOXD_DOCKER_: unknown variable (did you mean SANDBOXD_DOCKER_TAG?)`},
		{"a secret", "SANDBOXD_TOKEN", "hunter2", `SANDBOXD_TOKEN: unknown variable`},
		{"bool", "SANDBOXD_DOCKER_READ_ONLY", "maybe", `SANDBOXD_DOCKER_READ_ONLY: want true or false, got "maybe"`},
		{"whole number", "SANDBOXD_LIMITS_PIDS", "1k", `SANDBOXD_LIMITS_PIDS: want a whole number, got "1k"`},
		{"number", "SANDBOXD_LIMITS_CPUS", "four", `SANDBOXD_LIMITS_CPUS: want a number, got "four"`},
		{"empty number", "SANDBOXD_LIMITS_CPUS", "", `SANDBOXD_LIMITS_CPUS: want a number, got ""`},
		{"empty size", "SANDBOXD_LIMITS_MEMORY", "", `SANDBOXD_LIMITS_MEMORY: want a size such as 16Gi, got ""`},
		{"duration", "SANDBOXD_IDLE_REMOVE_AFTER", "15", `SANDBOXD_IDLE_REMOVE_AFTER: "15" is no duration: want a number with ms, s, m or h, such as 15m`},
		{"value that is impossible", "SANDBOXD_LIMITS_PIDS", "12", `limits.pids (SANDBOXD_LIMITS_PIDS): 12 is not from 128 to 4194304`},
		{"empty string", "SANDBOXD_DOCKER_IMAGE", "", `docker.image (SANDBOXD_DOCKER_IMAGE): "" is no image: invalid reference format`},
		{"not a number", "SANDBOXD_LIMITS_CPUS", "NaN", `limits.cpus (SANDBOXD_LIMITS_CPUS): NaN is not from 0.01 to 8192`},
		{"infinite", "SANDBOXD_LIMITS_CPUS", "Inf", `limits.cpus (SANDBOXD_LIMITS_CPUS): +Inf is not from 0.01 to 8192`},
		{"item", "SANDBOXD_DOCKER_CAP_ADD", "CHOWN,CHWN", `docker.capAdd[1] (SANDBOXD_DOCKER_CAP_ADD): "CHWN" is no Linux capability (did you mean CHOWN?)`},
		{"empty item", "SANDBOXD_DOCKER_CAP_ADD", "CHOWN,", `docker.capAdd[1] (SANDBOXD_DOCKER_CAP_ADD): "" is no Linux capability`},
		{"unknown, of egress", "SANDBOXD_EGRESS_SUBNET", "10.0.0.0/8", `SANDBOXD_EGRESS_SUBNET: unknown variable (did you mean SANDBOXD_EGRESS_SUBNETS?)`},
		{"number with letters", "SANDBOXD_EGRESS_MAX_DOMAINS", "1k", `SANDBOXD_EGRESS_MAX_DOMAINS: want a whole number, got "1k"`},
		{"number of more than 32 bits", "SANDBOXD_EGRESS_MAX_DOMAINS", "3000000000", `egress.maxDomains (SANDBOXD_EGRESS_MAX_DOMAINS): 3000000000 is not from 1 to 10000`},
		{"numbers", "SANDBOXD_EGRESS_EXTRA_PORTS", "22,ssh", `SANDBOXD_EGRESS_EXTRA_PORTS: want a list of whole numbers, got "22,ssh"`},
		{"numbers, the last empty", "SANDBOXD_EGRESS_EXTRA_PORTS", "22,", `SANDBOXD_EGRESS_EXTRA_PORTS: want a list of whole numbers, got "22,"`},
		{"number that is impossible", "SANDBOXD_EGRESS_EXTRA_PORTS", "22, 443", `egress.extraPorts[1] (SANDBOXD_EGRESS_EXTRA_PORTS): 443 is refused: 53, 80 and 443 have rules of their own`},
		{"empty list that may not be", "SANDBOXD_EGRESS_SUBNETS", "", `egress.subnets (SANDBOXD_EGRESS_SUBNETS): [] leaves the networks without addresses: want at least one prefix`},
		{"empty object", "SANDBOXD_EGRESS_PRESETS", "", `SANDBOXD_EGRESS_PRESETS: want an object of lists of strings, got ""`},
		{"object that is no JSON", "SANDBOXD_EGRESS_PRESETS", `{"a":["a.b"]`, `SANDBOXD_EGRESS_PRESETS: want an object of lists of strings, got "{\"a\":[\"a.b\"]"`},
		{"two objects", "SANDBOXD_EGRESS_PRESETS", `{}{}`, `SANDBOXD_EGRESS_PRESETS: want an object of lists of strings, got "{}{}"`},
		{"no object", "SANDBOXD_EGRESS_PRESETS", `a=b`, `SANDBOXD_EGRESS_PRESETS: want an object of lists of strings, got "a=b"`},
		{"member of an object", "SANDBOXD_EGRESS_PRESETS", `{"a":[1]}`, `egress.presets.a[0] (SANDBOXD_EGRESS_PRESETS): want a string, got 1`},
		{"member that comes twice", "SANDBOXD_EGRESS_PRESETS", `{"a":["b.c"],"a":[]}`, `egress.presets.a (SANDBOXD_EGRESS_PRESETS): is given more than once, here as []`},
		{"member that is impossible", "SANDBOXD_EGRESS_PRESETS", `{"a":["b.c",""]}`, `egress.presets.a[1] (SANDBOXD_EGRESS_PRESETS): "" names no domain`},
		{"path that is not UTF-8", "SANDBOXD_USERS_DIR", "/\xff", `usersDir (SANDBOXD_USERS_DIR): "/\xff" is not UTF-8`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			environ := map[string]string{tt.variable: tt.value}
			got := faultsOf(t, "", environ, "cannot use the settings of the environment: ")
			if diff := cmp.Diff([]string{tt.want}, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestFaultsOfFileAndEnvironmentTogether(t *testing.T) {
	path := settings(t, `{"limits":{"memory":"x","shm":"x","pids":1}}`)
	environ := map[string]string{
		"SANDBOXD_LIMITS_MEMORY": "1",
		"SANDBOXD_LIMITS_SHM":    "1Gi",
		"SANDBOXD_LIMITS_PIDS":   "256", // mends the file's value
	}
	want := []string{
		`limits.memory: "x" is no size: want a whole number of bytes, or one with Ki, Mi, Gi, Ti, K, M, G or T, such as 16Gi`,
		`limits.shm: "x" is no size: want a whole number of bytes, or one with Ki, Mi, Gi, Ti, K, M, G or T, such as 16Gi`,
		`limits.memory (SANDBOXD_LIMITS_MEMORY): "1" is less than 64Mi`,
	}
	if diff := cmp.Diff(want, faultsOf(t, path, environ, "cannot use")); diff != "" {
		t.Error(diff)
	}
}

// faultsOf loads what must fail and returns the faults, one a line, without the beginning of the
// message.
func faultsOf(t *testing.T, path string, environ map[string]string, begins string) []string {
	t.Helper()
	c, err := config.Load(path, environ)
	if err == nil {
		t.Fatalf("it loads: %+v", c)
	}
	if diff := cmp.Diff(config.Config{}, c); diff != "" {
		t.Errorf("a Config comes with the error: %s", diff)
	}
	if !strings.HasPrefix(err.Error(), begins) {
		t.Errorf("the message begins otherwise: %v", err)
	}
	return faultLines(err)
}

func faultLines(err error) []string {
	lines := strings.Split(err.Error(), "\n")[1:]
	for i := range lines {
		lines[i] = strings.TrimPrefix(lines[i], "  ")
	}
	return lines
}
