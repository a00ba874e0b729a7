package e2b

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/e2b/filesystempb"
	"github.com/daycare-run/sandbox/internal/e2b/processpb"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// heard is what a stream has told.
type heard struct {
	pid                 uint32
	stdout, stderr, pty string
	keepalives          int
	end                 *processpb.ProcessEvent_EndEvent
	err                 error
}

func (h *heard) add(e *processpb.ProcessEvent) {
	switch is := e.GetEvent().(type) {
	case *processpb.ProcessEvent_Start:
		h.pid = is.Start.GetPid()
	case *processpb.ProcessEvent_Data:
		h.stdout += string(is.Data.GetStdout())
		h.stderr += string(is.Data.GetStderr())
		h.pty += string(is.Data.GetPty())
	case *processpb.ProcessEvent_End:
		h.end = is.End
	case *processpb.ProcessEvent_Keepalive:
		h.keepalives++
	}
}

func command(line string) *processpb.StartRequest {
	return &processpb.StartRequest{Process: &processpb.ProcessConfig{Cmd: "/bin/bash", Args: []string{"-c", line}}}
}

// run starts a command and follows it to its end.
func run(b *box, r *processpb.StartRequest, change ...func(http.Header)) heard {
	b.t.Helper()
	return runUntil(b.t.Context(), b, r, change...)
}

func runUntil(ctx context.Context, b *box, r *processpb.StartRequest, change ...func(http.Header)) (h heard) {
	b.t.Helper()
	stream, err := followRPC[processpb.StartRequest, processpb.StartResponse](ctx, b, "/process.Process/Start", r, change...)
	if err != nil {
		return heard{err: err}
	}
	defer stream.Close()
	for stream.Receive() {
		h.add(stream.Msg().GetEvent())
	}
	h.err = stream.Err()
	return h
}

func TestCommands(t *testing.T) {
	b := newLab(t).create(`{}`)
	with := func(r *processpb.StartRequest, change func(*processpb.StartRequest)) *processpb.StartRequest {
		change(r)
		return r
	}
	cwd := "/home/user"
	for _, tt := range []struct {
		name string
		r    *processpb.StartRequest
		want heard
	}{
		{"output", command("echo a; echo b >&2"), heard{stdout: "a\n", stderr: "b\n", end: &processpb.ProcessEvent_EndEvent{Exited: true, Status: "exit status 0"}}},
		{"status", command("exit 7"), heard{end: &processpb.ProcessEvent_EndEvent{ExitCode: 7, Exited: true, Status: "exit status 7"}}},
		{"signal", command("kill -9 $$"), heard{end: &processpb.ProcessEvent_EndEvent{ExitCode: -1, Status: "signal: killed"}}},
		{"terminal", with(command("echo a"), func(r *processpb.StartRequest) { r.Pty = &processpb.PTY{} }), heard{pty: "a\n", end: &processpb.ProcessEvent_EndEvent{Exited: true, Status: "exit status 0"}}},
		{"environment", with(command("echo $A"), func(r *processpb.StartRequest) { r.Process.Envs, r.Process.Cwd = map[string]string{"A": "b"}, &cwd }), heard{stdout: "b\n", end: &processpb.ProcessEvent_EndEvent{Exited: true, Status: "exit status 0"}}},
	} {
		got := run(b, tt.r)
		if got.err != nil || got.pid == 0 || got.stdout != tt.want.stdout || got.stderr != tt.want.stderr || got.pty != tt.want.pty ||
			got.end.GetExitCode() != tt.want.end.ExitCode || got.end.GetExited() != tt.want.end.Exited || got.end.GetStatus() != tt.want.end.Status || (got.end.Error != nil) != (tt.want.end.ExitCode != 0) {
			t.Errorf("%s: %+v", tt.name, got)
		}
	}
}

// A command that failed without a network is told what would have allowed it, in E2B's words.
func TestFailuresWithoutNetworkAreExplained(t *testing.T) {
	lab := newLab(t)
	const fails = "seq 9999; echo 'curl: (6) Could not resolve host: a.org' >&2; exit 6"
	const want = "exit status 6; the command had no network; if it is needed, allow names with allowOut in the sandbox's network, or all with allowInternetAccess"
	if got := run(lab.create(`{"allow_internet_access":false}`), command(fails)); got.end.GetError() != want {
		t.Errorf("%q, want %q", got.end.GetError(), want)
	}
	if got := run(lab.create(`{}`), command(fails)); got.end.GetError() != "exit status 6" {
		t.Errorf("with a network: %q", got.end.GetError())
	}
}

// A command that failed is told what its sandbox could not reach meanwhile, and one that succeeded is not.
func TestFailuresNameUnreachableHosts(t *testing.T) {
	lab := newLab(t)
	b, other := lab.create(`{}`), lab.create(`{}`)
	refuse := func(b *box, name string, port uint16) {
		lab.facade.Refuse(dockerexec.Spec{Persistent: b.ID}, decisions.Decision{Name: name, Port: port, Via: decisions.TCP, Verdict: decisions.Denied, Reason: "no"})
	}
	refuse(b, "before.org", 0)
	for code, want := range map[string]string{
		"0": "",
		"6": `exit status 6; meanwhile the sandbox could not reach "a.org" (no), "x\"\n" at port 22 (no), "0.org" (no), "1.org" (no), "2.org" (no) and 6 more; ` +
			"allowOut in its network says what it may reach",
	} {
		line := "echo; until [ -e go ]; do sleep 0.01; done; rm go; exit " + code
		stream, err := followRPC[processpb.StartRequest, processpb.StartResponse](t.Context(), b, "/process.Process/Start", command(line))
		if err != nil {
			t.Fatal(err)
		}
		var h heard
		for stream.Receive() {
			h.add(stream.Msg().GetEvent())
			if stream.Msg().GetEvent().GetData() == nil {
				continue
			}
			refuse(other, "other.org", 0)
			refuse(b, "a.org", 0)
			refuse(b, "a.org", 0)
			refuse(b, "x\"\n", 22)
			for n := range 9 {
				refuse(b, fmt.Sprint(n, ".org"), 0)
			}
			if err := os.WriteFile(filepath.Join(b.home(), "go"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := stream.Err(); err != nil || h.end.GetError() != want {
			t.Errorf("%q, %v, want %q", h.end.GetError(), err, want)
		}
		_ = stream.Close()
	}
}

func TestBadStartsAreRefused(t *testing.T) {
	b := newLab(t).create(`{}`)
	for name, tt := range map[string]struct {
		r    *processpb.StartRequest
		as   string
		want connect.Code
	}{
		"nothing":     {&processpb.StartRequest{}, "", connect.CodeInvalidArgument},
		"no program":  {&processpb.StartRequest{Process: &processpb.ProcessConfig{Cmd: "/no/such"}}, "", connect.CodeInvalidArgument},
		"root":        {command("true"), "root", connect.CodePermissionDenied},
		"large sizes": {&processpb.StartRequest{Process: &processpb.ProcessConfig{Cmd: "true"}, Pty: &processpb.PTY{Size: &processpb.PTY_Size{Cols: 1 << 20}}}, "", connect.CodeInvalidArgument},
	} {
		got := run(b, tt.r, func(h http.Header) {
			if tt.as != "" {
				req := http.Request{Header: h}
				req.SetBasicAuth(tt.as, "")
			}
		})
		if connect.CodeOf(got.err) != tt.want {
			t.Errorf("%s: %v", name, got.err)
		}
	}
}

func TestKeepalives(t *testing.T) {
	b := newLab(t).create(`{}`)
	begun := time.Now()
	stream, err := followRPC[processpb.StartRequest, processpb.StartResponse](t.Context(), b, "/process.Process/Start",
		command("until [ -e go ]; do sleep 0.01; done; echo a"), func(h http.Header) { h.Set("Keepalive-Ping-Interval", "1") })
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	var got heard
	for stream.Receive() {
		got.add(stream.Msg().GetEvent())
		if stream.Msg().GetEvent().GetKeepalive() == nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(b.home(), "go"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if most := int(time.Since(begun).Seconds()); got.keepalives == 0 || got.keepalives > most || got.stdout != "a\n" || stream.Err() != nil {
		t.Errorf("%+v, at most %d keepalives, %v", got, most, stream.Err())
	}
	for value, want := range map[string]time.Duration{"": 90 * time.Second, "50": 50 * time.Second, "0": time.Second, "-7": time.Second, "99999": time.Hour, "x": 90 * time.Second} {
		if got := keepalive(http.Header{"Keepalive-Ping-Interval": {value}}); got != want {
			t.Errorf("%q: %s", value, got)
		}
	}
}

func TestDeadlines(t *testing.T) {
	b := newLab(t).create(`{}`)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if got := runUntil(ctx, b, command("sleep 4711")); connect.CodeOf(got.err) != connect.CodeDeadlineExceeded {
		t.Errorf("%+v", got)
	}
	waittest.Until(t, "the command has ended", func() bool { return len(list(b)) == 0 })
}

// TestASandboxEndsDuringACommand is for a command and a watcher whose sandbox is killed, or reaches its deadline, meanwhile:
// the sandbox has ended, so nothing goes on that could be connected to.
func TestASandboxEndsDuringACommand(t *testing.T) {
	l := newLab(t)
	for name, end := range map[string]func(*box){
		"killed":       func(b *box) { l.call(annesKey, "DELETE", "/sandboxes/"+b.ID, "") },
		"its deadline": func(b *box) { l.call(annesKey, "POST", "/sandboxes/"+b.ID+"/timeout", `{"timeout":1}`) },
	} {
		b := l.create(`{}`)
		watch, err := followRPC[filesystempb.WatchDirRequest, filesystempb.WatchDirResponse](t.Context(), b, "/filesystem.Filesystem/WatchDir", &filesystempb.WatchDirRequest{})
		if err != nil || !watch.Receive() {
			t.Fatal(err, watch.Err())
		}
		told := make(chan heard)
		go func() { told <- run(b, command("sleep 4712")) }()
		waittest.Until(t, "the command runs", func() bool { return len(list(b)) == 1 })
		end(b)
		got := <-told
		if connect.CodeOf(got.err) != connect.CodeUnavailable || !strings.Contains(got.err.Error(), "was killed or reached its end of life") {
			t.Errorf("%s: %v", name, got.err)
		}
		for watch.Receive() {
		}
		if connect.CodeOf(watch.Err()) != connect.CodeUnavailable || !strings.Contains(watch.Err().Error(), "The sandbox was not found") {
			t.Errorf("%s: the watcher: %v", name, watch.Err())
		}
	}
}

func list(b *box) []*processpb.ProcessInfo {
	b.t.Helper()
	got, err := rpc[processpb.ListRequest, processpb.ListResponse](b, "/process.Process/List", &processpb.ListRequest{})
	if err != nil {
		b.t.Fatal(err)
	}
	return got.GetProcesses()
}

func pid(n uint32) *processpb.ProcessSelector {
	return &processpb.ProcessSelector{Selector: &processpb.ProcessSelector_Pid{Pid: n}}
}

// TestACommandOnItsOwn starts one whose caller goes, and meets it again by its tag.
func TestACommandOnItsOwn(t *testing.T) {
	b := newLab(t).create(`{}`)
	tag := "mine"
	r := command("echo begun; read a; echo got $a; read b; exit 3")
	r.Tag = &tag
	ctx, leave := context.WithCancel(t.Context())
	stream, err := followRPC[processpb.StartRequest, processpb.StartResponse](ctx, b, "/process.Process/Start", r)
	if err != nil || !stream.Receive() {
		t.Fatal(err)
	}
	started := stream.Msg().GetEvent().GetStart().GetPid()
	leave()
	_ = stream.Close()

	all := list(b)
	if len(all) != 1 || all[0].GetPid() != started || all[0].GetTag() != tag || all[0].GetConfig().GetCmd() != "/bin/bash" || !slices.Equal(all[0].GetConfig().GetArgs(), r.Process.Args) {
		t.Fatalf("%v", all)
	}
	again, err := followRPC[processpb.ConnectRequest, processpb.ConnectResponse](t.Context(), b, "/process.Process/Connect", &processpb.ConnectRequest{Process: &processpb.ProcessSelector{Selector: &processpb.ProcessSelector_Tag{Tag: tag}}})
	if err != nil || !again.Receive() || again.Msg().GetEvent().GetStart().GetPid() != started {
		t.Fatal(err)
	}
	input := &processpb.SendInputRequest{Process: pid(started), Input: &processpb.ProcessInput{Input: &processpb.ProcessInput_Stdin{Stdin: []byte("x\n")}}}
	if _, err := rpc[processpb.SendInputRequest, processpb.SendInputResponse](b, "/process.Process/SendInput", input); err != nil {
		t.Fatal(err)
	}
	if _, err := rpc[processpb.CloseStdinRequest, processpb.CloseStdinResponse](b, "/process.Process/CloseStdin", &processpb.CloseStdinRequest{Process: pid(started)}); err != nil {
		t.Fatal(err)
	}
	var got heard
	for again.Receive() {
		got.add(again.Msg().GetEvent())
	}
	if got.end.GetExitCode() != 3 || !strings.HasSuffix(got.stdout, "got x\n") {
		t.Errorf("%+v %v", got, again.Err())
	}
}

// TestTheLastWordsOfATerminal are those of a shell that ends while nobody follows it: who connects hears them as its terminal's.
func TestTheLastWordsOfATerminal(t *testing.T) {
	b := newLab(t).create(`{}`)
	r := command("read a; echo got $a")
	r.Pty = &processpb.PTY{}
	ctx, leave := context.WithCancel(t.Context())
	stream, err := followRPC[processpb.StartRequest, processpb.StartResponse](ctx, b, "/process.Process/Start", r)
	if err != nil || !stream.Receive() {
		t.Fatal(err)
	}
	started := stream.Msg().GetEvent().GetStart().GetPid()
	leave()
	_ = stream.Close()
	shell := b.engine.find(b.ID, control.Request{PID: int(started)})
	waittest.Until(t, "nobody follows the shell", func() bool { return shell.followed() == 0 })
	input := &processpb.SendInputRequest{Process: pid(started), Input: &processpb.ProcessInput{Input: &processpb.ProcessInput_Pty{Pty: []byte("x\n")}}}
	if _, err := rpc[processpb.SendInputRequest, processpb.SendInputResponse](b, "/process.Process/SendInput", input); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the shell has ended", func() bool { return !shell.runs() })
	again, err := followRPC[processpb.ConnectRequest, processpb.ConnectResponse](t.Context(), b, "/process.Process/Connect", &processpb.ConnectRequest{Process: pid(started)})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	var got heard
	for again.Receive() {
		got.add(again.Msg().GetEvent())
	}
	if got.pty != "got x\n" || got.stdout != "" || got.end == nil || again.Err() != nil {
		t.Errorf("%+v %v", got, again.Err())
	}
}

// TestATagOfSeveral means the newest one, also where it has a terminal and the others have none, and where it has none.
func TestATagOfSeveral(t *testing.T) {
	b := newLab(t).create(`{}`)
	terminals := map[string][]*processpb.PTY{"has one": {nil, {}}, "has none": {{}, nil}}
	for tag, all := range terminals {
		var newest uint32
		for _, terminal := range all {
			r := command("read a; echo got $a")
			r.Tag, r.Pty = &tag, terminal
			stream, err := followRPC[processpb.StartRequest, processpb.StartResponse](t.Context(), b, "/process.Process/Start", r)
			if err != nil || !stream.Receive() {
				t.Fatal(err)
			}
			defer stream.Close()
			newest = stream.Msg().GetEvent().GetStart().GetPid()
		}
		which := &processpb.ProcessSelector{Selector: &processpb.ProcessSelector_Tag{Tag: tag}}
		again, err := followRPC[processpb.ConnectRequest, processpb.ConnectResponse](t.Context(), b, "/process.Process/Connect", &processpb.ConnectRequest{Process: which})
		if err != nil || !again.Receive() {
			t.Fatal(err)
		}
		defer again.Close()
		var got heard
		got.add(again.Msg().GetEvent())
		input := &processpb.SendInputRequest{Process: which, Input: &processpb.ProcessInput{Input: &processpb.ProcessInput_Stdin{Stdin: []byte("x\n")}}}
		if _, err := rpc[processpb.SendInputRequest, processpb.SendInputResponse](b, "/process.Process/SendInput", input); err != nil {
			t.Fatal(err)
		}
		for again.Receive() {
			got.add(again.Msg().GetEvent())
		}
		inTerminal := all[len(all)-1] != nil
		if got.pid != newest || got.end == nil || inTerminal && got.pty != "got x\n" || !inTerminal && got.stdout != "got x\n" {
			t.Errorf("the newest %s: %+v, not of %d, %v", tag, got, newest, again.Err())
		}
	}
}

func TestSelectorsOfNone(t *testing.T) {
	b := newLab(t).create(`{}`)
	for _, tt := range []struct {
		which *processpb.ProcessSelector
		want  connect.Code
	}{{pid(4711), connect.CodeNotFound}, {pid(0), connect.CodeNotFound}, {nil, connect.CodeInvalidArgument}, {&processpb.ProcessSelector{}, connect.CodeInvalidArgument}} {
		stdin := &processpb.ProcessInput{Input: &processpb.ProcessInput_Pty{Pty: []byte("x")}}
		_, inputErr := rpc[processpb.SendInputRequest, processpb.SendInputResponse](b, "/process.Process/SendInput", &processpb.SendInputRequest{Process: tt.which, Input: stdin})
		_, closeErr := rpc[processpb.CloseStdinRequest, processpb.CloseStdinResponse](b, "/process.Process/CloseStdin", &processpb.CloseStdinRequest{Process: tt.which})
		_, signalErr := rpc[processpb.SendSignalRequest, processpb.SendSignalResponse](b, "/process.Process/SendSignal", &processpb.SendSignalRequest{Process: tt.which, Signal: processpb.Signal_SIGNAL_SIGTERM})
		_, updateErr := rpc[processpb.UpdateRequest, processpb.UpdateResponse](b, "/process.Process/Update", &processpb.UpdateRequest{Process: tt.which, Pty: &processpb.PTY{}})
		stream, err := followRPC[processpb.ConnectRequest, processpb.ConnectResponse](t.Context(), b, "/process.Process/Connect", &processpb.ConnectRequest{Process: tt.which})
		if err == nil {
			stream.Receive()
			err = stream.Err()
		}
		for i, err := range []error{inputErr, closeErr, signalErr, updateErr, err} {
			if connect.CodeOf(err) != tt.want {
				t.Errorf("%v, call %d: %v", tt.which, i, err)
			}
		}
	}
	_, err := rpc[processpb.SendSignalRequest, processpb.SendSignalResponse](b, "/process.Process/SendSignal", &processpb.SendSignalRequest{Process: pid(1), Signal: 4})
	if connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("%v", err)
	}
}

// TestRefusalsOfTheProtocol are for who has no right to a sandbox, or whose sandbox has ended: also as the head of a stream.
func TestRefusalsOfTheProtocol(t *testing.T) {
	l := newLab(t)
	b, gone := l.create(`{}`), l.create(`{}`)
	l.call(annesKey, "DELETE", "/sandboxes/"+gone.ID, "")
	stranger := &box{lab: l, ID: b.ID, Token: gone.Token}
	for _, tt := range []struct {
		b    *box
		want connect.Code
	}{{stranger, connect.CodeNotFound}, {gone, connect.CodeUnavailable}} {
		_, err := rpc[processpb.ListRequest, processpb.ListResponse](tt.b, "/process.Process/List", &processpb.ListRequest{})
		streamed := run(tt.b, command("true"))
		for i, err := range []error{err, streamed.err} {
			if connect.CodeOf(err) != tt.want {
				t.Errorf("%d: %v, not %v", i, err, tt.want)
			}
		}
	}
	_, err := rpc[processpb.ListRequest, processpb.ListResponse](b, "/process.Process/StreamInput", &processpb.ListRequest{})
	if connect.CodeOf(err) != connect.CodeUnimplemented {
		t.Errorf("%v", err)
	}
}
