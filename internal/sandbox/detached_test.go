package sandbox

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"syscall"
	"testing"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/warm"
	"github.com/daycare-run/sandbox/internal/workload/attach"
)

// told are what a command has to tell, in short.
func told(t *testing.T, attachment *attach.Attachment[Result]) (told string, end attach.Event[Result]) {
	t.Helper()
	for {
		event, err := attachment.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case event.Ended:
			return told, event
		case event.Started:
			told += "start "
		default:
			told += string(event.Data)
		}
	}
}

func TestDetachedExecs(t *testing.T) {
	s := newService(t, &fakeExecutor{run: func(_ dockerexec.Spec, c warm.Command, out session.Output) (warm.Result, error) {
		c.Started()
		stdin, err := io.ReadAll(c.Stdin)
		return warm.Result{Result: session.Result{Signal: <-c.Signals}}, errors.Join(err, out(session.Stdout, stdin))
	}}, "")
	defer s.EndDetached()
	if _, _, err := s.Put("other", Registration{UserID: "bob"}); err != nil {
		t.Fatal(err)
	}
	e, err := s.StartExec(t.Context(), "agent", Request{Command: "cat"}, true)
	if err != nil {
		t.Fatal(err)
	}
	attachment, err := e.Attach(0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(attachment.Put([]byte("hello")), attachment.Tell(func(in *attach.Input) error {
		in.End(io.EOF)
		in.Signal(syscall.SIGINT)
		return nil
	})); err != nil {
		t.Fatal(err)
	}
	told, end := told(t, attachment)
	if told != "start hello" || end.Result.Signal != syscall.SIGINT || end.Err != nil {
		t.Errorf("%q, %+v", told, end)
	}
	if got, err := s.DetachedExec("agent", e.ID); got != e || err != nil {
		t.Error(err)
	}
	if list, err := s.DetachedExecs("agent"); len(list) != 1 || err != nil {
		t.Errorf("%v, %v", list, err)
	}
	if _, err := s.DetachedExec("other", e.ID); !cerrdefs.IsNotFound(err) {
		t.Errorf("another user's: %v", err)
	}
	if list, err := s.DetachedExecs("other"); len(list) > 0 || err != nil {
		t.Errorf("another user's: %v, %v", list, err)
	}
	for _, id := range []string{"nobody", "A"} {
		_, startErr := s.StartExec(t.Context(), id, Request{Command: "x"}, false)
		_, listErr := s.DetachedExecs(id)
		_, err := s.DetachedExec(id, e.ID)
		if startErr == nil || listErr == nil || err == nil {
			t.Errorf("%s: %v, %v, %v", id, startErr, listErr, err)
		}
	}
}

func TestDetachedExecsTellFailures(t *testing.T) {
	for _, tt := range []struct {
		name, told, err string
		request         Request
		result          warm.Result
	}{
		{name: "bad request", err: "command is empty"},
		{name: "no directory", request: Request{Command: "x"}, result: warm.Result{Result: session.Result{CwdFault: "/x"}}, told: "start ", err: "cannot run in cwd /x"},
		{name: "no program", request: Request{Argv: []string{"x"}}, result: warm.Result{Result: session.Result{ExitCode: 127, CommandFault: "x: command not found"}}, told: "start x: command not found\n"},
	} {
		s := newService(t, &fakeExecutor{run: func(_ dockerexec.Spec, c warm.Command, _ session.Output) (warm.Result, error) {
			c.Started()
			return tt.result, nil
		}}, "")
		e, err := s.StartExec(t.Context(), "agent", tt.request, false)
		if err != nil {
			t.Fatal(err)
		}
		attachment, err := e.Attach(0)
		if err != nil {
			t.Fatal(err)
		}
		told, end := told(t, attachment)
		if told != tt.told || (end.Err == nil) != (tt.err == "") || end.Err != nil && end.Err.Error() != tt.err || end.Result.ExitCode != tt.result.ExitCode {
			t.Errorf("%s: %q, %+v", tt.name, told, end)
		}
		s.EndDetached()
	}
}

// The lines of a command's work have the id of the request that began it, whoever looks at it since.
func TestDetachedExecsLogAsTheirRequest(t *testing.T) {
	var log bytes.Buffer
	s := newService(t, &fakeExecutor{runIn: func(ctx context.Context, _ dockerexec.Spec, c warm.Command) (warm.Result, error) {
		c.Started()
		zerolog.Ctx(ctx).Info().Msg("container ready")
		return warm.Result{}, nil
	}}, "")
	ctx, hangUp := context.WithCancel(t.Context())
	ctx = zerolog.New(&log).With().Str("requestId", "r-1").Logger().WithContext(ctx)
	e, err := s.StartExec(ctx, "agent", Request{Command: "x"}, false)
	if err != nil {
		t.Fatal(err)
	}
	hangUp()
	attachment, err := e.Attach(0)
	if err != nil {
		t.Fatal(err)
	}
	if _, end := told(t, attachment); end.Err != nil {
		t.Error(end.Err)
	}
	s.EndDetached()
	if !strings.Contains(log.String(), `"requestId":"r-1","message":"container ready"`) {
		t.Errorf("the log: %s", log.String())
	}
}

func TestTextsOfCommands(t *testing.T) {
	long := strings.Repeat("é", 1000)
	for _, tt := range []struct {
		request Request
		want    string
	}{
		{Request{Command: "ls | wc"}, "ls | wc"},
		{Request{Argv: []string{"ls", "a b"}}, "ls a b"},
		{Request{Command: "a" + long}, "a" + long[:998] + "…"},
		{Request{Command: "\xff"}, "\uFFFD"},
	} {
		if got := commandText(tt.request); got != tt.want {
			t.Errorf("%.50q…, want %.50q…", got, tt.want)
		}
	}
}
