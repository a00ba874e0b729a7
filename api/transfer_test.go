package api

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/sandbox"
)

// collects is an upload that is read to its end; err gets what its reader has seen there.
func collects(into *bytes.Buffer, asked *sandbox.UploadRequest, err *error) *fakeService {
	return &fakeService{fakeFiles: fakeFiles{upload: func(r sandbox.UploadRequest) (sandbox.Written, error) {
		*asked = r
		var n int64
		n, *err = io.Copy(into, r.Body)
		return sandbox.Written{Bytes: n, ResolvedPath: "/u/a", SandboxPath: "~/a"}, *err
	}}}
}

func TestUploadsStreamBeyondTheLimitOfARequest(t *testing.T) {
	large := strings.Repeat("0123456789", testMaxRequest/5)
	var got bytes.Buffer
	var asked sandbox.UploadRequest
	var fault error
	text := answered(t, collects(&got, &asked, &fault), exchange{route: "PUT /v1/sandboxes/a/files?path=caf%E9%20%2B+x&exclusive=false", kind: octets, body: large})
	if text != fmt.Sprintf(`{"bytes":%d,"resolvedPath":"/u/a","sandboxPath":"~/a"}`, len(large)) || got.String() != large {
		t.Errorf("%d bytes: %s", got.Len(), text)
	}
	if asked.Path != "caf\xe9 + x" || asked.Exclusive {
		t.Errorf("%q %t", asked.Path, asked.Exclusive)
	}
}

// An upload that ends before its length, or before its last chunk, fails the reader and is told so.
func TestUploadThatIsCutShort(t *testing.T) {
	for name, request := range map[string]string{
		"by length": "Content-Length: 10\r\n\r\nhalf",
		"by chunk":  "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
		"in chunk":  "Transfer-Encoding: chunked\r\n\r\n8\r\nhalf",
	} {
		t.Run(name, func(t *testing.T) {
			var got bytes.Buffer
			var asked sandbox.UploadRequest
			var fault error
			server := serveFake(t, collects(&got, &asked, &fault))
			conn, err := net.Dial("tcp", server.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			if _, err := io.WriteString(conn, "PUT /v1/sandboxes/a/files?path=a HTTP/1.1\r\nHost: x\r\n"+request); err != nil {
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
			if fault == nil || errors.Is(fault, io.EOF) || got.String() != "half" {
				t.Errorf("%q %v", got.String(), fault)
			}
		})
	}
}

func TestRefusedUploadIsToldBeforeItIsSent(t *testing.T) {
	server := serveFake(t, &fakeService{fakeFiles: fakeFiles{upload: func(sandbox.UploadRequest) (sandbox.Written, error) {
		return sandbox.Written{}, classed(errs.ErrNoSpace)
	}}})
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, err = io.WriteString(conn, "PUT /v1/sandboxes/a/files?path=a HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\nExpect: 100-continue\r\n\r\n")
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
			server := serveFake(t, &fakeService{fakeFiles: fakeFiles{download: func(path string) (sandbox.Download, error) {
				if path != "caf\xe9" {
					t.Errorf("asked for %q", path)
				}
				return openFile(t, content), nil
			}}})
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
				"Content-Disposition": "attachment; filename=data.csv",
			} {
				if got := response.Header.Get(name); got != want {
					t.Errorf("%s is %q, not %q", name, got, want)
				}
			}
		})
	}
}

func TestDownloadsThatHTTPRefuses(t *testing.T) {
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
		server := serveFake(t, &fakeService{fakeFiles: fakeFiles{download: func(string) (sandbox.Download, error) { return openFile(t, "0123456789"), nil }}})
		req := exchange{route: "GET /v1/sandboxes/a/files?path=a"}.request(t, server.URL)
		req.Header.Set(tt.header, tt.value)
		failure, status := refused(t, req)
		if status != tt.status || failure.Kind != tt.kind || !strings.Contains(failure.Message, tt.message) {
			t.Errorf("%s: %d %+v", tt.value, status, failure)
		}
	}
}

// A name in a header is no way to write another header.
func TestNamesOfDownloadsStayInTheirHeader(t *testing.T) {
	for name, want := range map[string]string{
		"a b.txt":         `attachment; filename="a b.txt"`,
		"\"\r\nX-Bad: 1":  `attachment; filename*=utf-8''%22%0D%0AX-Bad%3A%201`,
		"é\xff":           `attachment; filename*=utf-8''%C3%A9%EF%BF%BD`,
		"x; filename=etc": `attachment; filename="x; filename=etc"`,
	} {
		server := serveFake(t, &fakeService{fakeFiles: fakeFiles{download: func(string) (sandbox.Download, error) {
			file := openFile(t, "")
			file.Name = name
			return file, nil
		}}})
		response, err := http.DefaultClient.Do(exchange{route: "GET /v1/sandboxes/a/files?path=a"}.request(t, server.URL))
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if got := response.Header.Get("Content-Disposition"); got != want || response.Header.Get("X-Bad") != "" {
			t.Errorf("%q: %s, not %s", name, got, want)
		}
	}
}
