package dockerexec

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/docker/docker/client"

	"github.com/daycare-run/sandbox/internal/engine"
)

// slowRemover is a Docker whose containers do not run, and that takes its time to remove one. Asked for one that it is
// removing, Docker 20.10 may forget the name and keep the rest for good.
type slowRemover struct {
	mu       sync.Mutex
	removing map[string]bool
	removals int
	clashes  int
}

func (d *slowRemover) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := func(status int) (*http.Response, error) {
		return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(`{"message":"not running"}`))}, nil
	}
	switch {
	case r.Method == http.MethodDelete:
		d.mu.Lock()
		d.removals++
		if d.removing[r.URL.Path] {
			d.clashes++
		}
		d.removing[r.URL.Path] = true
		d.mu.Unlock()
		time.Sleep(time.Second)
		d.mu.Lock()
		delete(d.removing, r.URL.Path)
		d.mu.Unlock()
		return answer(http.StatusNoContent)
	case strings.HasSuffix(r.URL.Path, "/wait"):
		<-r.Context().Done()
		return nil, r.Context().Err()
	case strings.HasSuffix(r.URL.Path, "/unpause"), strings.HasSuffix(r.URL.Path, "/kill"):
		return answer(http.StatusConflict)
	}
	return nil, errors.New("not in this test")
}

// A caller that removes a container that is being removed waits for that, and asks Docker for nothing.
func TestOneContainerIsRemovedOnceAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &slowRemover{removing: map[string]bool{}}
		docker, err := client.NewClientWithOpts(client.WithVersion("1.41"), client.WithHTTPClient(&http.Client{Transport: d}))
		if err != nil {
			t.Fatal(err)
		}
		e := &Executor{host: &host{engine: engine.NewDocker(docker), ctx: t.Context()}}
		var removing sync.WaitGroup
		for i := range 6 {
			removing.Go(func() {
				time.Sleep(time.Duration(i) * 100 * time.Millisecond)
				id := []string{"one", "another"}[i%2]
				// As a call that replaces it, the end of its session, and whoever removes a sandbox do.
				remove := []func() error{func() error { return e.removeFound(id, "") }, func() error { return e.removeContainer(id) }, func() error { return e.RemoveProcess(t.Context(), id) }}[i/2]
				if err := remove(); err != nil {
					t.Error(err)
				}
				d.mu.Lock()
				defer d.mu.Unlock()
				if d.removing["/v1.41/containers/"+id] {
					t.Errorf("%s is still being removed", id)
				}
			})
		}
		removing.Wait()
		if d.clashes != 0 || d.removals != 2 {
			t.Errorf("of 2 containers %d removals were asked for, %d of them while there was one", d.removals, d.clashes)
		}
	})
}
