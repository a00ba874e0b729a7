package e2b

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/e2b/processpb"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/hints"
	"github.com/daycare-run/sandbox/internal/sandbox"
	"github.com/daycare-run/sandbox/internal/workload/persistent"
)

// errQuiet says that nothing has come for as long as the client is willing to wait.
var errQuiet = errors.New("nothing has come")

// lastBytes is how much of a command's last output is looked at, of each stream, when it has
// failed.
const lastBytes = 4 << 10

// refusals ends the gathering of what a sandbox could not reach, and returns it.
type refusals func() (lines []decisions.Summary, more int)

// follow sends what a command of c's sandbox does, until the command or the call ends.
func follow(ctx context.Context, reader *persistent.Reader, c called, refused refusals,
	send func(*processpb.ProcessEvent) error) error {
	var last [2][]byte // of each stream: the one may be told long after the other
	start := &processpb.ProcessEvent_StartEvent{Pid: uint32(reader.PID())}
	if err := send(
		&processpb.ProcessEvent{Event: &processpb.ProcessEvent_Start{Start: start}}); err != nil {
		return err
	}
	for {
		event, err := next(ctx, reader, c.keepalive)
		switch {
		case errors.Is(err, errQuiet):
			err = send(&processpb.ProcessEvent{Event: &processpb.ProcessEvent_Keepalive{
				Keepalive: &processpb.ProcessEvent_KeepAlive{}}})
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case event.End != nil:
			reach := c.Info().Network
			said := hintsOf(*event.End, slices.Concat(last[:]...),
				len(reach.Allow)+len(reach.Addresses) > 0)
			return sendEnd(*event.End, said, refused, send)
		case len(event.Data) > 0:
			end := &last[event.Stream]
			*end = append(*end, event.Data[max(len(event.Data)-lastBytes, 0):]...)
			*end = append((*end)[:0], (*end)[max(len(*end)-lastBytes, 0):]...)
			err = send(&processpb.ProcessEvent{Event: &processpb.ProcessEvent_Data{Data: output(
				event, reader.Terminal())}})
		}
		if err != nil {
			return err
		}
	}
}

// hintsOf returns what else is to be said of a command's end, for which last is of its output.
// network says whether it may reach anything.
func hintsOf(end persistent.End, last []byte, network bool) (list []hints.Hint) {
	if end.Exhausted != nil {
		list = append(list, sandbox.ExhaustedHint(*end.Exhausted))
	}
	if end.Code != 0 || end.TimedOut {
		list = append(list, hints.Of(last, network, end.TimedOut)...)
	}
	return list
}

// next returns the next event, or errQuiet if none comes within keepalive.
func next(ctx context.Context, reader *persistent.Reader,
	keepalive time.Duration) (persistent.Event, error) {
	waiting, cancel := context.WithTimeoutCause(ctx, keepalive, errQuiet)
	defer cancel()
	event, err := reader.Next(waiting)
	if err != nil && ctx.Err() == nil && errors.Is(context.Cause(waiting), errQuiet) {
		return event, errQuiet
	}
	if err != nil && ctx.Err() != nil {
		return event, ctx.Err()
	}
	return event, err
}

func output(e persistent.Event, terminal bool) *processpb.ProcessEvent_DataEvent {
	switch {
	case terminal:
		return &processpb.ProcessEvent_DataEvent{
			Output: &processpb.ProcessEvent_DataEvent_Pty{Pty: e.Data}}
	case e.Stream == session.Stderr:
		return &processpb.ProcessEvent_DataEvent{
			Output: &processpb.ProcessEvent_DataEvent_Stderr{Stderr: e.Data}}
	}
	return &processpb.ProcessEvent_DataEvent{
		Output: &processpb.ProcessEvent_DataEvent_Stdout{Stdout: e.Data}}
}

// sendEnd reports how a command ended, in the words of Go's os/exec, which E2B's clients know.
func sendEnd(end persistent.End, said []hints.Hint, refused refusals,
	send func(*processpb.ProcessEvent) error) error {
	if end.TimedOut {
		return fmt.Errorf("the command was ended by its timeout%s: %w", more(said, refused),
			context.DeadlineExceeded)
	}
	told := &processpb.ProcessEvent_EndEvent{ExitCode: int32(end.Code), Exited: end.Signal == 0,
		Status: fmt.Sprintf("exit status %d", end.Code)}
	if end.Signal != 0 {
		told.ExitCode, told.Status = -1, "signal: "+signalText(end)
	}
	if slices.ContainsFunc(said, func(h hints.Hint) bool { return h.Kind == hints.OutOfMemory }) {
		told.ExitCode = 128 + int32(unix.SIGKILL) // as a shell would have it
	}
	if told.ExitCode != 0 {
		reason := told.Status + more(said, refused)
		told.Error = &reason
	}
	return send(&processpb.ProcessEvent{Event: &processpb.ProcessEvent_End{End: told}})
}

// maxNames is how many names the end of a command tells.
const maxNames = 5

// more returns what else there is to say about a command that failed.
func more(said []hints.Hint, refused refusals) (text string) {
	lines, further := refused()
	var names []string
	for _, line := range lines {
		name := "a host without a name"
		if line.Name != "" {
			name = fmt.Sprintf("%q", line.Name) // it comes from the sandbox
		}
		if line.Port != 0 {
			name += fmt.Sprintf(" at port %d", line.Port)
		}
		if name += " (" + line.Reason + ")"; !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if shown := min(len(names), maxNames); shown > 0 {
		text = "; meanwhile the sandbox could not reach " + strings.Join(names[:shown], ", ")
		if further += len(names) - shown; further > 0 {
			text += fmt.Sprintf(" and %d more", further)
		}
		text += "; allowOut in its network says what it may reach"
	}
	for _, h := range hints.Say(hints.E2B, said) {
		text += "; " + h.Message
	}
	return text
}

func signalText(end persistent.End) string {
	if name := unix.SignalName(end.Signal); name == "" {
		return fmt.Sprintf("signal %d", int(end.Signal)) // a real-time one
	}
	return end.Signal.String()
}
