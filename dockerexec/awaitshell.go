package dockerexec

import (
	"context"
	"fmt"
	"time"

	"github.com/libp2p/go-yamux/v5"

	"github.com/daycare-run/sandbox/internal/agent/ask"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// readyLimit is how long an agent may take to say that a shell waits.
const readyLimit = 20 * time.Second

// awaitShell returns when a shell waits for the first command in a lasting container, or when none can; nobody has the container
// yet. The shell is started from the image alone, without anybody's text or home. The first program that starts in a container is
// slow under gVisor, whose kernel has none of the image's files yet, so this helps also if no shell will wait.
func awaitShell(ctx context.Context, mux *yamux.Session) error {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	stream, err := openStream(ctx, mux)
	if err != nil {
		return fmt.Errorf("cannot start a shell that waits: %w", err)
	}
	defer stream.Close() //nolint:errcheck // all has been said
	defer context.AfterFunc(ctx, func() { _ = stream.SetDeadline(time.Unix(1, 0)) })()
	if err = wire.WriteMessage(stream, wire.KindRequest, ask.Request{Do: ask.Ready}); err == nil {
		err = wire.ReadMessage(stream, wire.KindAnswer, &ask.Answer{})
	}
	if err != nil {
		return fmt.Errorf("the agent does not say whether a shell waits: %w", err)
	}
	return nil
}
