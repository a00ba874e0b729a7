package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/api"
	"github.com/daycare-run/sandbox/client"
	"github.com/daycare-run/sandbox/dockerexec"
	agents "github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/sandbox"
	"github.com/daycare-run/sandbox/internal/sandboxtest"
	warming "github.com/daycare-run/sandbox/internal/warm"
)

// containers runs commands that succeed, in a container for each Spec that it has seen.
type containers struct {
	mu   sync.Mutex
	seen map[dockerexec.Fingerprint]bool
	// forgetful makes every call cold.
	forgetful bool
}

func (c *containers) run(_ context.Context, spec dockerexec.Spec, _ warming.Command, _ agents.Output) (warming.Result, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cold := !c.seen[spec.Fingerprint()]
	c.seen[spec.Fingerprint()] = !c.forgetful
	return warming.Result{Cold: cold}, nil
}

// newService is a real service in this process, without containers, and measures as little as it can.
func newService(t *testing.T, forgetful bool) *service {
	t.Helper()
	all := &containers{seen: map[dockerexec.Fingerprint]bool{}, forgetful: forgetful}
	s := &service{
		lab:     &lab{settings: settings{warm: 20}, progress: io.Discard, begun: time.Now()},
		runtime: "runsc", dir: t.TempDir(), process: &exec.Cmd{Process: &os.Process{Pid: os.Getpid()}},
	}
	if err := os.Chmod(s.dir, 0o700); err != nil { // as the real one
		t.Fatal(err)
	}
	s.api = client.New(s.path("socket"))
	inside := sandboxtest.New(t, sandboxtest.Options{Dir: s.dir, Executor: sandboxtest.Executor{RunFunc: all.run}, Config: func(cfg *sandbox.Config) {
		cfg.MaxTimeout = time.Duration(longest) * time.Millisecond
	}})
	listener, err := net.Listen("unix", s.path("socket"))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(api.New(inside, api.Config{Authenticator: anyone, Version: "test", MaxRequest: 1 << 20, MaxOutput: 1000, Log: zerolog.Nop()}))
	_ = server.Listener.Close()
	server.Listener = listener
	server.Start()
	t.Cleanup(server.Close)
	t.Cleanup(s.api.Close)
	if err := s.register(t.Context(), boxID); err != nil {
		t.Fatal(err)
	}
	if _, err := s.exec(t.Context(), boxID, "true"); err != nil { // makes the home
		t.Fatal(err)
	}
	return s
}

// anyone is an authenticator that admits everybody, to act for everyone.
func anyone(*http.Request) (access.Caller, error) {
	return access.Caller{Name: "test", Users: ids.Everyone()}, nil
}
