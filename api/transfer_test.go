package api

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/sandboxtest"
)

func TestUploadsStreamBeyondTheLimitOfARequest(t *testing.T) {
	large := strings.Repeat("0123456789", testMaxRequest/5)
	l := newLab(t, nil)
	text := l.answered(exchange{route: "PUT /v1/sandboxes/a/files?path=~%2Fcaf%E9%20%2B+x&exclusive=false", kind: octets, body: large})
	path := filepath.Join(sandboxtest.Home(l.Dir, "alice"), "caf\xe9 + x")
	got, err := os.ReadFile(path)
	if err != nil || string(got) != large {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if want := fmt.Sprintf(`{"bytes":%d,"resolvedPath":%q,"sandboxPath":"~/caf%s + x"}`, len(large), strings.ToValidUTF8(path, "\uFFFD"), "\uFFFD"); text != want {
		t.Errorf("%s, want %s", text, want)
	}
}

// An upload that ends before its length, or before its last chunk, fails, and leaves the old file.
func TestUploadThatIsCutShort(t *testing.T) {
	for name, request := range map[string]string{
		"by length": "Content-Length: 10\r\n\r\nhalf",
		"by chunk":  "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
		"in chunk":  "Transfer-Encoding: chunked\r\n\r\n8\r\nhalf",
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, nil)
			path := l.File("a", "old")
			server := l.serve()
			conn, err := net.Dial("tcp", server.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			if _, err := io.WriteString(conn, "PUT /v1/sandboxes/a/files?path=~/a HTTP/1.1\r\nHost: x\r\n"+request); err != nil {
				t.Fatal(err)
			}
			if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			response, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
			if response.StatusCode != http.StatusBadRequest {
				t.Errorf("status %d", response.StatusCode)
			}
			server.Close() // waits for the handler
			if got, err := os.ReadFile(path); err != nil || string(got) != "old" {
				t.Errorf("%q %v", got, err)
			}
			if names, err := os.ReadDir(filepath.Dir(path)); err != nil || len(names) != 1 {
				t.Errorf("%v %v", names, err)
			}
		})
	}
}

func TestRefusedUploadIsToldBeforeItIsSent(t *testing.T) {
	server := fullTmp(t).serve()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, err = io.WriteString(conn, "PUT /v1/sandboxes/a/files?path=/tmp/a HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\nExpect: 100-continue\r\n\r\n")
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusInsufficientStorage {
		t.Errorf("status %d", response.StatusCode)
	}
}

func TestDownloads(t *testing.T) {
	const content = "0123456789"
	const at = "Fri, 02 Jan 2026 15:04:05 GMT"
	server := downloads(t, "caf\xe9", content)
	for _, tt := range []struct {
		name, method string
		headers      []string // name, value
		status       int
		body         string
		contentRange string
	}{
		{"all", "GET", nil, 200, content, ""},
		{"HEAD", "HEAD", nil, 200, "", ""},
		{"from", "GET", []string{"Range", "bytes=7-"}, 206, "789", "bytes 7-9/10"},
		{"between", "GET", []string{"Range", "bytes=0-0"}, 206, "0", "bytes 0-0/10"},
		{"last", "GET", []string{"Range", "bytes=-2"}, 206, "89", "bytes 8-9/10"},
		{"HEAD of a range", "HEAD", []string{"Range", "bytes=7-"}, 206, "", "bytes 7-9/10"},
		{"the same still", "GET", []string{"Range", "bytes=7-", "If-Range", at}, 206, "789", "bytes 7-9/10"},
		{"changed since", "GET", []string{"Range", "bytes=7-", "If-Range", "Fri, 02 Jan 2026 15:04:04 GMT"}, 200, content, ""},
		{"not modified", "GET", []string{"If-Modified-Since", at}, 304, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req := exchange{route: tt.method + " /v1/sandboxes/a/files?path=caf%E9"}.request(t, server.URL)
			for i := 0; i < len(tt.headers); i += 2 {
				req.Header.Set(tt.headers[i], tt.headers[i+1])
			}
			response, err := http.DefaultTransport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = response.Body.Close() }()
			body, err := io.ReadAll(response.Body)
			if err != nil || response.StatusCode != tt.status || string(body) != tt.body || response.Header.Get("Content-Range") != tt.contentRange {
				t.Fatalf("%d %q %v, %v", response.StatusCode, body, response.Header, err)
			}
			if tt.status == http.StatusNotModified {
				return
			}
			for name, want := range map[string]string{
				"Content-Type": octets, "X-Content-Type-Options": "nosniff", "Accept-Ranges": "bytes", "Last-Modified": at,
				"Content-Disposition": `attachment; filename*=utf-8''caf%EF%BF%BD`,
			} {
				if got := response.Header.Get(name); got != want {
					t.Errorf("%s is %q, not %q", name, got, want)
				}
			}
		})
	}
}

// downloads serves a file in alice's home that was changed at 2026-01-02T15:04:05Z.
func downloads(t *testing.T, name, content string) *httptest.Server {
	t.Helper()
	l, at := newLab(t, nil), time.Date(2026, 1, 2, 15, 4, 5, 6, time.UTC)
	if err := os.Chtimes(l.File(name, content), at, at); err != nil {
		t.Fatal(err)
	}
	return l.serve()
}

func TestDownloadsThatHTTPRefuses(t *testing.T) {
	server := downloads(t, "a", "0123456789")
	for _, tt := range []struct {
		header, value string
		status        int
		kind          types.Kind
		message       string
	}{
		{"Range", "bytes=10-", 416, types.Invalid, `the range "bytes=10-" is not in the file, which has 10 bytes`},
		{"Range", "lines=1-", 416, types.Invalid, `the range "lines=1-"`},
		{"If-Unmodified-Since", "Fri, 02 Jan 2026 15:04:04 GMT", 412, types.Conflict, "the file was changed at Fri, 02 Jan 2026 15:04:05 GMT"},
	} {
		req := exchange{route: "GET /v1/sandboxes/a/files?path=a"}.request(t, server.URL)
		req.Header.Set(tt.header, tt.value)
		failure, status := refused(t, req)
		if status != tt.status || failure.Kind != tt.kind || !strings.Contains(failure.Message, tt.message) {
			t.Errorf("%s: %d %+v", tt.value, status, failure)
		}
	}
}

// A name in a header cannot add another header.
func TestNamesOfDownloadsStayInTheirHeader(t *testing.T) {
	for name, want := range map[string]string{
		"data.csv":        "attachment; filename=data.csv",
		"a b.txt":         `attachment; filename="a b.txt"`,
		"\"\r\nX-Bad: 1":  `attachment; filename*=utf-8''%22%0D%0AX-Bad%3A%201`,
		"é\xff":           `attachment; filename*=utf-8''%C3%A9%EF%BF%BD`,
		"x; filename=etc": `attachment; filename="x; filename=etc"`,
	} {
		if got := disposition(name); got != want {
			t.Errorf("%q: %s, not %s", name, got, want)
		}
	}
}
