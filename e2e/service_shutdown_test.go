package e2e

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// told is what became of a command that was run in three ways.
type told struct {
	buffered, attached error
	streamed           string // all lines
}

// threeWays runs a command buffered, streamed and attached, each as a user of its own, waits until all have
// begun, and returns a way to wait for what became of them.
func (l *lab) threeWays(t *testing.T, command string) (ended func() told) {
	t.Helper()
	command = "echo > /home/begun; " + command
	for _, user := range []string{"buffered", "attached", "streamed"} {
		l.register(t, user)
	}
	e := types.Exec{Command: command, Permissions: workspace}
	var buffered, attached chan error
	buffered, attached = make(chan error, 1), make(chan error, 1)
	lines := make(chan string, 1)
	go func() {
		out, err := l.client.Exec(context.Background(), "buffered", e)
		if err == nil && out.Stdout != "done\n" {
			err = errors.New(out.Stdout)
		}
		buffered <- err
	}()
	go func() {
		var out bytes.Buffer
		_, err := l.client.Attach(context.Background(), "attached", e, client.Streams{Stdout: &out, Stderr: &out})
		if err == nil && out.String() != "done\n" {
			err = errors.New(out.String())
		}
		attached <- err
	}()
	go func() { lines <- l.stream("streamed", command) }()
	for _, user := range []string{"buffered", "attached", "streamed"} {
		eventually(t, user+" has begun", func() bool { _, err := os.Stat(l.home(user) + "/begun"); return err == nil })
	}
	return func() told { return told{<-buffered, <-attached, <-lines} }
}

// stream is all lines of a streamed exec, or why there are none.
func (l *lab) stream(user, command string) string {
	web := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", l.path("sandboxd.sock"))
	}}}
	defer web.CloseIdleConnections()
	request, err := http.NewRequest(http.MethodPost, "http://x/v1/sandboxes/"+user+"/exec", strings.NewReader(`{"permissions":["@workspace"],"command":"`+command+`"}`))
	if err != nil {
		return err.Error()
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/x-ndjson")
	answer, err := web.Do(request)
	if err != nil {
		return err.Error()
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// takesNoCalls says that nobody listens. It leaves no connection that the service would wait for.
func (l *lab) takesNoCalls() bool {
	conn, err := net.Dial("unix", l.path("sandboxd.sock"))
	if err == nil {
		_ = conn.Close()
	}
	return err != nil
}

func TestShutdownLetsCommandsFinish(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		const work = "while [ ! -e /home/go ]; do sleep 0.1; done; echo done"
		ended := l.threeWays(t, work)
		l.register(t, "detached")
		l.leave(t, "detached", types.Exec{Command: "echo ready; " + work + " > /home/finished", TimeoutMs: unhurried}, 1)
		exited := l.exited
		if err := l.daemon.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		eventually(t, "no more calls are taken", l.takesNoCalls)
		for _, user := range []string{"buffered", "attached", "streamed"} {
			if err := os.WriteFile(l.home(user)+"/go", nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if r := ended(); r.buffered != nil || r.attached != nil || !strings.Contains(r.streamed, `"type":"exit"`) {
			t.Errorf("buffered: %v\nattached: %v\nstreamed: %s", r.buffered, r.attached, r.streamed)
		}
		if err := os.WriteFile(l.home("detached")+"/go", nil, 0o644); err != nil {
			t.Fatal(err)
		}
		<-exited
		if code := l.daemon.ProcessState.ExitCode(); code != 0 {
			t.Errorf("the service exited with %d", code)
		}
		if got := readText(t, l.home("detached")+"/finished"); got != "done\n" {
			t.Errorf("the detached one printed %q", got)
		}
		if log := l.log.String(); !strings.Contains(log, `"commands":4,"grace":"4m0s"`) || strings.Contains(log, "cut off") {
			t.Errorf("the log says\n%s", l.log.tail())
		}
	}, "SANDBOXD_SHUTDOWN_GRACE_MS=240000")
}

func TestShutdownEndsWhatDoesNotFinish(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		l.cutOff(t, func() { l.stop(syscall.SIGTERM) })
	}, "SANDBOXD_SHUTDOWN_GRACE_MS=300")
}

func TestSecondSignalEndsAtOnce(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		begun := time.Now()
		l.cutOff(t, func() {
			_ = l.daemon.Process.Signal(syscall.SIGTERM)
			eventually(t, "it is stopping", func() bool { return strings.Contains(l.log.String(), "stop again to end it at once") })
			l.stop(syscall.SIGINT)
		})
		if took := time.Since(begun); took > 3*time.Minute {
			t.Errorf("it took %v", took)
		}
	}, "SANDBOXD_SHUTDOWN_GRACE_MS=600000")
}

// cutOff stops the service while commands run that do not end, and sees that callers and log are told, and
// that nothing runs on.
func (l *lab) cutOff(t *testing.T, stop func()) {
	t.Helper()
	ended := l.threeWays(t, "sleep 7650")
	stop()
	r := ended()
	for how, err := range map[string]error{"buffered": r.buffered, "attached": r.attached} {
		var failure *client.Error
		if !errors.As(err, &failure) || failure.Kind != types.Unavailable || !strings.Contains(failure.Message, "the service is stopping") {
			t.Errorf("%s: %v", how, err)
		}
	}
	if !strings.Contains(r.streamed, `"kind":"unavailable"`) {
		t.Errorf("streamed: %s", r.streamed)
	}
	for _, user := range []string{"buffered", "attached", "streamed"} {
		if !strings.Contains(l.log.String(), `"user":"`+user+`","container"`) {
			t.Errorf("the log does not say that %s was cut off", user)
		}
	}
	for _, c := range l.containers(t) {
		eventually(t, "nothing is left of the commands", func() bool { return !l.isRunning(t, c.ID, "sleep 7650") })
	}
}

// While the service waits for a command to end, what is hidden from it stays hidden: where it would be seen, the
// command goes.
func TestShutdownGraceKeepsWatching(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		l.put(t, "watched", ".ssh/id", secret)
		l.register(t, "watched")
		_, ended := l.polling(t, "watched", workspace)
		exited := l.exited
		if err := l.daemon.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		eventually(t, "no more calls are taken", l.takesNoCalls)
		mkdir(t, l.path("new"))
		if err := errors.Join(os.Rename(l.at("watched", ".ssh"), l.path("old")), os.Rename(l.path("new"), l.at("watched", ".ssh"))); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err == nil {
			t.Error("the command went on to its end")
		}
		<-exited
		if code := l.daemon.ProcessState.ExitCode(); code != 0 {
			t.Errorf("the service exited with %d", code)
		}
	}, "SANDBOXD_SHUTDOWN_GRACE_MS=600000")
}
