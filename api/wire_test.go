package api

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/daycare-run/sandbox/api/types"
)

// serveRaw serves on a socket of the kernel's and returns a way to connect.
func serveRaw(t *testing.T, network string, l *lab) func() net.Conn {
	t.Helper()
	address := "127.0.0.1:0"
	if network == "unix" {
		address = t.TempDir() + "/s"
	}
	listener, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{MaxHeaderBytes: 4 << 10, Handler: l.handler()}
	prepared := Prepare(server, listener, NewConnections(100), nil)
	go func() { _ = server.Serve(prepared) }()
	t.Cleanup(func() { _ = server.Close() })
	return func() net.Conn {
		conn, err := net.Dial(network, listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		return conn
	}
}

// TestMalformedRequestsGetJSONErrors has what net/http answers by itself come in the contract's form.
func TestMalformedRequestsGetJSONErrors(t *testing.T) {
	l := newLab(t, nil)
	const good = "GET /v1/health HTTP/1.1\r\nHost: x\r\n"
	for _, network := range []string{"tcp", "unix"} {
		connect := serveRaw(t, network, l)
		for _, tt := range []struct {
			name, send string
			status     int
			kind       types.Kind
			message    string
		}{
			{"header too large", good + "X: " + strings.Repeat("x", 16<<10) + "\r\n\r\n", 431, types.TooLarge, "header is too large"},
			{"expectation", good + "Expect: the-unexpected\r\n\r\n", 417, types.Invalid, "Expect header"},
			{"no HTTP", "hello\r\n\r\n", 400, types.Invalid, "cannot read the request: 400 Bad Request"},
			{"no host", "GET /v1/health HTTP/1.1\r\n\r\n", 400, types.Invalid, "missing required Host header"},
			{"another version", "GET / HTTP/3.7\r\nHost: x\r\n\r\n", 505, types.Invalid, "unsupported protocol version"},
			{"another encoding", good + "Transfer-Encoding: zip\r\n\r\n", 501, types.Invalid, "nsupported transfer encoding"},
		} {
			for _, before := range []string{"", good + "\r\n"} {
				t.Run(network+" "+tt.name, func(t *testing.T) {
					conn := connect()
					from := bufio.NewReader(conn)
					if before != "" { // a request that is one comes first
						_, _ = io.WriteString(conn, before)
						first, err := http.ReadResponse(from, nil)
						if err != nil || first.StatusCode != http.StatusOK {
							t.Fatalf("%v, %v", first, err)
						}
						_, _ = io.Copy(io.Discard, first.Body)
					}
					_, _ = io.WriteString(conn, tt.send)
					got, err := http.ReadResponse(from, nil)
					if err != nil {
						t.Fatal(err)
					}
					var failure types.Failure
					if err := json.UnmarshalRead(got.Body, &failure, json.RejectUnknownMembers(true)); err != nil {
						t.Fatal(err)
					}
					if got.StatusCode != tt.status || failure.Error.Kind != tt.kind || !strings.Contains(failure.Error.Message, tt.message) ||
						failure.Error.RequestID == "" || failure.Error.RequestID != got.Header.Get("X-Request-Id") ||
						got.Header.Get("Content-Type") != "application/json" || !got.Close {
						t.Errorf("%s %v: %+v", got.Status, got.Header, failure.Error)
					}
				})
			}
		}
	}
}

// TestGarbageOnAWebSocket: garbage is the caller's fault, and a caller who hangs up is nobody's.
func TestGarbageOnAWebSocket(t *testing.T) {
	frame := func(first byte, payload string) []byte { // masked with zeros, as of a client
		b := []byte{first, 0x80 | 126, 0, 0, 0, 0, 0, 0}
		binary.BigEndian.PutUint16(b[2:], uint16(len(payload)))
		return append(b, payload...)
	}
	for _, tt := range []struct {
		name string
		send []byte
		kind types.Kind
	}{
		{"reserved bits", frame(0xf1, "x"), types.Invalid},
		{"unknown opcode", frame(0x83, "x"), types.Invalid},
		{"not masked", []byte{0x81, 1, 'x'}, types.Invalid},
		{"continuation of nothing", frame(0x80, "x"), types.Invalid},
		{"control frame that is too long", frame(0x89, strings.Repeat("x", 200)), types.Invalid},
		{"a length below zero", append([]byte{0x81, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, "xxxx"...), types.Invalid},
		{"noise", []byte(strings.Repeat("\xff\x13\x37noise", 100)), types.Invalid},
		{"nothing more", nil, types.Unavailable},
		{"half a frame", []byte{0x81}, types.Unavailable},
		{"a farewell", frame(0x88, "\x03\xe8bye"), types.Unavailable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel() // the farewell that is not answered takes 5 s
			seen := make(chan Call, 1)
			conn := serveRaw(t, "tcp", newLab(t, lasts(), observed(func(c Call) { seen <- c })))()
			_, _ = io.WriteString(conn, "GET /v1/sandboxes/a/exec HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
				"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
			from := bufio.NewReader(conn)
			if got, err := http.ReadResponse(from, nil); err != nil || got.StatusCode != http.StatusSwitchingProtocols {
				t.Fatalf("%v, %v", got, err)
			}
			_, _ = conn.Write(frame(0x81, `{"command":"sleep 100"}`))
			if _, err := from.Peek(4); err != nil { // it has started
				t.Fatal(err)
			}
			_, _ = conn.Write(tt.send)
			if tt.kind == types.Unavailable {
				_ = conn.Close()
			}
			if got := <-seen; got.Kind != tt.kind {
				t.Errorf("it is %s", got.Kind)
			}
		})
	}
}
