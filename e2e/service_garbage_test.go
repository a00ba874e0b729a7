package e2e

import (
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// clientFrame is one of a WebSocket's, masked with zeros; first is its first byte.
func clientFrame(first byte, payload string) []byte {
	b := []byte{first, 0x80 | 126, 0, 0, 0, 0, 0, 0}
	binary.BigEndian.PutUint16(b[2:], uint16(len(payload)))
	return append(b, payload...)
}

// Who sends garbage to a command over its WebSocket is told that it is his fault, and it counts so: not as the engine's,
// and the log does not fill. The command ends, and nothing else: the container is the same as before, and who has a command
// there keeps it.
func TestGarbageOnAWebSocketOfACommand(t *testing.T) {
	garbage := map[string][]byte{
		"reserved bits":              clientFrame(0xf1, "x"),
		"an unknown opcode":          clientFrame(0x83, "x"),
		"a frame that is not masked": {0x81, 1, 'x'},
		"a continuation of nothing":  clientFrame(0x80, "x"),
		"a length below zero":        append([]byte{0x81, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, "xxxx"...),
		"noise":                      []byte(strings.Repeat("\xff\x13\x37noise", 100)),
	}
	const times = 5
	eachOwn(t, func(t *testing.T, l *lab) {
		l.register(t, "noisy")
		l.sh(t, "noisy", "true")
		own := l.containerOf(t, "noisy").ID
		stdin, leave := io.Pipe()
		neighbour, ended := &lockedBuffer{}, make(chan error, 1)
		go func() {
			_, err := l.client.Attach(t.Context(), "noisy", types.Exec{Permissions: workspace, Command: "echo begun; cat; echo still here", TimeoutMs: unhurried},
				client.Streams{Stdin: stdin, Stdout: neighbour})
			ended <- err
		}()
		eventually(t, "the neighbour's command has begun", func() bool { return neighbour.String() == "begun\n" })
		logged := len(l.log.String())
		for name, send := range garbage {
			for range times {
				conn, from := l.connect(t)
				_, _ = io.WriteString(conn, "GET /v1/sandboxes/noisy/exec HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
					"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
				if got, err := http.ReadResponse(from, nil); err != nil || got.StatusCode != http.StatusSwitchingProtocols {
					t.Fatalf("%s: %v, %v", name, got, err)
				}
				_, _ = conn.Write(clientFrame(0x81, `{"command":"echo begun; sleep 7371","permissions":["@workspace"]}`))
				if _, err := from.Peek(4); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				_, _ = conn.Write(send)
				_ = conn.(*net.UnixConn).CloseWrite() // or the service would wait for the farewell
				_, _ = io.Copy(io.Discard, from)
			}
		}
		eventually(t, "all calls have been counted", func() bool {
			return l.metric(t, `sandboxd_errors_total{kind="invalid"}`) >= float64(times*len(garbage))
		})
		if n := l.metric(t, `sandboxd_errors_total{kind="engine"}`); n > 0 {
			t.Errorf("%.0f of %d count as the engine's", n, times*len(garbage))
		}
		said := 0
		for line := range strings.Lines(l.log.String()[logged:]) {
			if strings.Contains(line, `"level":"warn"`) || strings.Contains(line, `"level":"error"`) {
				if said++; said <= 3 {
					t.Log(strings.TrimSpace(line))
				}
			}
		}
		if said > times {
			t.Errorf("the log has %d lines about it", said)
		}
		_ = leave.Close()
		if err := <-ended; err != nil || neighbour.String() != "begun\nstill here\n" {
			t.Errorf("the neighbour's command: %v, %q", err, neighbour)
		}
		if left := sleeping(t, l, "noisy", "7371"); left != "" {
			t.Errorf("still running: %s", left)
		}
		if got := l.sh(t, "noisy", "echo fine"); got != "fine" || l.containerOf(t, "noisy").ID != own {
			t.Errorf("the next command: %q, in the same container: %v", got, l.containerOf(t, "noisy").ID == own)
		}
	})
}
