package e2e

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
)

// Bad input is refused with what is wrong, and nothing is started for it.
func TestBadInput(t *testing.T) {
	l := newLab(t, "runsc", "SANDBOXD_EXEC_MAX_REQUEST_BYTES=100000")
	l.register(t, "input")
	const exec = "/v1/sandboxes/input/exec"
	for _, c := range []struct {
		name, path, body string
		status           int
		want             string
	}{
		{"unknown sandbox", "/v1/sandboxes/nobody/exec", `{"command":"true"}`, 404, `sandbox \"nobody\" is not registered`},
		{"sandbox id that is a path", "/v1/sandboxes/..%2f..%2fetc/exec", `{"command":"true"}`, 400, "has an empty component, . or .."},
		{"empty command", exec, `{"command":""}`, 400, "command is empty"},
		{"blank command", exec, `{"command":" \n"}`, 400, "command is empty"},
		{"command and argv", exec, `{"command":"true","argv":["true"]}`, 400, "both set"},
		{"NUL in a command", exec, `{"command":"echo \u0000"}`, 400, "command has a NUL byte"},
		{"NUL in an argument", exec, `{"argv":["echo","\u0000"]}`, 400, "argv[1] has a NUL byte"},
		{"name with =", exec, `{"command":"true","env":{"A=B":"x"}}`, 400, `env has the name \"A=B\"`},
		{"NUL in a value", exec, `{"command":"true","secrets":{"A":"\u0000"}}`, 400, "secrets.A has a NUL byte"},
		{"no time", exec, `{"command":"true","timeoutMs":0}`, 400, "timeoutMs 0"},
		{"negative time", exec, `{"command":"true","timeoutMs":-5}`, 400, "timeoutMs -5"},
		{"too much time", exec, `{"command":"true","timeoutMs":300001}`, 400, "timeoutMs 300001"},
		{"cwd outside", exec, `{"command":"true","cwd":"/etc"}`, 403, `cwd \"/etc\" is outside`},
		{"cwd that leads out", exec, `{"command":"true","cwd":"../etc"}`, 403, `cwd \"/etc\" is outside`},
		{"unknown key", exec, `{"command":"true","shell":"zsh"}`, 400, "shell: unknown key"},
		{"key twice", exec, `{"command":"true","command":"false"}`, 400, "command"},
		{"wrong type", exec, `{"command":42}`, 400, "command: want a string, got a number"},
		{"truncated", exec, `{"command":"tr`, 400, "not JSON"},
		{"nothing", exec, ``, 400, "the body is empty"},
		{"more than one value", exec, `{"command":"true"} {}`, 400, "not JSON"},
		{"too large", exec, `{"command":"` + strings.Repeat("x", 100_001) + `"}`, 413, "larger than the limit"},
		{"unknown route", "/v1/nothing", `{}`, 404, "there is no POST /v1/nothing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			response := post(t, l, c.path, c.body, "application/json")
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			if err != nil {
				t.Fatal(err)
			}
			if response.StatusCode != c.status || !strings.Contains(string(body), c.want) {
				t.Errorf("got %d %s, want %d with %s", response.StatusCode, body, c.status, c.want)
			}
			if strings.Contains(string(body), l.dir) {
				t.Errorf("a host path is told: %s", body)
			}
		})
	}
	if n := len(l.containers(t)); n != 0 {
		t.Errorf("%d containers were started for it", n)
	}
	// Only now does something run, in a directory that is not there.
	response := post(t, l, exec, `{"command":"true","cwd":"/home/nowhere"}`, "application/json")
	defer response.Body.Close()
	if body, _ := io.ReadAll(response.Body); response.StatusCode != http.StatusBadRequest || !strings.Contains(string(body), "cwd /home/nowhere: no such file or directory") {
		t.Errorf("got %d %s", response.StatusCode, body)
	}
}

func TestUserIDs(t *testing.T) {
	l := newLab(t, "runc")
	l.register(t, "alice")
	for id, want := range map[string]string{
		"":                      "userId is empty",
		"Alice":                 `userId "Alice" has upper-case letters; did you mean "alice"?`,
		"..":                    `userId ".."`,
		"a..b":                  `userId "a..b"`,
		"a/b":                   `userId "a/b"`,
		"-a":                    `userId "-a"`,
		"ä":                     `userId "ä"`,
		strings.Repeat("a", 64): "has 64 characters, more than 63",
	} {
		_, err := l.client.Put(t.Context(), "x", types.Registration{UserID: id})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", id, err, want)
		}
	}
	_, err := l.client.Put(t.Context(), "alice", types.Registration{UserID: "bob"})
	if err == nil || !strings.Contains(err.Error(), `belongs to user "alice"`) {
		t.Errorf("another user's sandbox: %v", err)
	}
}
