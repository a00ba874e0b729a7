package session

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-yamux/v5"

	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// TestGreetingsThatAreRefused: what answers in a container need not be our agent.
func TestGreetingsThatAreRefused(t *testing.T) {
	for _, tt := range []struct {
		name, want string
		greet      func(net.Conn) error
	}{
		{"another version", "speaks version 99", func(c net.Conn) error {
			return wire.WriteMessage(c, wire.KindHello, wire.Hello{Version: 99})
		}},
		{"another frame", "kind 5", func(c net.Conn) error {
			return wire.WriteMessage(c, wire.KindExit, wire.Exit{})
		}},
		{"garbage", "unknown frame", func(c net.Conn) error {
			_, err := c.Write([]byte("hello, world"))
			return err
		}},
		{"an endless greeting", "more than", func(c net.Conn) error {
			_, err := c.Write([]byte{byte(wire.KindHello), 0xff, 0xff, 0xff})
			return err
		}},
		{"no JSON", "not what was expected", func(c net.Conn) error {
			_, err := c.Write([]byte{byte(wire.KindHello), 0, 0, 2, 'h', 'i'})
			return err
		}},
		{"nothing", "", func(c net.Conn) error { return c.Close() }},
		{"silence", "timeout", func(net.Conn) error { return nil }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				host, conn := pipeToAgent(t)
				greeted := make(chan error, 1)
				go func() { greeted <- tt.greet(conn) }()
				ctx, cancel := context.WithTimeout(t.Context(), HandshakeLimit)
				defer cancel()
				_, err := readHello(ctx, host, wire.Version)
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("%v, want %s", err, tt.want)
				}
				_ = host.Close()
				<-greeted
			})
		})
	}
}

// TestAgentThatDoesNotEndTheCommand has an agent that is told to end a command and does nothing, or
// prints forever: the call ends all the same, after the grace and the slack, and the session is
// given up.
func TestAgentThatDoesNotEndTheCommand(t *testing.T) {
	for name, script := range map[string]func(*fakeAgent, *yamux.Stream){
		"does nothing": func(*fakeAgent, *yamux.Stream) {},
		"prints on": func(a *fakeAgent, stream *yamux.Stream) {
			for frame := []byte{byte(wire.KindStdout), 0, 0, 1, 'y'}; ; time.Sleep(time.Second) {
				if _, err := stream.Write(frame); err != nil {
					return
				}
			}
		},
		"sends half a frame": func(a *fakeAgent, stream *yamux.Stream) {
			_, err := stream.Write([]byte{byte(wire.KindExit), 0})
			a.must(err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, agent, done := greeting(t)
				defer done()
				agent.scripts.Go(func() {
					_, stream := agent.accept()
					script(agent, stream)
				})
				c := aCommand
				c.Timeout = time.Second
				begun := time.Now()
				_, err := s.Run(t.Context(), c, discard)
				if !errors.Is(err, ErrBroken) {
					t.Error(err)
				}
				// The second is what an output may have taken that was waited for meanwhile.
				took, want := time.Since(begun), c.Timeout+c.Grace+terminationSlack
				if took < want-time.Second || took > want {
					t.Errorf("after %v, want %v", took, want)
				}
				<-s.Broken()
			})
		})
	}
}

// TestAgentThatIsStopped reads nothing any more, not even control messages.
func TestAgentThatIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, agent, done := greeting(t)
		defer done()
		agent.scripts.Go(func() {
			_, stream := agent.accept()
			// Frames that say nothing but ask for an answer, so that the service writes and writes.
			frame := wire.Spooled{Kind: wire.KindStdout, Length: 1}.Encode()
			for {
				if _, err := stream.Write(frame); err != nil {
					return
				}
			}
		})
		s.spool = fakeSpool(t, s.tell, "x")
		c := aCommand
		c.Timeout = time.Minute
		begun := time.Now()
		if _, err := s.Run(t.Context(), c, discard); !errors.Is(err, ErrBroken) {
			t.Error(err)
		}
		if took := time.Since(begun); took != receiveLimit {
			t.Errorf("after %v", took)
		}
	})
}

// TestAgentThatOpensStreams: the service takes none, and the session goes on.
func TestAgentThatOpensStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, agent, done := greeting(t)
		defer done()
		for range 3 {
			stream, err := agent.mux.OpenStream(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := stream.Read(make([]byte, 1)); !errors.Is(err, yamux.ErrStreamReset) {
				t.Errorf("a stream of the agent's: %v", err)
			}
		}
		agent.scripts.Go(func() {
			_, stream := agent.accept()
			agent.exit(stream, wire.Exit{Code: 3})
		})
		result, err := s.Run(t.Context(), aCommand, discard)
		if err != nil || result.ExitCode != 3 {
			t.Errorf("%+v, %v", result, err)
		}
	})
}

// TestSpooledOutput comes out of the file, and its slots are given back in batches.
func TestSpooledOutput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, agent, done := greeting(t)
		defer done()
		s.spool = fakeSpool(t, s.tell, "spooled")
		agent.scripts.Go(func() {
			_, stream := agent.accept()
			for range releaseBatch {
				at := wire.Spooled{Kind: wire.KindStderr, Slot: 0, Length: 7}
				_, err := stream.Write(at.Encode())
				agent.must(err)
			}
			if m := agent.told(); len(m.Release) != releaseBatch || m.Terminate || m.Signal != 0 {
				t.Errorf("%+v", m)
			}
			agent.exit(stream, wire.Exit{})
		})
		var got strings.Builder
		_, err := s.Run(t.Context(), aCommand, func(stream Stream, data []byte) error {
			if stream != Stderr {
				t.Errorf("stream %v", stream)
			}
			got.Write(data)
			return nil
		})
		if err != nil || got.String() != strings.Repeat("spooled", releaseBatch) {
			t.Errorf("%q, %v", got.String(), err)
		}
	})
}

// The tenant may cut the spool file: that ends the session, not the service.
func TestSpoolThatWasCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, agent, done := greeting(t)
		defer done()
		s.spool = fakeSpool(t, s.tell, "")
		agent.scripts.Go(func() {
			_, stream := agent.accept()
			at := wire.Spooled{Kind: wire.KindStdout, Slot: wire.SpoolSlots - 1, Length: 7}
			_, err := stream.Write(at.Encode())
			agent.must(err)
		})
		if _, err := s.Run(t.Context(), aCommand, discard); !errors.Is(err, ErrBroken) {
			t.Error(err)
		}
	})
}
