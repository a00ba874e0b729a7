package sandbox

import (
	"context"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/workload/attach"
)

// keepDetached is how long a command that ran on without its caller is kept after its end, with up
// to 2 MiB of its output.
const keepDetached = 5 * time.Minute

// endSlack is how long after its timeout a command may still be held up by a caller that does not
// take its output: its container may have to be made first.
const endSlack = time.Minute

// detached is a command that continues when its caller's connection is lost.
type detached = attach.Exec[Result]

// StartExec runs a command as Exec does, but in the background: callers may attach and leave. With
// stdin, its input comes from them. A faulty request makes the command end before its start. Of ctx
// it uses only the log, which has the request's id.
func (s *Service) StartExec(ctx context.Context, id string, r Request,
	stdin bool) (*detached, error) {
	box, err := s.Get(id)
	if err != nil {
		return nil, err
	}
	command := attach.Command{User: box.User.String(), Token: s.token, Text: commandText(r),
		Terminal: r.Terminal != nil, Stdin: stdin}
	log := zerolog.Ctx(ctx)
	return s.detached.Start(command, func(ctx context.Context, e *detached) (Result, error) {
		ctx = log.WithContext(ctx)
		if r.Ended != nil {
			defer r.Ended()
		}
		if stdin {
			r.Stdin = e.Input.Stdin()
		}
		r.Signals, r.Resizes = e.Input.Signals(), e.Input.Resizes()
		r.Started, r.Refused = e.Started, e.Refused
		output := func(stream session.Stream, data []byte) error {
			return e.Output(ctx, stream, data)
		}
		timeout, _ := r.timeout(s.cfg())
		defer time.AfterFunc(timeout+endSlack, e.End).Stop()
		ended, err := s.exec(ctx, box, r, output)
		e.Input.End(context.Canceled) // stdin is no longer read
		if err == nil && ended.CommandFault != "" {
			err = output(session.Stderr, []byte(ended.CommandFault+"\n"))
			ended.CommandFault = "" // the exit code says as much
		}
		return ended, err
	})
}

// commandText returns the command for a list: its beginning, if it is long.
func commandText(r Request) string {
	text := r.Command
	if len(r.Argv) > 0 {
		text = strings.Join(r.Argv, " ")
	}
	const limit = 1000
	if len(text) > limit {
		text = strings.ToValidUTF8(text[:limit], "") + "…"
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// DetachedExecs lists the detached commands of the sandbox's user, the oldest first.
func (s *Service) DetachedExecs(id string) ([]*detached, error) {
	box, err := s.Get(id)
	if err != nil {
		return nil, err
	}
	return s.detached.List(box.User.String()), nil
}

// DetachedExec finds a detached command of the sandbox's user. It does not find another user's.
func (s *Service) DetachedExec(id, execID string) (*detached, error) {
	box, err := s.Get(id)
	if err != nil {
		return nil, err
	}
	return s.detached.Get(box.User.String(), execID)
}

// AwaitDetached waits for the end of all detached commands that run now. It reports false if ctx
// ends first.
func (s *Service) AwaitDetached(ctx context.Context) bool { return s.detached.Wait(ctx) }

// EndDetached ends all detached commands, and waits for them.
func (s *Service) EndDetached() { s.detached.Shutdown() }
