package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/daycare-run/sandbox/api/types"
)

// agent is an MCP client that is connected to `sandbox mcp`.
type agent struct {
	*mcp.ClientSession
	progress chan string
}

func (l *lab) agent(t *testing.T, flags ...string) agent {
	t.Helper()
	a := agent{progress: make(chan string, 100)}
	c := mcp.NewClient(&mcp.Implementation{Name: "e2e", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			select {
			case a.progress <- r.Params.Message:
			default:
			}
		},
	})
	cmd := l.cli(append([]string{"mcp"}, flags...)...)
	cmd.Stderr = os.Stderr
	var err error
	if a.ClientSession, err = c.Connect(t.Context(), &mcp.CommandTransport{Command: cmd}, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	return a
}

// call calls a tool. into receives the JSON that the text begins with, unless it is nil.
func (a agent) call(t *testing.T, tool string, arguments map[string]any, into any) (text string, isError bool) {
	t.Helper()
	result, err := a.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: arguments})
	if err != nil {
		t.Fatalf("%s: %v", tool, err)
	}
	for _, content := range result.Content {
		if part, ok := content.(*mcp.TextContent); ok {
			text += part.Text
		}
	}
	if into != nil {
		if err := json.NewDecoder(strings.NewReader(text)).Decode(into); err != nil {
			t.Fatalf("%s: %v: %s", tool, err, text)
		}
	}
	return text, result.IsError
}

type anything = map[string]any

// Each tool does what its name says, in the sandbox of the user.
func TestMCPTools(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		mkdir(t, l.home("mcp"))
		a := l.agent(t, "--user", "mcp", "--grant", "@workspace")
		tools, err := a.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, tool := range tools.Tools {
			names = append(names, tool.Name)
			if schema, _ := json.Marshal(tool.InputSchema); tool.Description == "" || !bytes.Contains(schema, []byte(`"object"`)) {
				t.Errorf("%s: %q %s", tool.Name, tool.Description, schema)
			}
		}
		slices.Sort(names)
		if want := []string{"edit", "exec", "list", "process_get", "process_list", "process_remove", "process_start", "process_stop", "process_stop_all", "process_wait", "read", "write"}; !slices.Equal(names, want) {
			t.Errorf("tools %v", names)
		}

		text, failed := a.call(t, "exec", anything{"command": "uname -s; echo oops >&2; exit 3"}, nil)
		if failed || text != "Linux\n[stderr]\noops\n[exit code 3]" {
			t.Errorf("exec: %q", text)
		}
		if text, _ := a.call(t, "exec", anything{"command": "cat; pwd; echo $A", "stdin": "typed\n", "env": anything{"A": "b"}}, nil); text != "typed\n/home\nb\n" {
			t.Errorf("exec with stdin: %q", text)
		}
		if text, _ := a.call(t, "exec", anything{"command": "seq 100000"}, nil); !strings.HasPrefix(text, "1\n2\n") || !strings.HasSuffix(text, "99999\n100000\n") || !strings.Contains(text, "bytes are left out here") || len(text) > 40_000 {
			t.Errorf("a long output has %d bytes", len(text))
		}
		if text, _ := a.call(t, "exec", anything{"command": "sleep 7540", "timeoutMs": 300}, nil); !strings.Contains(text, "its time was up") {
			t.Errorf("a long command: %q", text)
		}

		if text, failed := a.call(t, "write", anything{"path": "notes/a.txt", "content": "one\ntwo\n"}, nil); failed || text != "~/notes/a.txt: 8 bytes written" || holds(l.at("mcp", "notes/a.txt")) != "one\ntwo\n" {
			t.Errorf("write: %q", text)
		}
		a.call(t, "write", anything{"path": "~/notes/a.txt", "content": "three\n", "append": true}, nil)
		if text, failed := a.call(t, "read", anything{"path": "notes/a.txt", "offset": 2, "limit": 1}, nil); failed || !strings.HasPrefix(text, "two") || !strings.Contains(text, "[Lines 2 to 2 of 3 are shown. Read on with offset 3.]") {
			t.Errorf("read: %q", text)
		}
		if text, failed := a.call(t, "edit", anything{"path": "notes/a.txt", "oldText": "two\n", "newText": "2\n"}, nil); failed || holds(l.at("mcp", "notes/a.txt")) != "one\n2\nthree\n" {
			t.Errorf("edit: %q", text)
		}
		if text, failed := a.call(t, "list", anything{"path": "notes"}, nil); failed || !strings.Contains(text, "a.txt") {
			t.Errorf("list: %q", text)
		}
		if text, failed := a.call(t, "list", anything{}, nil); failed || !strings.Contains(text, "notes") {
			t.Errorf("list of the working directory: %q", text)
		}
		const head = "GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;"
		l.put(t, "mcp", "picture", head)
		result, err := a.CallTool(t.Context(), &mcp.CallToolParams{Name: "read", Arguments: anything{"path": "picture"}})
		if err != nil || len(result.Content) != 1 {
			t.Fatalf("%+v, %v", result, err)
		}
		if image, ok := result.Content[0].(*mcp.ImageContent); !ok || string(image.Data) != head || image.MIMEType != "image/gif" {
			t.Errorf("a picture: %+v", result.Content[0])
		}
	})
}

func TestMCPProcesses(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		mkdir(t, l.home("mcp-process"))
		a := l.agent(t, "--user", "mcp-process", "--grant", "@workspace")
		type process struct{ ID, Name, Status string }
		if text, failed := a.call(t, "process_start", anything{"command": "echo begun; exec sleep 7541", "name": "web", "permissions": []string{"@workspace"}}, nil); failed || !strings.HasPrefix(text, "process p-") {
			t.Fatalf("process_start: %q", text)
		}
		var list []process
		if text, failed := a.call(t, "process_list", nil, &list); failed || len(list) != 1 || list[0].Name != "web" || list[0].Status != "running" {
			t.Errorf("process_list: %q", text)
		}
		eventually(t, "its log is there", func() bool {
			text, _ := a.call(t, "process_get", anything{"id": list[0].ID, "logFirst": true}, nil)
			return strings.HasSuffix(text, "[log]\nbegun\n")
		})
		var p process
		if text, failed := a.call(t, "process_stop", anything{"id": "web", "signal": "KILL"}, &p); failed || p.Status != "stopped" {
			t.Errorf("process_stop: %q", text)
		}
		if text, failed := a.call(t, "process_start", anything{"command": "python3 -m http.server --bind 127.0.0.1 8000", "name": "web", "readyPort": 8000, "waitMs": *unhurried}, nil); failed || !strings.HasSuffix(text, "it is ready") {
			t.Errorf("process_start that waits: %q", text)
		}
		a.call(t, "process_start", anything{"command": "sleep 1; echo made; exit 3", "name": "job"}, nil)
		if text, failed := a.call(t, "process_wait", anything{"id": "job", "waitMs": *unhurried}, nil); failed || !strings.Contains(text, `"exitCode": 3`) || !strings.HasSuffix(text, "[log]\nmade\n") {
			t.Errorf("process_wait: %q", text)
		}
		if text, failed := a.call(t, "process_remove", anything{"id": "job"}, nil); failed {
			t.Errorf("process_remove: %q", text)
		}
		if text, failed := a.call(t, "process_stop_all", nil, &list); failed || len(list) != 1 {
			t.Errorf("process_stop_all: %q", text)
		}
		if text, failed := a.call(t, "process_get", anything{"id": "p-aaaaaaaaaaaa"}, nil); !failed || !strings.Contains(text, "p-aaaaaaaaaaaa") {
			t.Errorf("one that is not there: %q", text)
		}
		processes, err := l.client.Processes(t.Context(), "cli-mcp-process")
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range processes {
			if err := l.client.RemoveProcess(t.Context(), "cli-mcp-process", p.ID); err != nil {
				t.Error(err)
			}
		}
	})
}

// What was not granted is refused as the tool's error, which names it and what may be asked for; what was
// granted is not there unless a call asks for it.
func TestMCPRefusals(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.put(t, "mcp-bare", "file", "x")
		bare := l.agent(t, "--user", "mcp-bare")
		for _, c := range []struct {
			tool      string
			arguments anything
			says      string
		}{
			{"exec", anything{"command": "true", "permissions": []string{"@workspace"}}, "@workspace is not granted to this sandbox: a call may ask for none"},
			{"exec", anything{"command": "true", "permissions": []string{"@network"}, "allowedDomains": []string{"example.org"}}, "@network is not granted"},
			{"exec", anything{"command": "true", "allowedDomains": []string{"example.org"}}, "allowedDomains needs @network"},
			{"exec", anything{"command": "true", "cwd": "/etc"}, "is outside of the working directory /home"},
			{"exec", anything{"command": "true", "denyRead": []string{"x"}}, `denyRead[0]: cannot use path "x": it is not absolute`},
			{"exec", anything{}, "command"},
			{"exec", anything{"command": "true", "permission": []string{}}, "permission"},
			{"process_start", anything{"command": "true", "permissions": []string{"@workspace"}}, "@workspace is not granted"},
			{"write", anything{"path": "file", "content": "y"}, `cannot write "file": it is in no place that this sandbox grants; it may write to /tmp`},
			{"write", anything{"path": l.at("mcp-bare", "file"), "content": "y"}, "it is in no place that this sandbox grants"},
			{"read", anything{"path": "~/.ssh/id"}, "on the deny list: SSH keys"},
			{"read", anything{"path": "/etc/passwd"}, "cannot read"},
			{"read", anything{"path": "nothing"}, "nothing"},
		} {
			if text, failed := bare.call(t, c.tool, c.arguments, nil); !failed || !strings.Contains(text, c.says) {
				t.Errorf("%s %v: %v %q, want %s", c.tool, c.arguments, failed, text, c.says)
			}
		}
		if text, failed := bare.call(t, "write", anything{"path": "/tmp/x", "content": "y"}, nil); failed {
			t.Errorf("write to /tmp: %q", text)
		}
		// A link leads no further than a command gets.
		bare.call(t, "exec", anything{"command": "ln -s /home /tmp/way; ln -s /home/file /tmp/file"}, nil)
		for _, arguments := range []anything{{"path": "/tmp/way/file", "content": "y"}, {"path": "/tmp/file", "content": "y", "follow": true}} {
			if text, failed := bare.call(t, "write", arguments, nil); !failed || !strings.Contains(text, "may not write there") || holds(l.at("mcp-bare", "file")) != "x" {
				t.Errorf("write %v: %q", arguments, text)
			}
		}
		if text, failed := bare.call(t, "read", anything{"path": "/tmp/way/file"}, nil); failed || text != "x" {
			t.Errorf("read through a link: %q", text)
		}
		granted := l.agent(t, "--user", "mcp-bare", "--grant", "@workspace")
		if text, _ := granted.call(t, "exec", anything{"command": "echo y > file"}, nil); !strings.Contains(text, "Read-only file system") || !strings.Contains(text, "ask for @workspace") {
			t.Errorf("what was not asked for: %q", text)
		}
		// What a process has is within the bounds of who runs something beside it.
		if text, failed := granted.call(t, "process_start", anything{"command": "sleep 7801", "name": "wide", "permissions": []string{"@workspace"}}, nil); failed {
			t.Errorf("a process: %q", text)
		}
		beside := anything{"command": "echo beside > file; cat file", "process": "wide"}
		if text, failed := bare.call(t, "exec", beside, nil); !failed || !strings.Contains(text, `process "wide" has more than a call here may ask for`) || holds(l.at("mcp-bare", "file")) != "x" {
			t.Errorf("beside a process that has more: %v %q", failed, text)
		}
		if text, failed := granted.call(t, "exec", beside, nil); failed || text != "beside\n" {
			t.Errorf("beside a process: %v %q", failed, text)
		}
		granted.call(t, "process_remove", anything{"id": "wide"}, nil)
		// What has no network gives up at once, and is told what to ask for.
		for _, command := range []string{
			"cd /tmp && git clone https://a.example/a.git", "cd /tmp && npm install is-odd", "pip download six -d /tmp",
			"curl -sS https://a.example", `python3 -c 'import socket; socket.create_connection(("192.0.2.1", 80), 5)'`,
		} {
			if text, _ := granted.call(t, "exec", anything{"command": command}, nil); !strings.Contains(text, "the command had no network; if it is needed, ask for @network") || strings.Contains(text, "time was up") {
				t.Errorf("%s: %s", command, text)
			}
		}
		if text, _ := granted.call(t, "exec", anything{"command": "echo y > file; cat file", "permissions": []string{"@workspace"}}, nil); text != "y\n" {
			t.Errorf("what was asked for: %q", text)
		}
		if text, _ := granted.call(t, "exec", anything{"command": "echo z > file; cat file", "permissions": []string{"@workspace"}, "denyWrite": []string{"/home/file"}}, nil); !strings.HasPrefix(text, "y\n") {
			t.Errorf("what was given up: %q", text)
		}
		// Of a sandbox that somebody else has registered, it is what that holds.
		l.registerAs(t, "mcp-other", types.Registration{UserID: "mcp-bare", Permissions: types.Permissions{WriteDirs: []string{"/home/out"}}})
		other := l.agent(t, "--sandbox", "mcp-other")
		if text, failed := other.call(t, "exec", anything{"command": "touch /home/out/x && ls /home/out", "permissions": []string{"@write:/home/out"}}, nil); failed || text != "x\n" {
			t.Errorf("of a sandbox: %q", text)
		}
		if _, stderr, code := ends(t, l.cli("mcp", "--user", "mcp-bare", "--grant", "@root")); code != 125 || !strings.Contains(stderr, `--grant "@root": the tags are`) {
			t.Errorf("a slip: %q %d", stderr, code)
		}
	})
}

// A call reaches the names that the flags allow and that it asks for; others are refused before it runs, or are
// told as denied in its result.
func TestMCPReaches(t *testing.T) {
	eachOutside(t, func(t *testing.T, l *lab, w *world) {
		l.put(t, "mcp-net", "ca.pem", string(w.CA()))
		base := w.name(t, "base", w.shared)
		open, other := "open."+base, w.name(t, "other", w.shared)
		w.DNS.SetA(open, time.Minute, w.shared)
		a := l.agent(t, "--user", "mcp-net", "--allow-domain", "*."+base)
		ask := func(command, domain string) (string, bool) {
			return a.call(t, "exec", anything{
				"command": command, "permissions": []string{"@network"}, "allowedDomains": []string{domain}, "env": anything{"CURL_CA_BUNDLE": "/home/ca.pem"},
			}, nil)
		}
		if text, failed := ask(hello("https://"+open), "*."+base); failed || len(w.arrivals(open)) == 0 {
			t.Errorf("what is allowed: %q", text)
		}
		if text, failed := ask(hello("https://"+other), open); failed || !strings.Contains(text, fmt.Sprintf("[network: %q was refused", other)) || !strings.Contains(text, "in allowedDomains") || len(w.arrivals(other)) != 0 {
			t.Errorf("what was not asked for: %q", text)
		}
		if text, failed := ask("true", other); !failed || !strings.Contains(text, fmt.Sprintf("allowedDomains: %q is not allowed here: a call may name *.%s", other, base)) {
			t.Errorf("what is not allowed: %q", text)
		}
		if text, failed := a.call(t, "exec", anything{"command": "true", "permissions": []string{"@network"}, "packageManagers": []string{"node"}}, nil); !failed || !strings.Contains(text, `packageManagers: "node" is not allowed here`) {
			t.Errorf("a preset: %q", text)
		}
	})
}

// A request that its client cancels ends its command, and so does a client that goes; a client that asks for it
// is told of progress.
func TestMCPCancellation(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		mkdir(t, l.home("mcp-cancel"))
		a := l.agent(t, "--user", "mcp-cancel")
		start := func(ctx context.Context, a agent, seconds string) <-chan error {
			ended := make(chan error, 1)
			params := &mcp.CallToolParams{Name: "exec", Arguments: anything{"command": "sleep " + seconds + "; true"}}
			params.SetProgressToken("token-" + seconds)
			go func() {
				_, err := a.CallTool(ctx, params)
				ended <- err
			}()
			return ended
		}
		// It is looked for by a call like it, so in its container.
		runs := func(seconds string) bool {
			text, failed := a.call(t, "exec", anything{"command": "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline 2>/dev/null; echo; done | grep -x 'sleep " + seconds + " '; true"}, nil)
			return !failed && strings.HasPrefix(text, "sleep "+seconds)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := start(ctx, a, "7543")
		eventually(t, "the command runs", func() bool { return runs("7543") })
		select {
		case message := <-a.progress:
			if !strings.Contains(message, "running for") {
				t.Errorf("progress: %q", message)
			}
		case <-time.After(30 * time.Second):
			t.Error("no progress was told")
		}
		cancel()
		if err := <-ended; err == nil {
			t.Error("the call did not end with an error")
		}
		eventually(t, "nothing of it is left", func() bool { return !runs("7543") })
		if text, failed := a.call(t, "exec", anything{"command": "echo on"}, nil); failed || text != "on\n" {
			t.Errorf("the next call: %q", text)
		}

		// A client that goes without a word.
		leaving := l.cli("mcp", "--user", "mcp-cancel")
		stdin, err := leaving.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := leaving.Start(); err != nil {
			t.Fatal(err)
		}
		for _, message := range []string{
			`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"e2e","version":"1"}}}`,
			`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
			`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"exec","arguments":{"command":"sleep 7544; true","timeoutMs":300000}}}`,
		} {
			if _, err := fmt.Fprintln(stdin, message); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "the command runs", func() bool { return runs("7544") })
		if err := stdin.Close(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "nothing of it is left", func() bool { return !runs("7544") })
		if err := leaving.Wait(); err != nil {
			t.Errorf("the server ended with %v", err)
		}
	})
}
