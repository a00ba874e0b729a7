package e2e

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/api/types"
)

// openAs opens a connection with a token and sends a request; the answer is nil where the service does not answer.
func (l *tcpLab) openAs(t *testing.T, token, request string) *http.Response {
	dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: time.Minute}, Config: l.trust}
	ctx := t.Context()
	conn, err := dialer.DialContext(ctx, "tcp", strings.TrimPrefix(l.url, "https://"))
	if err != nil {
		return nil
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(time.Minute)) // one that is refused is answered or closed at once
	line, head, _ := strings.Cut(request, "\r\n")
	_, _ = fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\n%s\r\n", line, token, head)
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return nil
	}
	if answer.ContentLength >= 0 {
		_, _ = io.Copy(io.Discard, answer.Body)
	}
	_ = conn.SetDeadline(time.Time{})
	return answer
}

// One token keeps all the connections that it can: without a request, with a body that does not come, and following
// what does not end. In a service of few descriptors another token's calls run as if it were not there, and root's.
func TestATokenCannotTakeAllConnections(t *testing.T) {
	l := newTCPLab(t, "runc")
	l.stop(syscall.SIGTERM)
	l.wrap = []string{"prlimit", "--nofile=512:512"}
	if err := l.start(); err != nil {
		t.Fatal(err)
	}
	l.register(t, "tess")
	l.register(t, "others")
	others := func(t *testing.T) time.Duration {
		t.Helper()
		began := time.Now()
		out, err := l.as(t, engineToken).Exec(t.Context(), "others", types.Exec{Command: "echo fine"})
		if err != nil || out.Stdout != "fine\n" {
			t.Errorf("another token: %+v, %v", out, err)
		}
		if text, err := l.cli("exec", "--sandbox", "others", "--", "echo", "fine").CombinedOutput(); err != nil || string(text) != "fine\n" {
			t.Errorf("root: %s, %v", text, err)
		}
		return time.Since(began)
	}
	others(t)
	alone := others(t)
	for _, tt := range []struct {
		name, request string
		makesRoom     bool // for a further one of its caller's
	}{
		{"idle", "GET /v1/health\r\n", true},
		{"slow bodies", "POST /v1/sandboxes/tess/exec\r\nContent-Type: application/json\r\nContent-Length: 9\r\nExpect: 100-continue\r\n", false},
		{"followers", "GET /v1/egress/decisions?follow=true\r\n", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			opened, refused := 0, 0
			for opened < 600 && refused < 4 {
				if answer := l.openAs(t, scopedToken, tt.request); answer == nil || answer.StatusCode == http.StatusTooManyRequests {
					refused++
				} else {
					opened++
				}
			}
			took := others(t)
			t.Logf("%d opened, %d refused; others' calls take %v, alone %v", opened, refused, took, alone)
			if took > 10*alone+30*time.Second {
				t.Error("others' calls wait")
			}
			if (refused == 0) != tt.makesRoom || opened < 8 {
				t.Error("want a share of the connections, of which an idle one makes room")
			}
		})
		eventually(t, "the connections are closed", func() bool { return l.metric(t, "sandboxd_api_connections") < 10 })
	}
}
