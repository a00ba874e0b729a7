package dockerexec

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/libp2p/go-yamux/v5"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/internal/agent/ask"
	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// The first program that starts in a container is slow under gVisor: its kernel has none of the image's files yet, and no
// process of the host's to run one of its own in. So in one that lasts and waits in the pool a shell has started and ended before
// anybody has the container. It is the image's own, with nobody's text, and has no home.

// firstShell is what clients of E2B begin commands with.
var firstShell = ask.Run{
	Command: launch.Command{Process: specs.Process{
		Args: []string{"/bin/bash", "-l", "-c", "true"}, Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/"}, Cwd: "/",
	}},
	TimeoutMs: (firstShellLimit / 2).Milliseconds(),
}

// firstShellLimit bounds all of it.
const firstShellLimit = 20 * time.Second

// runFirstShell returns when that shell has ended. An image without one has nothing that could start sooner later. After an
// error it may run still, so nobody may have the container.
func runFirstShell(ctx context.Context, mux *yamux.Session) error {
	ctx, cancel := context.WithTimeout(ctx, firstShellLimit)
	defer cancel()
	stream, err := openStream(ctx, mux)
	if err != nil {
		return fmt.Errorf("cannot have a first shell run: %w", err)
	}
	defer stream.Close() //nolint:errcheck // all has been said
	defer context.AfterFunc(ctx, func() { _ = stream.SetDeadline(time.Unix(1, 0)) })()
	var began ask.Answer
	if err = wire.WriteMessage(stream, wire.KindRequest, ask.Request{Do: ask.Begin, Run: &firstShell}); err == nil {
		err = wire.ReadMessage(stream, wire.KindAnswer, &began)
	}
	for kind := wire.KindAnswer; err == nil && began.Fault == wire.FaultNone && kind != wire.KindExit; {
		var length int
		if kind, length, err = wire.ReadHeader(stream); err == nil {
			_, err = io.CopyN(io.Discard, stream, int64(length))
		}
	}
	if err != nil {
		return fmt.Errorf("a first shell has not ended: %w", err)
	}
	return nil
}
