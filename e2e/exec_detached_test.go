package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// cutAfter is a writer that cuts the connection once it has so many bytes.
type cutAfter struct {
	bytes.Buffer
	bytes int
	cut   context.CancelFunc
}

func (c *cutAfter) Write(p []byte) (int, error) {
	n, err := c.Buffer.Write(p)
	if c.Len() >= c.bytes {
		c.cut()
	}
	return n, err
}

// leave starts an exec with detachOnDisconnect and cuts the connection once so many bytes have come.
func (l *lab) leave(t *testing.T, user string, e types.Exec, after int) (execID string, seen []byte) {
	t.Helper()
	e.DetachOnDisconnect, e.Permissions = true, workspace
	ctx, cut := context.WithCancel(context.Background())
	out := &cutAfter{bytes: after, cut: cut}
	never, feed := io.Pipe()
	t.Cleanup(func() { _ = feed.Close() })
	_, err := l.client.Attach(ctx, user, e, client.Streams{Stdin: never, Stdout: out, Started: func(s client.Start) { execID = s.ExecID }})
	if !errors.Is(err, context.Canceled) || execID == "" {
		t.Fatalf("exec %q: %v", execID, err)
	}
	return execID, out.Bytes()
}

// detached is an exec as the list has it.
func (l *lab) detached(t *testing.T, user, execID string) types.DetachedExec {
	t.Helper()
	list, err := l.client.DetachedExecs(context.Background(), user)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if e.ExecID == execID {
			return e
		}
	}
	t.Fatalf("%s is not in %+v", execID, list)
	return types.DetachedExec{}
}

func lines(from, to int) string {
	var text strings.Builder
	for i := from; i <= to; i++ {
		fmt.Fprintln(&text, i)
	}
	return text.String()
}

// A connection that is cut in the middle of output costs nothing of its last MiB, nor stdin, nor the exit code.
func TestComingBackToAnExec(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.register(t, "back")
		l.register(t, "stranger")
		const command = "seq 400000; read line; echo got $line; exit 9"
		id, seen := l.leave(t, "back", types.Exec{Command: command, TimeoutMs: unhurried}, 300_000)
		all := lines(1, 400_000)
		if !strings.HasPrefix(all, string(seen)) {
			t.Fatalf("%d bytes came, but not as printed", len(seen))
		}
		eventually(t, "all is printed", func() bool { return l.detached(t, "back", id).OutputBytes == int64(len(all)) })

		_, err := l.client.Reattach(context.Background(), "stranger", id, 0, client.Streams{})
		var refused *client.Error
		if !errors.As(err, &refused) || refused.Kind != types.NotFound {
			t.Errorf("a stranger: %v", err)
		}
		if list, err := l.client.DetachedExecs(context.Background(), "stranger"); err != nil || len(list) > 0 {
			t.Errorf("a stranger: %+v, %v", list, err)
		}

		var rest bytes.Buffer
		begin, lost := 0, int64(0)
		result, err := l.client.Reattach(context.Background(), "back", id, int64(len(seen)), client.Streams{
			Stdin: strings.NewReader("hello\n"), Stdout: &rest, Lost: func(n int64) { begin, lost = rest.Len(), n },
		})
		all += "got hello\n"
		if err != nil || result.ExitCode == nil || *result.ExitCode != 9 {
			t.Errorf("%+v, %v", result, err)
		}
		from := len(seen) + begin
		if rest.Len() < 1<<20 || rest.String() != all[len(seen):from]+all[int64(from)+lost:] {
			t.Errorf("%d bytes came after %d, and %d were lost, of %d", rest.Len(), len(seen), lost, len(all))
		}
		// Once more, from the command line.
		out, _ := l.cli("attach", "-u", "back", id).Output()
		const head = 64 << 10
		if text := string(out); len(text) < head+1<<20 || text[:head] != all[:head] || !strings.HasSuffix(all, text[head:]) {
			t.Errorf("%d bytes came late", len(text))
		}
	})
}

// A command that goes on without its caller still ends: in time, by a kill, and with all that it started.
func TestDetachedExecsEnd(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.register(t, "goeson")
		timeout := int64(10_000) // its caller leaves before
		id, _ := l.leave(t, "goeson", types.Exec{Command: "echo ready; setsid sleep 7620 & sleep 7621", TimeoutMs: &timeout}, 1)
		eventually(t, "its time is up", func() bool {
			e := l.detached(t, "goeson", id)
			return e.Result != nil && e.Result.TimedOut && !e.Attached
		})
		id, _ = l.leave(t, "goeson", types.Exec{Command: "echo ready; setsid sleep 7620 & sleep 7621"}, 1)
		eventually(t, "it goes on", func() bool { return sleeping(t, l, "goeson", "7621") != "" })
		ended, err := l.client.KillExec(context.Background(), "goeson", id)
		if err != nil || ended.Result == nil || ended.Result.Signal == nil || *ended.Result.Signal != "SIGKILL" {
			t.Errorf("%+v, %v", ended, err)
		}
		if left := sleeping(t, l, "goeson", "762[01]"); left != "" {
			t.Errorf("left: %s", left)
		}
	})
}

// When the service ends, every command has, also those that go on without their caller.
func TestDetachedExecsEndWithTheService(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		l.register(t, "last")
		l.leave(t, "last", types.Exec{Command: "echo ready; setsid sleep 7622 & sleep 7622"}, 1)
		eventually(t, "it goes on", func() bool { return sleeping(t, l, "last", "7622") != "" })
		id := l.containerOf(t, "last").ID
		l.stop(syscall.SIGTERM)
		if l.isRunning(t, id, "sleep 7622") {
			t.Error("the service has stopped, and the command goes on")
		}
		if err := l.start(); err != nil {
			t.Fatal(err)
		}
		if left := sleeping(t, l, "last", "7622"); left != "" {
			t.Errorf("left: %s", left)
		}
		if list, err := l.client.DetachedExecs(context.Background(), "last"); err != nil || len(list) > 0 {
			t.Errorf("%+v, %v", list, err)
		}
	}, "SANDBOXD_SHUTDOWN_GRACE_MS=300")
}

// What a command cannot reach is told while it runs: this one goes on when its caller has heard of it.
func TestRefusalsAreToldAtOnce(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.registerAs(t, "told", types.Registration{UserID: "told", Permissions: types.Permissions{Network: true}})
		answer, say := io.Pipe()
		var told []types.Refusal
		result, err := l.client.Attach(context.Background(), "told", types.Exec{
			Command:     "getent ahosts files.example.net; getent ahosts files.example.net; read line; test $line = heard",
			Permissions: []string{"@network"}, AllowedDomains: []string{"example.org"},
		}, client.Streams{Stdin: answer, Refused: func(r types.Refusal) {
			if told = append(told, r); len(told) == 1 {
				go func() { _, _ = io.WriteString(say, "heard\n") }()
			}
		}})
		_ = say.Close()
		if err != nil || result.Failed || len(result.Egress) != 1 {
			t.Errorf("%+v, %v", result, err)
		}
		if len(told) != 1 || told[0].Name != "files.example.net" || told[0].Verdict != types.VerdictDenied {
			t.Errorf("told %+v", told)
		}
	})
}
