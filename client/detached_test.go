package client_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/sandboxtest"
	"github.com/daycare-run/sandbox/internal/warm"
)

// dialDetached returns a client of a service whose commands print their stdin in capitals, and end with it or with a
// signal.
func dialDetached(t *testing.T) *client.Client {
	t.Helper()
	return newLab(t, sandboxtest.Started(func(_ context.Context, c warm.Command, out session.Output) (warm.Result, error) {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			buffer := make([]byte, 64<<10)
			for {
				n, err := c.Stdin.Read(buffer)
				if n > 0 {
					_ = out(session.Stdout, bytes.ToUpper(buffer[:n]))
				}
				if err != nil {
					return
				}
			}
		}()
		select {
		case signal := <-c.Signals:
			return warm.Result{Result: session.Result{Signal: signal}}, nil
		case <-ended:
			return warm.Result{Result: session.Result{ExitCode: 4}}, nil
		}
	})).dial(t)
}

// goneAt is a writer at which the caller goes when it has a text.
type goneAt struct {
	bytes.Buffer
	text string
	gone func()
}

func (g *goneAt) Write(p []byte) (int, error) {
	n, err := g.Buffer.Write(p)
	if strings.Contains(g.String(), g.text) {
		g.gone()
	}
	return n, err
}

func TestReattach(t *testing.T) {
	c := dialDetached(t)
	feed, stdin := io.Pipe()
	defer func() { _ = stdin.Close() }()
	ctx, hangUp := context.WithCancel(t.Context())
	out := &goneAt{text: "ONE ", gone: hangUp}
	var id string
	go func() { _, _ = io.WriteString(stdin, "one ") }()
	_, err := c.Attach(ctx, "agent-7", types.Exec{Command: "tr a-z A-Z", DetachOnDisconnect: true},
		client.Streams{Stdin: feed, Stdout: out, Started: func(s client.Start) { id = s.ExecID }})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	list, err := c.DetachedExecs(t.Context(), "agent-7")
	if err != nil || len(list) != 1 || list[0].ExecID != id || list[0].EndedAt != nil {
		t.Fatalf("%+v, %v", list, err)
	}

	// Several windows of stdin pass on the second way, too.
	large := strings.Repeat("two ", types.StdinWindow)
	var rest bytes.Buffer
	result, err := c.Reattach(t.Context(), "agent-7", id, int64(out.Len()), client.Streams{Stdin: strings.NewReader(large), Stdout: &rest})
	if err != nil || result.ExitCode == nil || *result.ExitCode != 4 || rest.String() != strings.ToUpper(large) {
		t.Errorf("%d bytes, %+v, %v", rest.Len(), result, err)
	}

	// It has ended: both ends of the output that are kept, and the result, are there for who comes late.
	var all bytes.Buffer
	begin, lost := 0, int64(0)
	result, err = c.Reattach(t.Context(), "agent-7", id, 0, client.Streams{Stdout: &all, Lost: func(n int64) { begin, lost = all.Len(), n }})
	if err != nil || result.ExitCode == nil || lost+int64(all.Len()) != int64(len("one ")+len(large)) {
		t.Errorf("%d bytes and %d lost, %+v, %v", all.Len(), lost, result, err)
	}
	head, tail := all.String()[:begin], all.String()[begin:]
	if begin < 64<<10 || !strings.HasPrefix("ONE "+strings.ToUpper(large), head) || len(tail) < 1<<20 || !strings.HasSuffix(large, strings.ToLower(tail)) {
		t.Errorf("%d bytes of the beginning and %d of the end: %.20q", len(head), len(tail), head)
	}
}

// Stdin that cannot be read to its end is not passed off as all there is.
func TestStdinThatCannotBeRead(t *testing.T) {
	why := errors.New("the disk was pulled out")
	half := func() client.Streams {
		return client.Streams{Stdin: io.MultiReader(strings.NewReader("half"), iotest.ErrReader(why))}
	}
	c := dialDetached(t)
	if result, err := c.Attach(t.Context(), "agent-7", types.Exec{Command: "tr a-z A-Z"}, half()); !errors.Is(err, why) || !strings.HasPrefix(err.Error(), "cannot read stdin: ") {
		t.Errorf("%+v, %v", result, err)
	}
	blocked, unblock := io.Pipe()
	defer func() { _ = unblock.Close() }()
	ctx, hangUp := context.WithCancel(t.Context())
	var id string
	if _, err := c.Attach(ctx, "agent-7", types.Exec{Command: "tr a-z A-Z", DetachOnDisconnect: true}, client.Streams{Stdin: blocked, Started: func(s client.Start) {
		id = s.ExecID
		hangUp()
	}}); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if result, err := c.Reattach(t.Context(), "agent-7", id, 0, half()); !errors.Is(err, why) {
		t.Errorf("%+v, %v", result, err)
	}
	if _, err := c.KillExec(t.Context(), "agent-7", id); err != nil { // it waits for more
		t.Error(err)
	}
}

func TestReattachFails(t *testing.T) {
	c := dialDetached(t)
	_, err := c.Reattach(t.Context(), "agent-7", "x-1", 0, client.Streams{})
	var refused *client.Error
	if !errors.As(err, &refused) || refused.Kind != types.NotFound || !strings.Contains(refused.Message, `"x-1"`) {
		t.Errorf("%v", err)
	}
	if _, err := c.KillExec(t.Context(), "agent-7", "x-1"); !errors.As(err, &refused) || refused.Kind != types.NotFound {
		t.Errorf("%v", err)
	}
}

// One caller takes the place of another, and a third ends the command.
func TestTakingOver(t *testing.T) {
	c := dialDetached(t)
	blocked, unblock := io.Pipe()
	defer func() { _ = unblock.Close() }()
	ids, firstEnd, secondEnd := make(chan string), make(chan error), make(chan error)
	go func() {
		_, err := c.Attach(t.Context(), "agent-7", types.Exec{Command: "cat", DetachOnDisconnect: true},
			client.Streams{Stdin: blocked, Started: func(s client.Start) { ids <- s.ExecID }})
		firstEnd <- err
	}()
	id := <-ids
	go func() {
		result, err := c.Reattach(t.Context(), "agent-7", id, 0, client.Streams{Started: func(client.Start) { ids <- "" }})
		if err == nil && (result.Signal == nil || *result.Signal != "SIGKILL") {
			err = errors.New("it was not killed")
		}
		secondEnd <- err
	}()
	<-ids
	var refused *client.Error
	if err := <-firstEnd; !errors.As(err, &refused) || refused.Kind != types.Conflict {
		t.Errorf("%v", err)
	}
	if ended, err := c.KillExec(t.Context(), "agent-7", id); err != nil || ended.EndedAt == nil || *ended.Result.Signal != "SIGKILL" {
		t.Errorf("%+v, %v", ended, err)
	}
	if err := <-secondEnd; err != nil {
		t.Error(err)
	}
}
