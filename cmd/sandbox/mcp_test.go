package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/sandboxtest"
	"github.com/daycare-run/sandbox/internal/waittest"
	"github.com/daycare-run/sandbox/internal/warm"
	"github.com/daycare-run/sandbox/internal/workload/process"
)

// agent is an MCP client that is connected to `sandbox mcp` of a lab.
type agent struct {
	*sdk.ClientSession
	t *testing.T
}

func (l *lab) agent(flags ...string) agent {
	l.t.Helper()
	c := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil)
	session, err := c.Connect(l.t.Context(), &sdk.CommandTransport{Command: l.command(append([]string{"mcp"}, flags...)...)}, nil)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = session.Close() })
	return agent{session, l.t}
}

type arguments = map[string]any

// call calls a tool, and returns the text of its result. There is nothing beside it.
func (a agent) call(tool string, given arguments) (text string, failed bool) {
	a.t.Helper()
	result, err := a.CallTool(a.t.Context(), &sdk.CallToolParams{Name: tool, Arguments: given})
	if err != nil {
		a.t.Fatalf("%s: %v", tool, err)
	}
	if len(result.Content) != 1 || result.StructuredContent != nil {
		a.t.Errorf("%s: its result is no single text: %v %v", tool, result.Content, result.StructuredContent)
	}
	for _, content := range result.Content {
		if part, is := content.(*sdk.TextContent); is {
			text += part.Text
		}
	}
	return text, result.IsError
}

// holds calls a tool that succeeds, or fails, with a text in its result.
func (a agent) holds(tool string, given arguments, fails bool, want string) {
	a.t.Helper()
	if text, failed := a.call(tool, given); failed != fails || !strings.Contains(text, want) {
		a.t.Errorf("%s %v: %.1000q, failed %t, want %q", tool, given, text, failed, want)
	}
}

func TestMCPExec(t *testing.T) {
	l := newLab(t, sandboxtest.Started(func(_ context.Context, c warm.Command, out session.Output) (warm.Result, error) {
		if c.Stdin == nil {
			return warm.Result{}, out(session.Stdout, []byte("no stdin"))
		}
		got, err := io.ReadAll(c.Stdin)
		if err == nil {
			err = out(session.Stdout, got)
		}
		return warm.Result{}, err
	}))
	a := l.agent("--sandbox", "agent-7")
	a.holds("exec", arguments{"command": "x"}, false, "no stdin")
	a.holds("exec", arguments{"command": "x", "stdin": "typed"}, false, "typed")
	a.holds("exec", arguments{"command": "x", "timeoutMs": 60_001}, true,
		"timeoutMs 60001 is more than 60000: start what takes longer with process_start, and wait for it with process_wait")
	tools, err := a.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range tools.Tools {
		if tool.Name == "exec" && !strings.Contains(tool.Description, "1m0s at most") || tool.OutputSchema != nil {
			t.Errorf("%s: %s %v", tool.Name, tool.Description, tool.OutputSchema)
		}
	}
}

func TestMCPEdit(t *testing.T) {
	l := newLab(t, nil)
	l.mkdir("project")
	file := l.host("/home/project/notes")
	write := func(content string) {
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("one\ntwo\r\n\xff two and a half\n")
	a := l.agent("--sandbox", "agent-7")
	a.holds("edit", arguments{"path": "notes", "oldText": "two", "newText": "2"}, true, "oldText is in it 2 times; give more of what is around")
	a.holds("edit", arguments{"path": "notes", "oldText": "three", "newText": "3"}, true, "oldText is not in it")
	a.holds("edit", arguments{"path": "notes", "oldText": "", "newText": "3"}, true, "oldText is empty")
	a.holds("edit", arguments{"path": "none", "oldText": "x", "newText": "3"}, true, "none")
	a.holds("edit", arguments{"path": "/home/other", "oldText": "x", "newText": "3"}, true, "it is in no place that this sandbox grants")
	a.holds("edit", arguments{"path": "notes", "oldText": "two\r\n", "newText": "2\n"}, false, "edited; it has")
	if content, err := os.ReadFile(file); err != nil || string(content) != "one\n2\n\xff two and a half\n" {
		t.Errorf("%q, %v", content, err)
	}
	a.holds("write", arguments{"path": "odd\nname", "content": "x"}, false, `"~/project/odd\nname": 1 bytes written`)
	write(strings.Repeat("x", 4<<20) + "y")
	a.holds("edit", arguments{"path": "notes", "oldText": "y", "newText": "z"}, true, "it has more than 4194304 bytes")
}

// Of two calls that change one file at the same time, none undoes the other.
func TestMCPChangesAtTheSameTime(t *testing.T) {
	for _, tt := range []struct {
		tool  string
		given arguments
		want  string
	}{
		{"edit", arguments{"path": "~/project/notes", "oldText": "two", "newText": "2"}, "1\n2\n"},
		{"write", arguments{"path": "notes", "content": "three\n", "append": true}, "1\ntwo\nthree\n"},
	} {
		t.Run(tt.tool, func(t *testing.T) {
			l := newLab(t, nil)
			l.ok("", "write", "--sandbox", "agent-7", "notes", "one\ntwo\n")
			read, written := make(chan struct{}), make(chan struct{}, 2)
			var first sync.Once
			l.behind(func(next http.Handler, w http.ResponseWriter, req *http.Request) {
				next.ServeHTTP(w, req)
				switch filepath.Base(req.URL.Path) {
				case "read":
					first.Do(func() { // the answer waits for what must not come
						close(read)
						select {
						case <-written:
						case <-time.After(500 * time.Millisecond):
						}
					})
				case "write":
					written <- struct{}{}
				}
			})
			a := l.agent("--sandbox", "agent-7")
			var calls sync.WaitGroup
			calls.Go(func() {
				a.holds("edit", arguments{"path": "notes", "oldText": "one", "newText": "1"}, false, "edited; it has")
			})
			<-read
			calls.Go(func() { a.holds(tt.tool, tt.given, false, "notes: ") })
			calls.Wait()
			if content, err := os.ReadFile(l.host("/home/project/notes")); err != nil || string(content) != tt.want {
				t.Errorf("%q, %v", content, err)
			}
		})
	}
}

func TestMCPReadTellsThatThereIsMore(t *testing.T) {
	l := newLab(t, nil)
	l.mkdir("project")
	if err := os.WriteFile(l.host("/home/project/notes"), []byte("a\nb\nc\nd\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	a := l.agent("--sandbox", "agent-7")
	a.holds("read", arguments{"path": "notes", "offset": 2, "limit": 2}, false, "b\nc\n[Lines 2 to 3 of 4 are shown. Read on with offset 4.]")
	a.holds("read", arguments{"path": "notes", "encoding": "base64", "skipBytes": 6}, false, "ZAo=")
	if err := os.WriteFile(l.host("/home/project/notes"), make([]byte, 49152+1), 0o644); err != nil {
		t.Fatal(err)
	}
	a.holds("read", arguments{"path": "notes", "encoding": "base64"}, false, "AA\n[Bytes 1 to 49152 of 49153 are shown. Read on with skipBytes 49152.]")
}

func TestMCPTellsThatALogIsCut(t *testing.T) {
	l := newLab(t, nil)
	line := strings.Repeat("x", 5000)
	l.Print(l.Start(process.Intent{Name: "web", Command: "x"}), "begin"+strings.Repeat(line+"\n", 20)+"end")
	a := l.agent("--sandbox", "agent-7")
	for _, tt := range []struct {
		given arguments
		want  string
	}{
		{arguments{"id": "web"}, "[the lines have more than 30000 bytes: these are the last ones]\n[log]\nxxx"},
		{arguments{"id": "web", "logFirst": true}, "[the lines have more than 30000 bytes: these are the first ones]\n[log]\nbegin"},
		{arguments{"id": "web", "logLines": 2}, "}\n[log]\nxxx"},
	} {
		a.holds("process_get", tt.given, false, tt.want)
	}
	a.holds("process_wait", arguments{"id": "web", "waitMs": 1}, false, "these are the last ones")
}

// A refusal says what to do in the words of the tools and of this server's flags.
func TestMCPRefusalsAdviseWhatThereIs(t *testing.T) {
	l := newLab(t, nil)
	l.mkdir("project")
	l.Start(process.Intent{Name: "job", Command: "x"})
	large := func(name, begin string, size int64) {
		file := l.host("/home/project/" + name)
		if err := errors.Join(os.WriteFile(file, []byte(begin), 0o644), os.Truncate(file, size)); err != nil {
			t.Fatal(err)
		}
	}
	large("picture", "\x89PNG\r\n\x1a\n", 8<<20)
	large("text", "x", 600<<20)
	held, own := l.agent("--sandbox", "agent-7"), l.agent("--user", "alice")
	for _, tt := range []struct {
		agent
		tool  string
		given arguments
		want  string
	}{
		{held, "read", arguments{"path": "picture"}, "(read.maxImage); read its bytes with encoding base64"},
		{held, "read", arguments{"path": "text", "text": "lossy"}, "too many to count its lines; read a part of it with exec"},
		{held, "read", arguments{"path": "text", "encoding": "base64"}, "more than 33554432; read a part of it with exec"},
		{held, "edit", arguments{"path": "text", "oldText": "x", "newText": "y"}, "it has more than 4194304 bytes; edit it with exec"},
		{held, "process_wait", arguments{"id": "job", "ready": true}, "it was started without readyPort or readyCommand"},
		{held, "process_start", arguments{"command": "x", "readyPort": 70000}, "readyPort 70000 is not between 1 and 65535"},
		{held, "exec", arguments{"command": "x", "permissions": []string{"@events"}}, "a call may ask for @workspace, @network; whoever registers the sandbox can have it hold more"},
		{own, "exec", arguments{"command": "x", "permissions": []string{"@events"}}, "a call may ask for none; the operator of this server can grant more with --grant"},
	} {
		tt.holds(tt.tool, tt.given, true, tt.want)
	}
}

func TestMCPProcesses(t *testing.T) {
	l := newLab(t, nil)
	a := l.agent("--sandbox", "agent-7", "--expose")
	a.holds("process_start", arguments{"command": "serve", "name": "web"}, false, "process p-")
	a.holds("process_start", arguments{"command": "serve", "name": "web"}, true, `has the name "web" and has not ended`)
	a.holds("process_get", arguments{"id": "web"}, false, `"status": "running"`)
	a.holds("process_wait", arguments{"id": "web", "waitMs": 1}, false, "[it goes on after 1ms; wait on with process_wait]")
	a.holds("process_wait", arguments{"id": "web", "waitMs": 300_001}, true, "waitMs 300001 is not between 1 and 300000")
	a.holds("process_stop", arguments{"id": "web"}, false, `"status": "stopped"`)
	a.holds("process_wait", arguments{"id": "web"}, false, `"signal": "SIGTERM"`)
	// A port to reach is waited for, too. Nobody listens in this lab.
	a.holds("process_start", arguments{"command": "serve", "expose": []int{80}, "waitMs": 300}, false, "[it is not ready after 300ms: nobody listens; wait on with process_wait]")
	a.holds("process_remove", arguments{"id": "web"}, false, "is removed")
	a.holds("process_remove", arguments{"id": "web"}, true, `no process has the id or the name "web"`)

	ended := make(chan string, 1)
	job := l.Start(process.Intent{Name: "job", Command: "make"})
	l.Print(job, "made\n")
	go func() {
		text, _ := a.call("process_wait", arguments{"id": "job"})
		ended <- text
	}()
	l.End(job, process.Exit{Code: 3})
	if text := <-ended; !strings.Contains(text, `"exitCode": 3`) || !strings.HasSuffix(text, "[log]\nmade\n") {
		t.Errorf("%q", text)
	}
}

// blocking is a lab whose commands print and then run until they are ended; began gets a value for each.
func blocking(t *testing.T) (l *lab, began, ended chan struct{}) {
	began, ended = make(chan struct{}, 8), make(chan struct{}, 8)
	return newLab(t, sandboxtest.Started(func(ctx context.Context, _ warm.Command, _ session.Output) (warm.Result, error) {
		began <- struct{}{}
		<-ctx.Done()
		ended <- struct{}{}
		return warm.Result{}, context.Cause(ctx)
	})), began, ended
}

// raw starts `sandbox mcp` and sends it messages; its answers are the lines of what is returned.
func raw(t *testing.T, cmd *exec.Cmd, messages ...string) (stdin io.WriteCloser) {
	t.Helper()
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	for _, message := range append([]string{
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`,
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
	}, messages...) {
		if _, err := fmt.Fprintln(stdin, message); err != nil {
			t.Fatal(err)
		}
	}
	return stdin
}

// execCall is a call of exec, as a message.
const execCall = `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"exec","arguments":{"command":"x"}}}`

// cancelCall cancels execCall, or another call with its id.
const cancelCall = `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2,"reason":"no need"}}`

// answerTo reads answers up to the one to a call. It fails the test if that does not come.
func answerTo(t *testing.T, answers io.Reader, id int) string {
	t.Helper()
	if err := answers.(*os.File).SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	for from := json.NewDecoder(answers); ; {
		var answer json.RawMessage
		var to struct{ ID int }
		if err := errors.Join(from.Decode(&answer), json.Unmarshal(answer, &to)); err != nil {
			t.Fatalf("no answer to call %d: %v", id, err)
		}
		if to.ID == id {
			return string(answer)
		}
	}
}

// What ends a call that waits for a process does not end the process, and the answer says which one it is.
func TestMCPWaitingCallIsEnded(t *testing.T) {
	for name, tt := range map[string]struct {
		tool string // and its arguments
		end  func(*exec.Cmd, io.Writer) error
		want string
	}{
		"start, a signal":  {`"process_start","arguments":{"command":"serve","name":"web","readyPort":80,"waitMs":300000}`, signalled, "this server is ending"},
		"start, cancelled": {`"process_start","arguments":{"command":"serve","name":"web","readyPort":80,"waitMs":300000}`, cancelled, "the call was cancelled"},
		"wait, a signal":   {`"process_wait","arguments":{"id":"web","waitMs":300000}`, signalled, "this server is ending"},
		"wait, cancelled":  {`"process_wait","arguments":{"id":"web","waitMs":300000}`, cancelled, "the call was cancelled"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, nil)
			if strings.Contains(tt.tool, "process_wait") {
				l.Start(process.Intent{Name: "web", Command: "serve"})
			}
			waits := make(chan struct{}, 1)
			l.behind(func(next http.Handler, w http.ResponseWriter, req *http.Request) {
				if strings.HasSuffix(req.URL.Path, "/wait") {
					waits <- struct{}{}
				}
				next.ServeHTTP(w, req)
			})
			cmd := l.command("mcp", "--sandbox", "agent-7")
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			stdin := raw(t, cmd, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":`+tt.tool+`}}`)
			<-waits
			if err := tt.end(cmd, stdin); err != nil {
				t.Fatal(err)
			}
			answer := answerTo(t, out, 2)
			if all, err := l.Processes("a"); err != nil || len(all) != 1 || all[0].Status != process.Running || !strings.Contains(answer, all[0].ID) {
				t.Errorf("%d processes, %v; the call was answered %q", len(all), err, answer)
			}
			if !strings.Contains(answer, tt.want) || strings.Contains(answer, "was ended") || strings.Contains(answer, "context canceled") {
				t.Errorf("the call was answered %q", answer)
			}
			_ = stdin.Close()
			if err := cmd.Wait(); err != nil {
				t.Errorf("it ended with %v", err)
			}
		})
	}
}

// signalled and cancelled end the call with the id 2.
func signalled(server *exec.Cmd, _ io.Writer) error { return server.Process.Signal(unix.SIGTERM) }

func cancelled(_ *exec.Cmd, stdin io.Writer) error {
	_, err := fmt.Fprintln(stdin, cancelCall)
	return err
}

// A signal ends the server while a call runs, and the call's command with it.
func TestMCPEndsBySignals(t *testing.T) {
	for _, sig := range []syscall.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP} {
		t.Run(unix.SignalName(sig), func(t *testing.T) {
			l, began, ended := blocking(t)
			cmd := l.command("mcp", "--sandbox", "agent-7")
			var out strings.Builder
			cmd.Stdout = &out
			raw(t, cmd, execCall)
			<-began
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			<-ended
			if err := cmd.Wait(); err != nil {
				t.Errorf("it ended with %v", err)
			}
			answer := out.String()
			if !strings.Contains(answer, "this server is ending") || strings.Contains(answer, "context canceled") {
				t.Errorf("the call was answered %q", answer)
			}
		})
	}
}

// A second signal ends the server at once, also while its client takes no answers.
func TestMCPEndsAtOnceBySecondSignal(t *testing.T) {
	l, began, ended := blocking(t)
	cmd := l.command("mcp", "--sandbox", "agent-7")
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	defer out.Close()
	cmd.Stdout = in
	raw(t, cmd, execCall)
	<-began
	fd := int32(in.Fd())
	go func() { _, _ = in.Write(make([]byte, 1<<20)) }() // more than a pipe holds, so no answer has room in it
	waittest.Until(t, "the pipe is full", func() bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: fd, Events: unix.POLLOUT}}, 0)
		return n == 0 && err == nil
	})
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-ended
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	waittest.Until(t, "the server has ended", func() bool {
		select {
		case err = <-done:
			return true
		default:
			_ = cmd.Process.Signal(unix.SIGTERM) // again, in case the second one came too early to end it
			return false
		}
	})
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != unix.SIGTERM {
		t.Errorf("it ended with %v", err)
	}
}

// A call that its client cancels is not answered in the words of Go.
func TestMCPCancelledCall(t *testing.T) {
	l, began, ended := blocking(t)
	cmd := l.command("mcp", "--sandbox", "agent-7")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdin := raw(t, cmd, execCall)
	<-began
	if err := cancelled(cmd, stdin); err != nil {
		t.Fatal(err)
	}
	<-ended
	answer := answerTo(t, out, 2)
	if !strings.Contains(answer, "the call was cancelled: a command that it ran was ended") || strings.Contains(answer, "context canceled") {
		t.Errorf("the call was answered %q", answer)
	}
	_ = stdin.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}
