package enginetest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/waittest"
)

func create(t *testing.T, e *Engine, s engine.Spec) (id string) {
	t.Helper()
	id, err := e.Create(t.Context(), s)
	if err == nil {
		err = e.Start(t.Context(), id)
	}
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// Besides the Contract: a paused container is killed when it is resumed, as under gVisor, Calls has
// what was done, and BreakEvents ends the events.
func TestWhatNotAllEnginesHave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := New(t.Context())
		_, failed := e.Events(t.Context())
		id := create(t, e, engine.Spec{Name: "a"})
		told := e.Wait(t.Context(), id)
		err := errors.Join(e.Pause(t.Context(), id), e.Pause(t.Context(), id),
			e.Signal(t.Context(), id, syscall.SIGKILL))
		if found, _ := e.Find(id); err != nil || found.State != engine.Paused {
			t.Errorf("%s, %v", found.State, err)
		}
		if err := errors.Join(e.Resume(t.Context(), id), <-told); err != nil {
			t.Error(err)
		}
		if found, _ := e.Find(id); found.State != specs.StateStopped || found.ExitCode != 137 {
			t.Errorf("%s, %d", found.State, found.ExitCode)
		}
		if err := errors.Join(e.Remove(t.Context(), id), e.Remove(t.Context(), id)); err != nil {
			t.Error(err)
		}
		var done []string
		for _, call := range e.Calls() {
			done = append(done, call.Verb)
		}
		if got := strings.Join(done, " "); got != "Create Start Pause Signal Resume Remove" {
			t.Errorf("done: %s", got)
		}
		e.BreakEvents(io.EOF)
		if err := <-failed; !errors.Is(err, io.EOF) {
			t.Error(err)
		}
	})
}

// What the script makes late happens although its caller leaves, but from Pause none leaves; what
// it refuses does not happen.
func TestScriptedVerbs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, refused := New(t.Context()), errors.New("no")
		e.Script(func(call Call, do func() error) error {
			switch call.Verb {
			case "Start":
				return refused
			case "Signal":
				return errors.Join(do(), refused)
			}
			time.Sleep(time.Minute)
			return do()
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := e.Create(ctx, engine.Spec{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		waittest.Pass(time.Hour)
		if e.Made() != 1 {
			t.Fatalf("%d were made", e.Made())
		}
		id := e.Containers()[0].ID
		if err := e.Start(t.Context(), id); !errors.Is(err, refused) || e.Containers()[0].Runs() {
			t.Error(err)
		}
		id = e.Add(engine.Container{})
		leaving, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		begun := time.Now()
		if err := e.Pause(leaving, id); err != nil || time.Since(begun) != time.Minute {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
		err := e.Signal(t.Context(), id, syscall.SIGKILL)
		if found, _ := e.Find(id); !errors.Is(err, refused) || found.State != engine.Paused {
			t.Errorf("%s: %v", found.State, err)
		}
	})
}

// A program reads nothing while it is paused, and Lose tells only who is to be told.
func TestPrograms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := New(t.Context())
		e.Serve(func(p Program) {
			defer p.Close()
			line, err := bufio.NewReader(p).ReadString('\n')
			_, _ = fmt.Fprintf(p, "%s %q %v", p.Args[0], line, err)
		})
		id := e.Add(engine.Container{Labels: map[string]string{"a": "b"}})
		begin := func() engine.Stream {
			s, err := e.Exec(t.Context(), id, specs.Process{Args: []string{"p"}})
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		ask := func(s engine.Stream) string {
			_, _ = io.WriteString(s, "x\n")
			text, _ := io.ReadAll(s)
			return string(text)
		}
		if got := ask(begin()); got != `p "x\n" <nil>` {
			t.Error(got)
		}
		s, begun := begin(), time.Now()
		if err := e.Pause(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Exec(t.Context(), id, specs.Process{Args: []string{"p"}}); err == nil {
			t.Error("a program begins in a paused container")
		}
		time.AfterFunc(time.Second, func() { _ = e.Resume(t.Context(), id) })
		if got := ask(s); got != `p "x\n" <nil>` || time.Since(begun) != time.Second {
			t.Errorf("%s after %v", got, time.Since(begun))
		}
		out, err := e.Run(t.Context(), id, specs.Process{Args: []string{"q"}})
		if err != nil || out.Stdout != `q "" EOF` {
			t.Errorf("%q, %v", out.Stdout, err)
		}
	})
}

// The engine in memory does what Docker does.
func TestContract(t *testing.T) {
	e := New(t.Context())
	e.Serve(func(p Program) {
		defer p.Close()
		switch p.Args[0] {
		case "/bin/echo":
			_, _ = fmt.Fprintln(p, p.Args[1])
		case "/bin/cat":
			if len(p.Args) > 1 { // there are no files
				p.Exit(1)
				return
			}
			_, _ = io.Copy(p, p)
		}
	})
	Contract(t, e, engine.Spec{}, "x-", netip.MustParsePrefix("10.1.2.0/24"))
}
