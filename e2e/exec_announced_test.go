package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// A container whose agent announces on many streams at once an Exit as large as there may be, or larger, has the service
// hold nothing for what has not come. It waits for the first, and ends the call of the other.
func TestAnnouncedFrames(t *testing.T) {
	const (
		streams = 40
		allowed = 16 << 10
		larger  = 4 << 20
	)
	agent := hostileAgent(t)
	eachOwn(t, func(t *testing.T, l *lab) {
		l.register(t, "announces")
		for _, size := range []int{allowed, larger} {
			announce := make(untilClosed)
			var calls [streams]announcing
			for i := range calls {
				calls[i] = l.announcing(t.Context(), announce, size)
				if err := calls[i].goesOn(); err != nil {
					t.Fatalf("a call has ended: %v", err)
				}
			}
			before := l.metric(t, "go_memstats_heap_alloc_bytes")
			close(announce)
			over := 0
			for _, c := range calls {
				if err := c.goesOn(); err != nil {
					over++
				}
			}
			var most float64
			for range 20 { // what comes right behind is read meanwhile
				most = max(most, l.metric(t, "go_memstats_heap_alloc_bytes")-before)
			}
			t.Logf("%d times %d KiB: the service has %.1f MiB more; %d calls have ended", streams, size>>10, most/(1<<20), over)
			if most > streams*larger/4 {
				t.Fatalf("%d times %d KiB are announced, and the service has %.0f MiB more", streams, size>>10, most/(1<<20))
			}
			if size == allowed {
				if over > 0 {
					t.Errorf("%d calls have ended", over)
				}
				l.cool(t, "announces") // so that nobody waits for its agent
			}
			for _, c := range calls {
				if err := <-c.ended; err == nil || !strings.Contains(err.Error(), "the container was lost") {
					t.Errorf("a call has ended so: %v", err)
				}
			}
		}
	}, "SANDBOXD_AGENT_PATH="+agent)
}

// announcing is a call whose command prints when it has begun and when its agent announces.
type announcing struct {
	printed chan struct{}
	ended   chan error
}

func (l *lab) announcing(ctx context.Context, stdin io.Reader, size int) announcing {
	c := announcing{make(chan struct{}, 9), make(chan error, 1)}
	go func() {
		_, err := l.client.Attach(ctx, "announces", types.Exec{
			Permissions: workspace, Command: fmt.Sprintf("echo begun; read line; echo announces %d", size), TimeoutMs: unhurried,
		}, client.Streams{Stdin: stdin, Stdout: writerFunc(func(p []byte) (int, error) {
			c.printed <- struct{}{}
			return len(p), nil
		})})
		c.ended <- err
	}()
	return c
}

// goesOn waits until the command prints; the error is that of a call that ends instead.
func (c announcing) goesOn() error {
	select {
	case <-c.printed:
		return nil
	case err := <-c.ended:
		c.ended <- err
		return cmp.Or(err, io.EOF)
	}
}

// hostileAgent builds cmd/sandbox-agent with testdata/announcer in it.
func hostileAgent(t *testing.T) (path string) {
	t.Helper()
	dir := t.TempDir()
	from, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	overlay, _ := json.Marshal(map[string]map[string]string{"Replace": {
		filepath.Join(from, "cmd/sandbox-agent/announce.go"): filepath.Join(from, "e2e/testdata/announcer/announce.go"),
	}})
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, "sandbox-agent")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-overlay", filepath.Join(dir, "overlay.json"), "-o", path, "../cmd/sandbox-agent")
	build.Env = append(build.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("cannot build the hostile agent: %v\n%s", err, out)
	}
	return path
}

// untilClosed is a stdin that ends when the channel is closed.
type untilClosed chan struct{}

func (c untilClosed) Read([]byte) (int, error) {
	<-c
	return 0, io.EOF
}
