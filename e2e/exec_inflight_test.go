package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// gate holds the commands of one user until it opens: each that waits takes a line of a FIFO.
type gate struct {
	say   *io.PipeWriter
	ended chan error
}

// shut makes a user's gate, for so many commands. It is a command itself.
func shut(t *testing.T, l *lab, user string, commands int) gate {
	t.Helper()
	l.register(t, user)
	answer, say := io.Pipe()
	g := gate{say, make(chan error, 1)}
	ready := make(chan struct{})
	go func() {
		result, err := l.client.Attach(context.Background(), user, types.Exec{
			Command: fmt.Sprintf("mkfifo /tmp/gate && exec 3<>/tmp/gate && echo ready; read line; seq %d >&3; read line", commands),
		}, client.Streams{Stdin: answer, Stdout: onFirstWrite(ready)})
		if err == nil && result.TimedOut {
			err = fmt.Errorf("the gate of %s was open too long", user)
		}
		g.ended <- err
	}()
	select {
	case <-ready:
	case err := <-g.ended:
		t.Fatalf("no gate for %s: %v", user, err)
	}
	return g
}

// onFirstWrite closes a channel when something is written.
func onFirstWrite(ready chan struct{}) io.Writer {
	var once sync.Once
	return writerFunc(func(p []byte) (int, error) {
		once.Do(func() { close(ready) })
		return len(p), nil
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// Of 600 commands at once 500 run and end right, and 100 are told to come again.
func TestCommandsInFlight(t *testing.T) {
	const users, all, most = 10, 600, 500
	l := newLab(t, "runsc", "SANDBOXD_EXEC_DEFAULT_TIMEOUT_MS=300000")
	gates := make([]gate, users)
	for i := range gates {
		gates[i] = shut(t, l, fmt.Sprint("crowd", i), all)
	}
	service := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", l.path("sandboxd.sock"))
	}}}
	defer service.CloseIdleConnections()
	refused, right := make(chan error, all), make(chan error, all)
	for i := range all - users { // the gates are in flight, too
		go func() {
			status, after, out, err := crowd(service, fmt.Sprint("crowd", i%users), i)
			switch {
			case err == nil && status == http.StatusTooManyRequests && after != "":
				refused <- nil
			case err == nil && status == http.StatusOK && out == fmt.Sprint(i, "\n"):
				right <- nil
			default:
				err = fmt.Errorf("command %d: status %d, Retry-After %q, %q, %w", i, status, after, out, err)
				refused <- err
				right <- err
			}
		}()
	}
	for range all - most {
		if err := <-refused; err != nil {
			t.Fatal(err)
		}
	}
	for _, g := range gates {
		_, _ = io.WriteString(g.say, "open\n")
	}
	for range most - users {
		if err := <-right; err != nil {
			t.Fatal(err)
		}
	}
	if len(refused) > 0 {
		t.Errorf("%d more were refused", len(refused))
	}
	for _, g := range gates {
		_ = g.say.Close()
		if err := <-g.ended; err != nil {
			t.Error(err)
		}
	}
}

// crowd runs a command that waits at its user's gate.
func crowd(service *http.Client, user string, i int) (status int, retryAfter, out string, err error) {
	body := fmt.Sprintf(`{"command":"read line </tmp/gate && echo %d"}`, i)
	response, err := service.Post("http://sandboxd/v1/sandboxes/"+user+"/exec", "application/json", strings.NewReader(body))
	if err != nil {
		return 0, "", "", err
	}
	defer response.Body.Close()
	var answer types.Output
	err = json.UnmarshalRead(response.Body, &answer)
	return response.StatusCode, response.Header.Get("Retry-After"), answer.Stdout + answer.Stderr, err
}
