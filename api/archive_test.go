package api

import (
	"archive/tar"
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/internal/sandboxtest"
)

// fileTar is an archive of one file.
func fileTar(t *testing.T, name, content string) []byte {
	t.Helper()
	var text bytes.Buffer
	w := tar.NewWriter(&text)
	err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(content))})
	_, wrong := io.WriteString(w, content)
	if err := errors.Join(err, wrong, w.Close()); err != nil {
		t.Fatal(err)
	}
	return text.Bytes()
}

func TestArchivesStreamBeyondTheLimitOfARequest(t *testing.T) {
	l, large := newLab(t, nil), strings.Repeat("0123456789", testMaxRequest/5)
	text := l.answered(exchange{route: "PUT /v1/sandboxes/a/archive?path=in", kind: tarType, body: string(fileTar(t, "sub/large", large))})
	if want := `{"entries":1,"bytes":4194300,"skipped":0,"sandboxPath":"~/in"}`; text != want {
		t.Errorf("%s, want %s", text, want)
	}
	response, err := http.Get(l.serve().URL + "/v1/sandboxes/a/archive?path=in")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if got := response.Header.Get("Content-Disposition"); got != "attachment; filename=in.tar" || response.Header.Get("Content-Type") != tarType {
		t.Errorf("%v", response.Header)
	}
	r, found := tar.NewReader(response.Body), ""
	for head, err := r.Next(); !errors.Is(err, io.EOF); head, err = r.Next() {
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil || head.Name == "sub/large" && string(content) != large {
			t.Errorf("%s: %d bytes, %v", head.Name, len(content), err)
		}
		found += head.Name + " "
	}
	if found != "./ sub/ sub/large " {
		t.Errorf("%q", found)
	}
}

// A sender that goes away leaves no part of a file, and one whose archive is refused in the middle is told.
func TestArchiveThatIsCutShort(t *testing.T) {
	for name, tt := range map[string]struct {
		body []byte
		cut  bool
		says string
	}{
		"in a file": {fileTar(t, "a", strings.Repeat("x", 5000))[:2000], true, "the body was cut short"},
		"refused":   {append(fileTar(t, "../a", "x"), make([]byte, 8<<20)...), false, `has the component \"..\"`},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, nil)
			home := filepath.Dir(l.File("a", "old"))
			server := l.serve()
			conn, err := net.Dial("tcp", server.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			request := "PUT /v1/sandboxes/a/archive?path=~ HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n"
			go func() {
				_, _ = conn.Write(append([]byte(request), tt.body...))
				if tt.cut {
					_ = conn.(*net.TCPConn).CloseWrite()
				}
			}()
			response, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			_ = conn.(*net.TCPConn).CloseWrite() // who has an answer sends no more, for which the service would wait
			text, err := io.ReadAll(response.Body)
			if err != nil || response.StatusCode != http.StatusBadRequest || !strings.Contains(string(text), tt.says) {
				t.Errorf("%d %s %v", response.StatusCode, text, err)
			}
			_ = conn.Close()
			server.Close() // waits for the handler
			if names, err := os.ReadDir(home); err != nil || len(names) != 1 {
				t.Errorf("%v %v", names, err)
			}
		})
	}
}

// A failure in the middle breaks the connection: nobody takes the archive for the whole.
func TestArchiveThatFailsInTheMiddle(t *testing.T) {
	l := newLab(t, nil)
	l.File("f", "x") // makes the home
	if err := os.MkdirAll(filepath.Join(sandboxtest.Home(l.Dir, "alice"), "d", strings.Repeat("d/", 130)), 0o755); err != nil {
		t.Fatal(err)
	}
	response, err := http.Get(l.serve().URL + "/v1/sandboxes/a/archive?path=d")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if !errors.Is(err, io.ErrUnexpectedEOF) || !bytes.Contains(text, []byte("DAYCARE.failed=cannot read")) {
		t.Errorf("%d bytes, %v", len(text), err)
	}
}
