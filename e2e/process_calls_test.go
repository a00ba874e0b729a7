package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/daycare-run/sandbox/api/types"
)

// call sends a body as JSON and reads the answer into what it is for, which may be nil.
func (l *lab) call(t *testing.T, method, path string, body, into any) (status int) {
	t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	web := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", l.path("sandboxd.sock"))
	}}}
	request, err := http.NewRequestWithContext(context.Background(), method, "http://x/v1/sandboxes/"+path, bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	answer, err := web.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	got, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	if into != nil && answer.StatusCode < 300 {
		if err := json.Unmarshal(got, into); err != nil {
			t.Fatalf("%v: %s", err, got)
		}
	} else if into != nil {
		t.Fatalf("%s %s: %d %s", method, path, answer.StatusCode, got)
	}
	return answer.StatusCode
}

func (l *lab) startProcess(t *testing.T, sandbox string, p types.StartProcess) types.Process {
	t.Helper()
	var started types.StartedProcess
	l.call(t, http.MethodPost, sandbox+"/processes", p, &started)
	t.Cleanup(func() { l.call(t, http.MethodDelete, sandbox+"/processes/"+started.ID, nil, nil) })
	return started.Process
}

func (l *lab) process(t *testing.T, sandbox, id string) types.Process {
	t.Helper()
	var p types.Process
	l.call(t, http.MethodGet, sandbox+"/processes/"+id, nil, &p)
	return p
}

// logOf is all of a process's log, the older files first.
func logOf(t *testing.T, p types.Process) string {
	t.Helper()
	var all string
	for n := 20; n >= 0; n-- {
		name := p.LogPath
		if n > 0 {
			name += "." + strconv.Itoa(n)
		}
		text, err := os.ReadFile(name)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		all += string(text)
	}
	return all
}

// prints waits until a process's log holds a text.
func prints(t *testing.T, p types.Process, want string) {
	t.Helper()
	eventually(t, fmt.Sprintf("the process prints %q", want), func() bool { return strings.Contains(logOf(t, p), want) })
}

// processContainers are those that Docker has for this lab's processes, running or not.
func (l *lab) processContainers(t *testing.T) (found []container.Summary) {
	t.Helper()
	for _, c := range l.containers(t) {
		if c.Labels["run.daycare.sandbox.process"] != "" {
			found = append(found, c)
		}
	}
	return found
}

func (l *lab) processContainersOf(t *testing.T, user string) (found []container.Summary) {
	t.Helper()
	for _, c := range l.processContainers(t) {
		if c.Labels["run.daycare.sandbox.user"] == user {
			found = append(found, c)
		}
	}
	return found
}
