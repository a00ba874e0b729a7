package warm

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
)

// lostWith returns the error of a command whose container was lost. If the command may have begun
// and a limit has ended the container, that is how the command ended: by SIGKILL, with the output
// until then.
func (r *Runner) lostWith(
	ctx context.Context, c *dockerexec.Container, result *Result, err error,
) error {
	cause := session.Cause(err)
	if cause == nil {
		return err
	}
	if found := c.Exhausted(ctx); found != nil {
		result.Signal, result.Exhausted = unix.SIGKILL, found
		return nil
	}
	r.executor.Tell(ctx, c, dockerexec.Incident{
		What: "a command has lost its container", Err: cause})
	return err
}

// outOfWhat returns the limit because of which a command may have failed although its container
// goes on. Under gVisor that is rare, because the kernel ends all of it, and refuses it no thread.
func (r *Runner) outOfWhat(c *dockerexec.Container, result Result) *dockerexec.Exhausted {
	killed := result.Signal == unix.SIGKILL || result.ExitCode == 128+int(unix.SIGKILL)
	failed := result.Signal != 0 || result.ExitCode != 0
	if !killed && (c.Spec().Platform.GVisor || !failed) {
		return nil
	}
	found, err := r.executor.CountRefusals(c)
	if err != nil {
		return nil
	}
	return found
}
