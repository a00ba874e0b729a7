package session

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-yamux/v5"

	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// The agent is told which ports to offer, and its connections are fetched.
func TestPortsAreOffered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, agent, done := greeting(t)
		defer done()
		agent.scripts.Go(func() {
			start, stream := agent.accept()
			if !start.Offer {
				t.Errorf("%+v", start)
			}
			ports, err := wire.ReadPorts(stream)
			agent.must(err)
			agent.must(wire.WritePorts(stream, ports[1:]))
			start, stream = agent.accept()
			if !start.Accept {
				t.Errorf("%+v", start)
			}
			time.Sleep(time.Hour) // on a clock of its own: nobody connects
			agent.must(wire.WritePort(stream, 8000))
			agent.must(wire.ReadAnswer(stream))
			carried := wire.Carry(stream)
			_, err = io.WriteString(carried, "hello")
			agent.must(errors.Join(err, carried.CloseWrite()))
		})
		offer, err := s.Offer(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer offer.Close()
		if at, err := offer.Set([]int{80, 8000}); !slices.Equal(at, []int{8000}) || err != nil {
			t.Errorf("%v, %v", at, err)
		}
		arrived, err := offer.Accept(t.Context())
		if err != nil || arrived.Port != 8000 {
			t.Fatalf("%+v, %v", arrived, err)
		}
		if err := arrived.Answer(); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(arrived); string(got) != "hello" || err != nil {
			t.Errorf("%q, %v", got, err)
		}
		arrived.Abort()
	})
}

// What an agent answers is within bounds, or an error; a caller that leaves does not wait.
func TestAgentsThatOfferWrongly(t *testing.T) {
	for _, tt := range []struct {
		name, want string
		script     func(*fakeAgent, *yamux.Stream)
	}{
		{"port 0", "0 to 80", func(_ *fakeAgent, s *yamux.Stream) { _ = wire.WritePorts(s, []int{80, 0}) }},
		{"a port beyond", "to 65536", func(_ *fakeAgent, s *yamux.Stream) { _ = wire.WritePorts(s, []int{65536}) }},
		{"too many", "more than", func(_ *fakeAgent, s *yamux.Stream) {
			h := wire.Header(wire.KindPorts, 4<<10+1)
			_, _ = s.Write(h[:])
		}},
		{"another frame", "kind 5", func(_ *fakeAgent, s *yamux.Stream) { _ = wire.WriteMessage(s, wire.KindExit, wire.Exit{}) }},
		{"silence", "deadline", func(*fakeAgent, *yamux.Stream) {}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, agent, done := greeting(t)
				defer done()
				agent.scripts.Go(func() { tt.script(agent, accepted(agent)) })
				offer, err := s.Offer(t.Context())
				if err == nil {
					_, err = offer.Set([]int{80})
				}
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("%v, want %s", err, tt.want)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		s, agent, done := greeting(t)
		defer done()
		agent.scripts.Go(func() { agent.accept(); agent.accept() })
		offer, err := s.Offer(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := offer.Accept(ctx); err == nil {
			t.Error("it waits for ever")
		}
	})
}

func accepted(a *fakeAgent) *yamux.Stream {
	_, stream := a.accept()
	return stream
}

// Ports are passed on until the caller has enough or leaves; an agent of before answers otherwise.
func TestPortsThatAnAgentTells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, agent, done := greeting(t)
		defer done()
		agent.scripts.Go(func() {
			for range 2 {
				stream, err := agent.mux.AcceptStream()
				agent.must(err)
				var r control.Request
				if err := wire.ReadMessage(stream, wire.KindRequest, &r); r.Do != control.Ports || err != nil {
					t.Errorf("%+v, %v", r, err)
				}
				agent.must(wire.WritePorts(stream, []int{80}))
				time.Sleep(time.Hour) // on a clock of its own
				agent.must(wire.WritePorts(stream, nil))
			}
			stream, err := agent.mux.AcceptStream()
			agent.must(err)
			agent.must(wire.WriteMessage(stream, wire.KindAnswer, control.Answer{Fault: control.FaultMissing}))
		})
		a, all := &Agent{s.mux}, [][]int{}
		ask := func(ctx context.Context, each func([]int) bool) error {
			stream, err := a.Ask(t.Context())
			if err != nil {
				return err
			}
			return Ports(ctx, stream, each)
		}
		each := func(ports []int) bool { all = append(all, ports); return len(ports) > 0 }
		if err := ask(t.Context(), each); err != nil || len(all) != 2 {
			t.Errorf("%v, %v", all, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(2*time.Hour, cancel)
		if err := ask(ctx, func([]int) bool { return true }); !errors.Is(err, context.Canceled) {
			t.Errorf("%v after its caller has left", err)
		}
		if err := ask(t.Context(), each); err == nil || !strings.Contains(err.Error(), "kind 13") {
			t.Errorf("an agent of before: %v", err)
		}
	})
}
