package warm

import (
	"context"
	"time"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/quota"
)

// Command is what to run in a container. Runner.Run sets TimeoutFrom and Ahead.
type Command struct {
	// Token is the token that the call came with: its bounds, too, apply to what is made for the
	// call.
	Token quota.Token
	// Prepare is called with each container that the command gets, once that is ready and before
	// Started, with the container's session. After an error, which is Run's, the command does not
	// start. Otherwise done is called when the command has ended. It may be nil.
	Prepare func(context.Context, *session.Session) (done func(), err error)
	// Started is called once the container is ready, just before the command starts; it may be nil.
	Started func()
	session.Command
}

// Result is how a command ended, and what its container had to do with it.
type Result struct {
	session.Result
	// Exhausted is the limit that the container used up while the command ran; nil for none. If
	// that ended the container, Signal is SIGKILL.
	Exhausted *dockerexec.Exhausted
	// Cold says that a container had to be made for this command, and Thawed that its container was
	// frozen.
	Cold, Thawed bool
	// InContainer says that the command had a container, and Waited is how long the call waited for
	// one. Both are also set if the call has an error.
	InContainer bool
	Waited      time.Duration
}
