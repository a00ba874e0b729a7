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
	status map[string]int // that a signal is answered with
	sent   []string       // signals
	// removing is when the removal by somebody else ends, from when ours is asked for first. Nobody is told of its end.
	removing time.Time
	others   time.Duration // how long that removal takes
}

func (m *mortal) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := func(status int, body io.ReadCloser) (*http.Response, error) {
		return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: body}, nil
	}
	switch {
	case strings.HasSuffix(r.URL.Path, "/kill"):
		signal := r.URL.Query().Get("signal")
		m.sent = append(m.sent, signal)
		if m.status[signal] == hangs {
			<-r.Context().Done()
			return nil, r.Context().Err()
		}
		return answer(m.status[signal], io.NopCloser(strings.NewReader(`{"message":"refused"}`)))
	case strings.HasSuffix(r.URL.Path, "/unpause"):
		m.sent = append(m.sent, "unpause")
		return answer(http.StatusConflict, io.NopCloser(strings.NewReader(`{"message":"not paused"}`)))
	case r.Method == http.MethodDelete:
		if m.removing.IsZero() {
			m.removing = time.Now().Add(m.others)
		}
		if time.Now().Before(m.removing) {
			return answer(http.StatusConflict, io.NopCloser(strings.NewReader(`{"message":"removal is already in progress"}`)))
		}
		return answer(m.status["remove"], io.NopCloser(strings.NewReader(`{"message":"refused"}`)))
	case strings.HasSuffix(r.URL.Path, "/wait") && m.status["wait"] != 0:
		return answer(m.status["wait"], io.NopCloser(strings.NewReader(`{"message":"refused"}`)))
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

// hangs is the status of what Docker does not answer.
const hangs = -1

// A running container is removed once its end has been seen; if its end is not seen, it is removed all the same.
func TestRemovalsOfContainers(t *testing.T) {
	const fine, gone, taken, fails = http.StatusNoContent, http.StatusNotFound, http.StatusConflict, http.StatusInternalServerError
	does := func(kill, wait, remove int) map[string]int {
		return map[string]int{"9": kill, "wait": wait, "remove": remove}
	}
	for name, c := range map[string]struct {
		docker mortal
		want   string
	}{
		"it has ended":           {mortal{status: does(taken, 0, fine)}, "[unpause 9] after 0s: <nil>"},
		"it ends":                {mortal{ends: time.Second, status: does(fine, 0, fine)}, "[unpause 9] after 1s: <nil>"},
		"it does not end":        {mortal{ends: time.Hour, status: does(fine, 0, fine)}, "[unpause 9] after 8s: <nil>"},
		"it cannot be signalled": {mortal{ends: time.Hour, status: does(hangs, 0, fine)}, "[unpause 9] after 12s: <nil>"},
		"gone":                   {mortal{status: does(gone, gone, gone)}, "[unpause 9] after 0s: <nil>"},
		"somebody else's":        {mortal{others: time.Second, status: does(taken, 0, gone)}, "[unpause 9] after 1s: <nil>"},
		"somebody else's, fails": {mortal{others: time.Second, status: does(taken, 0, fine)}, "[unpause 9] after 1s: <nil>"},
		"somebody else's, stuck": {mortal{others: time.Hour, status: does(taken, 0, fine)}, "[unpause 9] after 30s: cannot remove container container: context deadline"},
		"not removed":            {mortal{status: does(taken, 0, fails)}, "[unpause 9] after 0s: cannot remove container container: Error response from daemon"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				err := c.docker.engine(t).Remove(t.Context(), "container")
				if got := fmt.Sprintf("%v after %v: %v", c.docker.sent, time.Since(begun).Truncate(time.Second), err); !strings.HasPrefix(got, c.want) {
					t.Errorf("%s, want %s", got, c.want)
				}
			})
		})
	}
}
