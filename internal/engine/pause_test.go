package engine

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/docker/docker/client"
)

// scripted is a Docker that answers as a test says: a status and a body for a method and a path.
type scripted func(r *http.Request) (status int, body string)

func (s scripted) RoundTrip(r *http.Request) (*http.Response, error) {
	status, body := s(r)
	if status == 0 {
		return nil, errors.New("not in this test")
	}
	return &http.Response{
		StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(body)), Request: r,
	}, nil
}

// engine returns the Docker behind a script. Paths begin with /v1.41/.
func (s scripted) engine(t *testing.T) Docker {
	t.Helper()
	docker, err := client.NewClientWithOpts(
		client.WithVersion("1.41"), client.WithHost("tcp://engine:1"),
		client.WithHTTPClient(&http.Client{Transport: s}))
	if err != nil {
		t.Fatal(err)
	}
	return NewDocker(docker)
}

// A container that cannot be frozen at a time can be a moment later.
func TestPausingIsTriedAgain(t *testing.T) {
	for _, fails := range []int{1, pauseTries - 1, pauseTries} {
		synctest.Test(t, func(t *testing.T) {
			tries := 0
			d := scripted(func(r *http.Request) (int, string) {
				switch r.URL.Path {
				case "/v1.41/containers/c/pause":
					if tries++; tries <= fails {
						return http.StatusInternalServerError, `{"message":"unable to freeze"}`
					}
					return http.StatusNoContent, ""
				case "/v1.41/containers/c/json":
					return http.StatusOK, `{"Id":"c","State":{"Running":true}}`
				}
				return 0, ""
			}).engine(t)
			err := d.Pause(t.Context(), "c")
			if want := fails < pauseTries; (err == nil) != want || tries != min(fails+1, pauseTries) {
				t.Errorf("after %d failures and %d tries: %v", fails, tries, err)
			}
		})
	}
}

// A container that is gone, not paused or resumed after all is resumed; one that stays paused is ended.
func TestUnresumableIsKilled(t *testing.T) {
	const no = `{"message":"no"}`
	for name, tt := range map[string]struct {
		status, found int
		state         string
		ended, fails  bool
	}{
		"resumed":            {status: http.StatusNoContent},
		"gone":               {status: http.StatusNotFound},
		"not paused":         {status: http.StatusConflict},
		"resumed after all":  {status: 500, found: 200, state: `{"Running":true}`},
		"gone meanwhile":     {status: 500, found: 404},
		"of a silent Docker": {status: 500, found: 500, fails: true}, // it may run
		"still paused": {
			status: 500, found: 200, state: `{"Running":true,"Paused":true}`, ended: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			killed := false
			d := scripted(func(r *http.Request) (int, string) {
				switch r.URL.Path {
				case "/v1.41/containers/c/unpause":
					return tt.status, no
				case "/v1.41/containers/c/json":
					if tt.found != http.StatusOK {
						return tt.found, no
					}
					return tt.found, fmt.Sprintf(`{"Id":"c","State":%s}`, tt.state)
				case "/v1.41/containers/c/kill":
					killed = true
					return http.StatusConflict, no // it has ended
				case "/v1.41/containers/c/wait":
					return http.StatusOK, `{"StatusCode":0}`
				}
				return 0, ""
			}).engine(t)
			if err := d.Resume(t.Context(), "c"); (err != nil) != (tt.ended || tt.fails) || killed != tt.ended {
				t.Errorf("ended: %v, %v", killed, err)
			}
		})
	}
}
