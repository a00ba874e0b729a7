package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/docker/docker/client"
)

// mortal is a Docker with one container. It has no connection, and so keeps to a test's clock.
type mortal struct {
	ends   time.Duration  // from when it is waited for
	status map[string]int // of the answers: "9" to SIGKILL, "wait", "remove"
	sent   []string       // signals and the like
	// others is how long a removal by somebody else takes from when ours is asked for first.
	// Nobody is told of its end, which is at removing.
	others   time.Duration
	removing time.Time
}

// hangs is the status of what Docker does not answer.
const hangs = -1

func (m *mortal) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := func(status int, body io.ReadCloser) (*http.Response, error) {
		header := http.Header{"Content-Type": {"application/json"}}
		return &http.Response{StatusCode: status, Header: header, Body: body}, nil
	}
	says := func(status int, message string) (*http.Response, error) {
		return answer(status, io.NopCloser(strings.NewReader(`{"message":"`+message+`"}`)))
	}
	switch {
	case strings.HasSuffix(r.URL.Path, "/kill"):
		signal := r.URL.Query().Get("signal")
		m.sent = append(m.sent, signal)
		if m.status[signal] == hangs {
			<-r.Context().Done()
			return nil, r.Context().Err()
		}
		return says(m.status[signal], "refused")
	case strings.HasSuffix(r.URL.Path, "/unpause"):
		m.sent = append(m.sent, "unpause")
		return says(http.StatusConflict, "not paused")
	case r.Method == http.MethodDelete:
		if m.removing.IsZero() {
			m.removing = time.Now().Add(m.others)
		}
		if time.Now().Before(m.removing) {
			return says(http.StatusConflict, "removal is already in progress")
		}
		return says(m.status["remove"], "refused")
	case strings.HasSuffix(r.URL.Path, "/wait") && m.status["wait"] != 0:
		return says(m.status["wait"], "refused")
	case strings.HasSuffix(r.URL.Path, "/wait"):
		body, to := io.Pipe()
		time.AfterFunc(m.ends, func() { _, _ = to.Write([]byte(`{"StatusCode":0}`)) })
		context.AfterFunc(r.Context(), func() { _ = to.CloseWithError(context.Canceled) })
		return answer(http.StatusOK, body)
	}
	return nil, errors.New("not in this test")
}

func (m *mortal) engine(t *testing.T) Docker {
	docker, err := client.NewClientWithOpts(
		client.WithVersion("1.41"), client.WithHTTPClient(&http.Client{Transport: m}))
	if err != nil {
		t.Fatal(err)
	}
	return NewDocker(docker)
}

// A running container is removed once its end has been seen; if its end is not seen, it is removed
// all the same.
func TestRemovalsOfContainers(t *testing.T) {
	const (
		fine, gone   = http.StatusNoContent, http.StatusNotFound
		taken, fails = http.StatusConflict, http.StatusInternalServerError
		stuck        = "after 30s: cannot remove container container: context deadline"
		fault        = "after 0s: cannot remove container container: Error response from daemon"
	)
	fineAfter := func(seconds int) string { return fmt.Sprintf("after %ds: <nil>", seconds) }
	for name, tt := range map[string]struct {
		ends, others       time.Duration
		kill, wait, remove int
		want               string
	}{
		"it has ended":           {kill: taken, remove: fine, want: fineAfter(0)},
		"it ends":                {ends: time.Second, kill: fine, remove: fine, want: fineAfter(1)},
		"it does not end":        {ends: time.Hour, kill: fine, remove: fine, want: fineAfter(8)},
		"it cannot be signalled": {ends: time.Hour, kill: hangs, remove: fine, want: fineAfter(12)},
		"gone":                   {kill: gone, wait: gone, remove: gone, want: fineAfter(0)},
		"not removed":            {kill: taken, remove: fails, want: fault},
		"somebody else's":        {others: time.Second, kill: taken, remove: gone, want: fineAfter(1)},
		"somebody else's, fails": {others: time.Second, kill: taken, remove: fine, want: fineAfter(1)},
		"somebody else's, stuck": {others: time.Hour, kill: taken, remove: fine, want: stuck},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := mortal{ends: tt.ends, others: tt.others, status: map[string]int{
					"9": tt.kill, "wait": tt.wait, "remove": tt.remove,
				}}
				begun := time.Now()
				err := m.engine(t).Remove(t.Context(), "container")
				took := time.Since(begun).Truncate(time.Second)
				want := "[unpause 9] " + tt.want
				got := fmt.Sprintf("%v after %v: %v", m.sent, took, err)
				if !strings.HasPrefix(got, want) {
					t.Errorf("%s, want %s", got, want)
				}
			})
		})
	}
}
