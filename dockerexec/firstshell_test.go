package dockerexec

import (
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/libp2p/go-yamux/v5"

	"github.com/daycare-run/sandbox/internal/agent/ask"
	"github.com/daycare-run/sandbox/internal/agent/mux"
	"github.com/daycare-run/sandbox/internal/agent/wire"
	"github.com/daycare-run/sandbox/internal/quota"
)

// Nobody has a container before its first shell has ended, whatever that prints; one that cannot be started is none.
func TestFirstShell(t *testing.T) {
	type say func(*yamux.Stream) error
	answer := func(a ask.Answer) say {
		return func(s *yamux.Stream) error { return wire.WriteMessage(s, wire.KindAnswer, a) }
	}
	prints := func(s *yamux.Stream) error {
		h := wire.Header(wire.KindStdout, 2)
		_, err := s.Write(append(h[:], "hi"...))
		return err
	}
	exits := func(s *yamux.Stream) error { return wire.WriteMessage(s, wire.KindExit, wire.Exit{Code: 1}) }
	for name, tt := range map[string]struct {
		says  []say
		fault string
	}{
		"it ends":                {[]say{answer(ask.Answer{PID: 5}), prints, exits}, ""},
		"there is none":          {[]say{answer(ask.Answer{Fault: wire.FaultCommand})}, ""},
		"the agent breaks off":   {[]say{answer(ask.Answer{PID: 5}), prints}, "has not ended"},
		"the agent says no word": {nil, "has not ended"},
	} {
		t.Run(name, func(t *testing.T) {
			here, there := net.Pipe()
			agent, err := yamux.Server(there, mux.Config(10), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer agent.Close()
			asked := make(chan ask.Request, 1)
			go func() {
				stream, err := agent.AcceptStream()
				var r ask.Request
				if err == nil {
					err = wire.ReadMessage(stream, wire.KindRequest, &r)
				}
				for _, say := range tt.says {
					if err == nil {
						err = say(stream)
					}
				}
				asked <- r
				_ = stream.Close()
			}()
			service, err := yamux.Client(here, mux.Config(0), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer service.Close()
			err = runFirstShell(t.Context(), service)
			if (err == nil) != (tt.fault == "") || err != nil && !strings.Contains(err.Error(), tt.fault) {
				t.Errorf("%v", err)
			}
			if r := <-asked; r.Do != ask.Begin || r.Run == nil || r.Run.TimeoutMs <= 0 || r.Run.Root {
				t.Errorf("%+v", r)
			}
		})
	}
}

// One of the pool is there once its first shell has ended, and goes when that cannot be said; others have none.
func TestWhoHasAFirstShell(t *testing.T) {
	for name, tt := range map[string]struct{ pooled, ends bool }{
		"of the pool": {true, true}, "of the pool, and its end is not told": {true, false}, "made for a sandbox": {false, false},
	} {
		t.Run(name, func(t *testing.T) {
			engine, ran := newScriptedEngine(t), make(chan bool, 1)
			engine.unasked = true
			engine.attach = func(_ string, conn attachStream) {
				defer conn.Close()
				agent, err := serveAsks(conn)
				if err != nil {
					return
				}
				defer agent.Close()
				stream, err := agent.AcceptStream()
				if err != nil {
					return
				}
				ran <- true
				var r ask.Request
				err = errors.Join(wire.ReadMessage(stream, wire.KindRequest, &r), wire.WriteMessage(stream, wire.KindAnswer, ask.Answer{PID: 5}))
				if err == nil && tt.ends {
					_ = wire.WriteMessage(stream, wire.KindExit, wire.Exit{})
				}
				_ = stream.Close()
				<-agent.CloseChan()
			}
			e := engine.executor()
			defer e.Shutdown()
			spec := engine.spec("alice")
			if tt.pooled {
				spec.User = PoolUser("x")
			}
			spec.Lasting = spec.User
			_, err := e.StartLasting(t.Context(), spec, quota.Token{})
			if (err == nil) != (tt.ends || !tt.pooled) {
				t.Errorf("%v", err)
			}
			if (len(ran) == 1) != tt.pooled {
				t.Errorf("%d first shells", len(ran))
			}
		})
	}
}

// serveAsks is an agent's end.
func serveAsks(conn attachStream) (*yamux.Session, error) {
	if err := wire.WriteMessage(conn, wire.KindHello, wire.Hello{Version: ask.Version}); err != nil {
		return nil, err
	}
	return yamux.Server(conn, mux.Config(100), nil)
}
