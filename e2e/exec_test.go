package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

func TestOutputAndExitAreExact(t *testing.T) {
	random := make([]byte, 128)
	for i := range random {
		random[i] = byte(rand.Uint32())
	}
	random[0] = 0xff // never UTF-8
	octal := ""
	for _, b := range random {
		octal += fmt.Sprintf(`\%03o`, b)
	}
	euro := strings.Repeat("€", 100_000)
	cases := []struct {
		name, command  string
		stdout, stderr string
		code           int
		signal         string
	}{
		{name: "success", command: "true"},
		{name: "failure", command: "false", code: 1},
		{name: "its own code", command: "exit 42", code: 42},
		{name: "both streams", command: "echo out; echo err >&2", stdout: "out\n", stderr: "err\n"},
		{name: "no newline at the end", command: "printf abc", stdout: "abc"},
		{name: "CRLF", command: `printf 'a\r\nb\r\n'`, stdout: "a\r\nb\r\n"},
		{name: "random bytes", command: "printf '" + octal + "'", stdout: string(random)},
		{name: "characters split between reads", command: `python3 -c "print('€'*100000,end='')"`, stdout: euro},
		{name: "killed", command: "kill -KILL $$", signal: "SIGKILL"},
		{name: "terminated", command: "kill -TERM $$", signal: "SIGTERM"},
		{name: "no such program", command: "no-such-program", code: 127, stderr: "bash: line 1: no-such-program: command not found\n"},
	}
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.register(t, "exact")
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				out := l.run(t, "exact", types.Exec{Permissions: workspace, Command: c.command})
				stdout, err := client.Stdout(out)
				if err != nil {
					t.Fatal(err)
				}
				stderr, err := client.Stderr(out)
				if err != nil {
					t.Fatal(err)
				}
				if string(stdout) != c.stdout || string(stderr) != c.stderr {
					t.Errorf("stdout %.80q stderr %.80q, want %.80q and %.80q", stdout, stderr, c.stdout, c.stderr)
				}
				checkEnd(t, out.Result, c.code, c.signal)
				streams(t, l, c.command, c.stdout, c.stderr)
			})
		}
	})
}

func checkEnd(t *testing.T, r types.Result, code int, signal string) {
	t.Helper()
	gotSignal := ""
	if r.Signal != nil {
		gotSignal = *r.Signal
	}
	if gotSignal != signal || (signal == "" && (r.ExitCode == nil || *r.ExitCode != code)) || (signal != "" && r.ExitCode != nil) {
		t.Errorf("ended with code %v signal %q, want %d %q", r.ExitCode, gotSignal, code, signal)
	}
	if failed := code != 0 || signal != ""; r.Failed != failed {
		t.Errorf("failed is %v", r.Failed)
	}
}

// streams runs a command again over the WebSocket, where bytes are bytes.
func streams(t *testing.T, l *lab, command, stdout, stderr string) {
	t.Helper()
	var gotOut, gotErr bytes.Buffer
	if _, err := l.client.Attach(context.Background(), "exact", types.Exec{Permissions: workspace, Command: command},
		client.Streams{Stdout: &gotOut, Stderr: &gotErr}); err != nil {
		t.Fatal(err)
	}
	if gotOut.String() != stdout || gotErr.String() != stderr {
		t.Errorf("attached: stdout %.80q stderr %.80q, want %.80q and %.80q", gotOut.String(), gotErr.String(), stdout, stderr)
	}
}

func TestArgvNeedsNoShell(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.register(t, "argv")
		out := l.run(t, "argv", types.Exec{Permissions: workspace, Argv: []string{"printf", "%s|", "a b", "$HOME", "*", ""}})
		if out.Stdout != "a b|$HOME|*||" {
			t.Errorf("got %q", out.Stdout)
		}
		out = l.run(t, "argv", types.Exec{Permissions: workspace, Argv: []string{"no-such-program"}})
		if *out.ExitCode != 127 || !strings.Contains(out.Stderr, "no-such-program: command not found") {
			t.Errorf("got %+v", out)
		}
		out = l.run(t, "argv", types.Exec{Permissions: workspace, Argv: []string{"/etc/passwd"}})
		if *out.ExitCode != 126 || !strings.Contains(out.Stderr, "permission denied") {
			t.Errorf("got %+v", out)
		}
	})
}

func TestEnvironmentIsTheCallersAlone(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.register(t, "env")
		out := l.run(t, "env", types.Exec{
			Permissions: workspace,
			Command:     "env", Env: map[string]string{"A": "1", "B": "env"}, Secrets: map[string]string{"B": "a-secret-value"},
		})
		for _, want := range []string{"A=1", "B=a-secret-value", "HOME=/home", "USERPROFILE=/home", "XDG_CACHE_HOME=/home/.cache", "LANG=C.UTF-8"} {
			if !strings.Contains("\n"+out.Stdout, "\n"+want+"\n") {
				t.Errorf("%s is missing in:\n%s", want, out.Stdout)
			}
		}
		if strings.Contains(out.Stdout, "DAEMON_ONLY") {
			t.Error("the daemon's own environment is visible inside")
		}
		if strings.Contains(l.log.String(), "a-secret-value") {
			t.Error("a secret is in the log")
		}
	})
}

func TestStdinLargerThanAPipe(t *testing.T) {
	input := bytes.Repeat([]byte("0123456789abcdef"), 5<<20/16)
	want := fmt.Sprintf("%x", sha256.Sum256(input))
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.register(t, "stdin")
		out := l.run(t, "stdin", types.Exec{Permissions: workspace, Command: "sha256sum", Stdin: string(input)})
		if got := strings.Fields(out.Stdout)[0]; got != want {
			t.Errorf("buffered: got %s, want %s", got, want)
		}
		var stdout bytes.Buffer
		if _, err := l.client.Attach(context.Background(), "stdin", types.Exec{Permissions: workspace, Command: "sha256sum"},
			client.Streams{Stdin: bytes.NewReader(input), Stdout: &stdout}); err != nil {
			t.Fatal(err)
		}
		if got := strings.Fields(stdout.String())[0]; got != want {
			t.Errorf("attached: got %s, want %s", got, want)
		}
		// A command that does not read its stdin ends all the same.
		if _, err := l.client.Attach(context.Background(), "stdin", types.Exec{Permissions: workspace, Command: "true"},
			client.Streams{Stdin: bytes.NewReader(input)}); err != nil {
			t.Error(err)
		}
	})
}

func TestOutputIsCutAtTheLimit(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.register(t, "cut")
		out := l.run(t, "cut", types.Exec{Permissions: workspace, Command: "head -c 10000000 /dev/zero | tr '\\0' x; echo short >&2"})
		if len(out.Stdout) != 1_000_000 || !out.Truncated || out.Failed || out.Stderr != "short\n" {
			t.Errorf("got %d bytes, truncated %v, failed %v, stderr %q", len(out.Stdout), out.Truncated, out.Failed, out.Stderr)
		}
		if out := l.run(t, "cut", types.Exec{Permissions: workspace, Command: "head -c 1000000 /dev/zero | tr '\\0' x"}); len(out.Stdout) != 1_000_000 || out.Truncated {
			t.Errorf("exactly the limit: got %d bytes, truncated %v", len(out.Stdout), out.Truncated)
		}
	})
}

func TestLargeOutputArrivesWhole(t *testing.T) {
	const size = 64 << 20
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.register(t, "large")
		sum := sha256.New()
		program := `import sys,hashlib
h=hashlib.sha256(); b=bytes(range(256))*256
for i in range(1024): sys.stdout.buffer.write(b); h.update(b)
sys.stdout.flush(); print(h.hexdigest(),file=sys.stderr)`
		var stderr bytes.Buffer
		counted := &counter{to: sum}
		if _, err := l.client.Attach(context.Background(), "large", types.Exec{Permissions: workspace, TimeoutMs: unhurried, Argv: []string{"python3", "-c", program}},
			client.Streams{Stdout: counted, Stderr: &stderr}); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%x\n", sum.Sum(nil)); counted.n != size || got != stderr.String() {
			t.Errorf("got %d bytes with sum %s, want %d with %s", counted.n, got, size, stderr.String())
		}
	})
}

type counter struct {
	to io.Writer
	n  int
}

func (c *counter) Write(p []byte) (int, error) {
	c.n += len(p)
	return c.to.Write(p)
}

// A stream's text stays text, and events come in order with an exit at the end.
func TestStreamedEvents(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.register(t, "events")
		response := post(t, l, "/v1/sandboxes/events/exec", `{"command":"printf '\\342\\202'; sleep 0.2; printf '\\254'; printf '\\377' >&2; exit 3"}`, "application/x-ndjson")
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		text := string(body)
		for _, want := range []string{`{"type":"start","execId":"x-`, `{"type":"stdout","data":"€"}`, `{"type":"stderr","data":"/w==","encoding":"base64"}`, `"exitCode":3,"signal":null,"failed":true`} {
			if !strings.Contains(text, want) {
				t.Errorf("%s is missing in:\n%s", want, text)
			}
		}
		if lines := strings.Split(strings.TrimSpace(text), "\n"); !strings.HasPrefix(lines[len(lines)-1], `{"type":"exit"`) {
			t.Errorf("the last event is %s", lines[len(lines)-1])
		}
	})
}

// post sends a body as it is.
func post(t *testing.T, l *lab, path, body, accept string) *http.Response {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", l.path("sandboxd.sock"))
	}}
	t.Cleanup(transport.CloseIdleConnections)
	request, err := http.NewRequest(http.MethodPost, "http://sandboxd"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", accept)
	response, err := (&http.Client{Transport: transport, Timeout: time.Minute}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	return response
}

func TestLoginShell(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.register(t, "login")
		for login, want := range map[bool]string{true: "login_shell on", false: "login_shell off"} {
			out := l.run(t, "login", types.Exec{Permissions: workspace, Command: "shopt login_shell || true", Login: login})
			if got := strings.Join(strings.Fields(out.Stdout), " "); got != want {
				t.Errorf("login %v: %q", login, got)
			}
		}
	})
}

// A command line runs whatever its length, by a shell that waits, by one that is started, at a terminal and detached.
func TestLongCommandLines(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.register(t, "long")
		line := "wc -c <<'EOF'\n" + strings.Repeat("x", 200<<10) + "\nEOF"
		for name, e := range map[string]types.Exec{
			"a shell that waits": {Command: line},
			"another PATH":       {Command: line, Env: map[string]string{"PATH": "/bin:/usr/bin"}},
			"2 MiB":              {Command: "wc -c <<'EOF'\n" + strings.Repeat("x", 200<<10) + "\nEOF\n: " + strings.Repeat("y", 1<<20)},
			"a shell as argv":    {Argv: []string{"bash", "-l", "-c", line}},
		} {
			e.Permissions = workspace
			if out := l.run(t, "long", e); out.Stdout != "204801\n" || out.Failed {
				t.Errorf("%s: %.200q, %.200q, %+v", name, out.Stdout, out.Stderr, out.Result)
			}
		}
		_, err := l.client.Exec(t.Context(), "long", types.Exec{Argv: []string{"echo", strings.Repeat("x", 131_072)}})
		if err == nil || !strings.Contains(err.Error(), "argv[1] has 131072 bytes, and Linux takes at most 131071") {
			t.Errorf("a long argument: %v", err)
		}
	})
}
