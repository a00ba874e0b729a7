package e2e

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/api/types"
)

// connect is a connection of a caller who writes what he likes.
func (l *lab) connect(t *testing.T) (conn net.Conn, from *bufio.Reader) {
	t.Helper()
	conn, err := net.Dial("unix", l.path("sandboxd.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(2 * time.Minute))
	return conn, bufio.NewReader(conn)
}

// What is no request, and what net/http would answer by itself, as text, is answered in the contract's form.
func TestMalformedRequestsGetJSONErrors(t *testing.T) {
	const good = "GET /v1/health HTTP/1.1\r\nHost: x\r\n"
	eachRuntime(t, func(t *testing.T, l *lab) {
		for name, tt := range map[string]struct {
			send   string
			status int
			kind   types.Kind
		}{
			"a header that is too large": {good + "X: " + strings.Repeat("x", 2<<20) + "\r\n\r\n", 431, types.TooLarge},
			"an expectation":             {good + "Expect: the-unexpected\r\n\r\n", 417, types.Invalid},
			"no HTTP":                    {"hello\r\n\r\n", 400, types.Invalid},
			"another version":            {"GET / HTTP/3.7\r\nHost: x\r\n\r\n", 505, types.Invalid},
		} {
			conn, from := l.connect(t)
			go func() { _, _ = io.WriteString(conn, tt.send) }() // nobody reads all of what is too large
			got, err := http.ReadResponse(from, nil)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			var failure types.Failure
			text, _ := io.ReadAll(got.Body)
			if err := json.Unmarshal(text, &failure); err != nil || got.StatusCode != tt.status || failure.Error.Kind != tt.kind ||
				failure.Error.RequestID != got.Header.Get("X-Request-Id") || got.Header.Get("Content-Type") != "application/json" {
				t.Errorf("%s: %s %v: %.200q", name, got.Status, got.Header, text)
			}
		}
	})
}
