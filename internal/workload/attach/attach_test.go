package attach

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/quota"
)

type (
	exec       = Exec[int]
	attachment = Attachment[int]
	event      = Event[int]
)

// withStore runs a scenario with a store, in a time of its own.
func withStore(t *testing.T, scenario func(*testing.T, *Store[int])) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := NewStore[int](Config{Quotas: quota.New(quota.Limits{PerUser: quota.Bounds{DetachedExecs: 3}, Total: quota.Bounds{DetachedExecs: 5}}), Keep: 5 * time.Minute})
		defer store.Shutdown()
		scenario(t, store)
	})
}

// alice is a command of hers that is fed, bob one of his.
var (
	alice = Command{User: "alice", Text: "x", Stdin: true}
	bob   = Command{User: "bob"}
)

// script is a command that does what it is sent.
type script struct {
	t     *testing.T
	exec  *exec
	steps chan func(context.Context, *exec)
}

func start(t *testing.T, store *Store[int], c Command) *script {
	t.Helper()
	s := &script{t: t, steps: make(chan func(context.Context, *exec))}
	var err error
	s.exec, err = store.Start(c, func(ctx context.Context, e *exec) (int, error) {
		e.Started()
		for {
			select {
			case step, open := <-s.steps:
				if !open {
					return 7, nil
				}
				step(ctx, e)
			case signal := <-e.Input.Signals():
				return int(signal), nil
			case <-ctx.Done():
				return 0, context.Cause(ctx)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *script) prints(stream session.Stream, text string) {
	s.steps <- func(ctx context.Context, e *exec) { _ = e.Output(ctx, stream, []byte(text)) }
}

func (s *script) exits() {
	close(s.steps)
	<-s.exec.done
}

func attachTo(t *testing.T, e *exec, from int64) *attachment {
	t.Helper()
	v, err := e.Attach(from)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// next is an event in short.
func next(t *testing.T, v *attachment) string {
	t.Helper()
	p, err := v.Next(t.Context())
	if err != nil {
		return err.Error()
	}
	return short(p)
}

func short(ev event) string {
	switch {
	case ev.Started:
		return "start"
	case ev.Lost > 0:
		return fmt.Sprint("lost ", ev.Lost)
	case ev.Taken > 0:
		return fmt.Sprint("taken ", ev.Taken)
	case ev.Refused != nil:
		return "refused " + ev.Refused.Name
	case ev.Ended:
		return fmt.Sprint("end ", ev.Result, " ", ev.Err)
	default:
		return []string{"out ", "err "}[ev.Stream] + string(ev.Data)
	}
}

func wants(t *testing.T, v *attachment, events ...string) {
	t.Helper()
	for _, want := range events {
		if got := next(t, v); got != want {
			t.Fatalf("%.100q, want %q", got, want)
		}
	}
}

func TestReturningCallerSeesAllThatIsKept(t *testing.T) {
	withStore(t, func(t *testing.T, store *Store[int]) {
		s := start(t, store, alice)
		v := attachTo(t, s.exec, 0)
		s.prints(session.Stdout, "one ")
		wants(t, v, "start", "out one ")
		v.Close()
		s.prints(session.Stdout, "two ")
		s.prints(session.Stderr, "three ")
		s.steps <- func(_ context.Context, e *exec) { e.Refused(decisions.Summary{Name: "a.org"}) }
		synctest.Wait()

		wants(t, attachTo(t, s.exec, 0), "start", fmt.Sprint("taken ", Window), "refused a.org", "out one two ", "err three ")
		v = attachTo(t, s.exec, 6)
		wants(t, v, "start", fmt.Sprint("taken ", Window), "refused a.org", "out o ", "err three ")
		s.exits()
		wants(t, v, "end 7 <nil>")
		wants(t, attachTo(t, s.exec, 14), "start", "refused a.org", "end 7 <nil>")
		if _, err := s.exec.Attach(15); !cerrdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "offset 15 is not from 0 to 14") {
			t.Error(err)
		}
	})
}

// While nobody is attached the command goes on, and both ends of what it prints are kept. Where the rest is missing is
// told, and positions count it.
func TestLostOutputIsTold(t *testing.T) {
	withStore(t, func(t *testing.T, store *Store[int]) {
		s := start(t, store, alice)
		const pieces, size = 100, 100_000
		for i := range pieces {
			s.prints(session.Stdout, strings.Repeat(string(rune('a'+i%26)), size))
		}
		s.exits()
		for _, from := range []int64{0, 5, KeptHead, KeptHead + 5, pieces*size - 5} {
			v := attachTo(t, s.exec, from)
			wants(t, v, "start")
			at, lost := from, int64(0)
			for at < pieces*size {
				p, err := v.Next(t.Context())
				switch {
				case err != nil:
					t.Fatal(err)
				case p.Lost > 0:
					if lost != 0 || at != max(from, KeptHead) || p.Lost > pieces*size-KeptHead-Kept {
						t.Errorf("from %d, %d are lost at %d, after %d", from, p.Lost, at, lost)
					}
					lost = p.Lost
				case len(p.Data) == 0 || p.Data[0] != byte('a'+at/size%26):
					t.Fatalf("from %d, at %d: %+.100v", from, at, p)
				}
				at += p.Lost + int64(len(p.Data))
			}
			if (lost > 0) != (from <= KeptHead+5) {
				t.Errorf("from %d, %d are lost", from, lost)
			}
			wants(t, v, "end 7 <nil>")
		}
	})
}

// While a caller is attached the command waits for it, and no longer when it has gone.
func TestTheCommandWaitsForWhoLooks(t *testing.T) {
	withStore(t, func(t *testing.T, store *Store[int]) {
		s := start(t, store, alice)
		v := attachTo(t, s.exec, 0)
		sent := 0
		go func() {
			for range 100 {
				s.prints(session.Stdout, strings.Repeat("x", 100_000))
				sent++
			}
			s.exits()
		}()
		synctest.Wait()
		if sent < 5 || sent > 8 {
			t.Errorf("it has printed %d pieces", sent)
		}
		for range 3 {
			next(t, v) // the start, and two of 64 KiB
		}
		synctest.Wait()
		if sent > 9 {
			t.Errorf("it has printed %d pieces", sent)
		}
		other := attachTo(t, s.exec, 0) // takes over, with nothing lost
		if got := next(t, v); got != ErrReplaced.Error() {
			t.Errorf("%.100q", got)
		}
		wants(t, other, "start")
		v.Close() // does not close the other
		synctest.Wait()
		if sent > 9 {
			t.Errorf("it has printed %d pieces", sent)
		}
		other.Close()
		<-s.exec.done
	})
}

func TestReplacedCallersAreIgnored(t *testing.T) {
	withStore(t, func(t *testing.T, store *Store[int]) {
		s := start(t, store, Command{User: "alice", Terminal: true})
		old := attachTo(t, s.exec, 0)
		v := attachTo(t, s.exec, 0)
		for name, err := range map[string]error{
			"stdin": old.Put([]byte("x")), "eof": old.Tell(endOfStdin), "signal": old.Tell(signalled(syscall.SIGINT)), "size": old.Tell(resized(specs.Box{Height: 1, Width: 1})),
		} {
			if !errors.Is(err, ErrReplaced) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := v.Tell(resized(specs.Box{Height: 3, Width: 4})); err != nil {
			t.Fatal(err)
		}
		if size := <-s.exec.Input.Resizes(); size != (specs.Box{Height: 3, Width: 4}) {
			t.Errorf("%v", size)
		}
		if err := v.Tell(signalled(syscall.SIGUSR1)); err != nil {
			t.Fatal(err)
		}
		<-s.exec.done
		wants(t, v, "start", "end 10 <nil>")
	})
}

// Callers may come and go as they like: no more stdin waits than one may send.
func TestStdinOfSeveralCallers(t *testing.T) {
	withStore(t, func(t *testing.T, store *Store[int]) {
		s := start(t, store, alice)
		v := attachTo(t, s.exec, 0)
		wants(t, v, "start")
		if err := v.Put(make([]byte, Window-5)); err != nil {
			t.Fatal(err)
		}
		v = attachTo(t, s.exec, 0)
		wants(t, v, "start", "taken 5")
		if err := v.Put([]byte("123456")); !cerrdefs.IsInvalidArgument(err) {
			t.Errorf("more than there is room for: %v", err)
		}
		if err := v.Put([]byte("12345")); err != nil {
			t.Fatal(err)
		}
		if n, err := io.ReadFull(s.exec.Input.Stdin(), make([]byte, 10)); n != 10 || err != nil {
			t.Fatal(n, err)
		}
		wants(t, v, "taken 10")
		v = attachTo(t, s.exec, 0)
		wants(t, v, "start", "taken 10")
		if err := v.Tell(endOfStdin); err != nil {
			t.Fatal(err)
		}
		rest, err := io.ReadAll(s.exec.Input.Stdin())
		if err != nil || len(rest) != Window-10 || !bytes.HasSuffix(rest, []byte("12345")) {
			t.Errorf("%d bytes, %v", len(rest), err)
		}
	})
}

func TestStdinThatNobodyReads(t *testing.T) {
	withStore(t, func(t *testing.T, store *Store[int]) {
		s := start(t, store, Command{User: "alice"})
		v := attachTo(t, s.exec, 0)
		wants(t, v, "start")
		for range 3 {
			if err := v.Put(make([]byte, Window)); err != nil {
				t.Fatal(err)
			}
			wants(t, v, fmt.Sprint("taken ", Window))
		}
	})
}

func TestKilling(t *testing.T) {
	withStore(t, func(t *testing.T, store *Store[int]) {
		s := start(t, store, alice)
		s.steps <- func(_ context.Context, e *exec) {
			for range 100 {
				e.Input.Signal(syscall.SIGWINCH) // more than may wait
			}
			e.Input.kill()
			for signal := range e.Input.Signals() {
				if signal == syscall.SIGKILL {
					e.Input.kill()
					return
				}
			}
		}
		if err := s.exec.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		if status := s.exec.Status(); status.Result != int(syscall.SIGKILL) || status.Ended.IsZero() {
			t.Errorf("%+v", status)
		}
		if err := s.exec.Kill(t.Context()); err != nil {
			t.Errorf("again: %v", err)
		}
	})
}

func TestExecsBelongToTheirUser(t *testing.T) {
	withStore(t, func(t *testing.T, store *Store[int]) {
		s := start(t, store, alice)
		if got, err := store.Get("alice", s.exec.ID); err != nil || got != s.exec {
			t.Error(err)
		}
		_, stranger := store.Get("bob", s.exec.ID)
		_, nobody := store.Get("alice", "x-1")
		if !cerrdefs.IsNotFound(stranger) || !cerrdefs.IsNotFound(nobody) {
			t.Errorf("%v, %v", stranger, nobody)
		}
		if same := strings.Replace(nobody.Error(), "x-1", s.exec.ID, 1); stranger.Error() != same {
			t.Errorf("a stranger learns that it is there: %v", stranger)
		}
		if list := store.List("bob"); len(list) > 0 {
			t.Errorf("bob has %d", len(list))
		}
		if list := store.List(""); len(list) > 0 {
			t.Errorf("nobody has %d", len(list))
		}
	})
}

// What a caller may tell a command.
func endOfStdin(in *Input) error { in.End(io.EOF); return nil }

func signalled(signal syscall.Signal) func(*Input) error {
	return func(in *Input) error { in.Signal(signal); return nil }
}

func resized(size specs.Box) func(*Input) error {
	return func(in *Input) error { return in.Resize(size) }
}
