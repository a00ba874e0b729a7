package dockerexec

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/engine/enginetest"
)

// A runtime may fail to signal what has just ended, and Docker needs a moment to know.
func TestStopsOfProcesses(t *testing.T) {
	const grace, never = time.Minute, 1000 * time.Hour
	fails, gone, over := errors.New("refused"), cerrdefs.ErrNotFound, cerrdefs.ErrConflict
	for name, tt := range map[string]struct {
		ends       time.Duration
		term, kill error // what a signal is answered with
		wait       error
		want       string
	}{
		"it ends":                {time.Second, nil, nil, nil, "[15] after 1s: <nil>"},
		"it is killed":           {grace + time.Second, nil, nil, nil, "[15 9] after 1m1s: <nil>"},
		"it is gone":             {never, gone, nil, nil, "[15] after 0s: <nil>"},
		"it has ended":           {never, over, nil, nil, "[15] after 0s: <nil>"},
		"it is just ending":      {time.Second, fails, nil, nil, "[15] after 1s: <nil>"},
		"it ends between":        {never, fails, over, nil, "[15 9] after 5s: <nil>"},
		"killed, is just ending": {grace + 2*time.Second, nil, fails, nil, "[15 9] after 1m2s: <nil>"},
		"it does not die": {
			never, nil, nil, nil, "[15 9] after 1m30s: the process does not end, although it was killed",
		},
		"it cannot be signalled": {
			never, fails, fails, nil, "[15 9] after 10s: cannot signal the process: refused",
		},
		"it cannot be waited for": {
			never, nil, nil, fails, "[15] after 0s: cannot wait for the process to end: refused",
		},
		"it is removed meanwhile": {never, nil, nil, gone, "[15] after 0s: <nil>"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // which also sees that nothing goes on afterwards
				docker := enginetest.New(t.Context())
				docker.Add(engine.Container{ID: "container"})
				ending := time.AfterFunc(tt.ends, func() { docker.End("container", 0, false) })
				defer ending.Stop()
				var sent []int
				docker.Script(func(call enginetest.Call, do func() error) error {
					switch {
					case call.Verb == "Wait" && tt.wait != nil:
						return tt.wait
					case call.Verb != "Signal":
						return do()
					}
					sent = append(sent, int(call.Signal))
					if call.Signal == syscall.SIGTERM {
						return tt.term
					}
					return tt.kill // it does not die of it
				})
				e := &Executor{engine: docker, ctx: t.Context()}
				begun := time.Now()
				err := e.StopProcess(t.Context(), "container", syscall.SIGTERM, grace)
				got := fmt.Sprintf("%v after %v: %v", sent, time.Since(begun), err)
				if !strings.HasPrefix(got, tt.want) {
					t.Errorf("%s, want %s", got, tt.want)
				}
			})
		})
	}
}
