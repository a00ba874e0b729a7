package session

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-yamux/v5"

	"github.com/daycare-run/sandbox/internal/agent/mux"
	"github.com/daycare-run/sandbox/internal/agent/wire"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// dialAgainst connects through an agent that does what script says, on a clock of its own.
func dialAgainst(
	t *testing.T, ctx func(context.Context) context.Context,
	script func(*fakeAgent, *yamux.Stream), then func(PortConn),
) (err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, agent, done := greeting(t)
		defer done()
		agent.scripts.Go(func() {
			stream, err := agent.mux.AcceptStream()
			agent.must(err)
			if port, err := wire.ReadPort(stream); port != 80 || err != nil {
				t.Errorf("port %d, %v", port, err)
			}
			script(agent, stream)
		})
		var conn PortConn
		if conn, err = (&Agent{s.mux}).Dial(ctx(t.Context()), 80); err == nil {
			then(conn)
		}
	})
	return err
}

func patient(ctx context.Context) context.Context { return ctx }

func TestAPortIsDialled(t *testing.T) {
	if err := dialAgainst(t, patient, func(a *fakeAgent, s *yamux.Stream) {
		a.must(wire.AnswerPort(s, nil))
		time.Sleep(2 * dialLimit) // on a clock of its own: the connection outlives the limit
		_, err := io.WriteString(s, "hello")
		a.must(errors.Join(err, s.Close()))
	}, func(s PortConn) {
		if got, err := io.ReadAll(s.Stream); string(got) != "hello" || err != nil {
			t.Errorf("%q, %v", got, err)
		}
	}); err != nil {
		t.Error(err)
	}
}

// Whatever an agent answers, the call ends with an error that has a bound.
func TestAPortIsNotDialled(t *testing.T) {
	nothing := func(*fakeAgent, *yamux.Stream) {}
	gone := func(ctx context.Context) context.Context {
		ctx, cancel := context.WithCancel(ctx)
		time.AfterFunc(time.Second, cancel)
		return ctx
	}
	for _, tt := range []struct {
		name, want string
		ctx        func(context.Context) context.Context
		script     func(*fakeAgent, *yamux.Stream)
	}{
		{"nobody listens", `container: "refused"`, patient, func(a *fakeAgent, s *yamux.Stream) {
			a.must(wire.AnswerPort(s, errors.New("refused")))
		}},
		{"a long story", "inside the container", patient, func(a *fakeAgent, s *yamux.Stream) {
			a.must(wire.AnswerPort(s, errors.New(strings.Repeat("x", 3000))))
		}},
		{"a longer one", "more than", patient, func(_ *fakeAgent, s *yamux.Stream) {
			h := wire.Header(9, 5000)
			_, _ = s.Write(append(h[:], strings.Repeat("x", 5000)...)) // nobody reads it to its end
		}},
		{"another frame", "kind 5", patient, func(a *fakeAgent, s *yamux.Stream) {
			a.must(wire.WriteMessage(s, wire.KindExit, wire.Exit{}))
		}},
		{"the end", "EOF", patient, func(a *fakeAgent, s *yamux.Stream) { a.must(s.Close()) }},
		{"silence", "does not answer", patient, nothing},
		{"the caller has gone", "canceled", gone, nothing},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := dialAgainst(t, tt.ctx, tt.script, func(PortConn) {})
			if err == nil || !strings.Contains(err.Error(), tt.want) || len(err.Error()) > 1000 {
				t.Errorf("%v, want %s", err, tt.want)
			}
		})
	}
}

// An agent that has stopped answering is given up, with its session.
func TestASilentAgentIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, agent, done := greeting(t)
		defer done()
		agent.scripts.Go(func() { _, _ = agent.mux.AcceptStream() })
		if _, err := (&Agent{s.mux}).Dial(t.Context(), 80); err == nil || !s.mux.IsClosed() {
			t.Errorf("%v, closed: %v", err, s.mux.IsClosed())
		}
	})
}

// An agent is started once, again when it has ended, and not any more when its container has.
func TestAgentIsStartedOnDemand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d OnDemand
		starts := 0
		start := func() (*Agent, error) {
			if starts++; starts == 1 {
				return nil, errors.New("no")
			}
			s, _, done := greeting(t)
			t.Cleanup(done)
			return &Agent{s.mux}, nil
		}
		if _, err := d.Open(t.Context(), start); err == nil {
			t.Error("no error")
		}
		first, err := d.Open(t.Context(), start)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := d.Open(t.Context(), start); again != first || err != nil {
			t.Errorf("%v, %v", again, err)
		}
		_ = first.mux.Close()
		second, err := d.Open(t.Context(), start)
		if err != nil || second == first || starts != 3 {
			t.Errorf("%v, after %d starts", err, starts)
		}
		d.Close()
		if _, err := d.Open(t.Context(), start); err == nil || !second.mux.IsClosed() {
			t.Errorf("%v, closed: %v", err, second.mux.IsClosed())
		}
	})
}

// An agent that nobody uses ends, and not while a stream is open. The next use starts another.
func TestAnUnusedAgentEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := OnDemand{EndsAfter: time.Minute}
		starts := 0
		start := func() (*Agent, error) {
			starts++
			host, inside := net.Pipe()
			client, err := yamux.Client(host, mux.Config(100), nil)
			server, serverErr := yamux.Server(inside, mux.Config(100), nil)
			t.Cleanup(func() { _, _ = client.Close(), server.Close() })
			return &Agent{client}, errors.Join(err, serverErr)
		}
		open := func(want int) *Agent {
			t.Helper()
			agent, err := d.Open(t.Context(), start)
			if err != nil || starts != want {
				t.Fatalf("%v, after %d starts, want %d", err, starts, want)
			}
			return agent
		}
		first := open(1)
		time.Sleep(50 * time.Second)
		open(1)
		stream, err := first.Ask(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		if open(1); first.mux.IsClosed() {
			t.Error("it ended while it was used")
		}
		_ = stream.Reset()
		time.Sleep(3 * time.Minute)
		if !first.mux.IsClosed() {
			t.Error("it does not end")
		}
		open(2)
		time.Sleep(2 * time.Minute)
		open(3)
		d.Close()
	})
}

// A caller that comes while an agent starts waits for that start as long as it likes. An agent that
// is ready too late for its container is closed.
func TestAgentThatStartsSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d OnDemand
		starts := 0
		var started *Agent
		start := func() (*Agent, error) {
			starts++
			time.Sleep(time.Hour) // on a clock of its own
			s, _, done := greeting(t)
			t.Cleanup(done)
			started = &Agent{s.mux}
			return started, nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var waiting sync.WaitGroup
		for _, ctx := range []context.Context{ctx, t.Context(), t.Context()} {
			waiting.Go(func() {
				if _, err := d.Open(ctx, start); err == nil {
					t.Error("no error")
				}
			})
		}
		waittest.Pass(time.Second)
		d.Close() // at once
		waiting.Wait()
		if starts != 1 || !started.mux.IsClosed() {
			t.Errorf("%d starts, closed: %v", starts, started.mux.IsClosed())
		}
	})
}
