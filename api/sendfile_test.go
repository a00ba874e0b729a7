package api

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// socketPair is a connection as the server has it, and its client's end.
func socketPair(t *testing.T) (server *conn, peer net.Conn) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	plain, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	l := Listener(plain)
	defer l.Close()
	if peer, err = net.Dial("unix", path); err != nil {
		t.Fatal(err)
	}
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = accepted.Close(); _ = peer.Close() })
	return accepted.(*conn), peer
}

func randomFile(t *testing.T, size int) (*os.File, []byte) {
	t.Helper()
	content := make([]byte, size)
	_, _ = rand.Read(content)
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return file, content
}

func TestSendFile(t *testing.T) {
	const size = 3<<20 + 17
	for _, c := range []struct {
		name     string
		from, of int64 // bytes from an offset
	}{
		{"all of it", 0, size}, {"a part", 1000, 2 << 20}, {"nothing", 5, 0}, {"more than there is", 0, size + 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			server, peer := socketPair(t)
			file, content := randomFile(t, size)
			if _, err := file.Seek(c.from, io.SeekStart); err != nil {
				t.Fatal(err)
			}
			got := make(chan []byte)
			go func() {
				all, _ := io.ReadAll(peer)
				got <- all
			}()
			want := content[c.from:min(size, c.from+c.of)]
			limited := &io.LimitedReader{R: file, N: c.of}
			// By sendFile, not by the copy that would do it as well.
			sent, err := server.sendFile(limited)
			if err != nil || sent != int64(len(want)) {
				t.Errorf("%d bytes, %v; want %d", sent, err, len(want))
			}
			if more, err := server.ReadFrom(limited); err != nil || more != 0 {
				t.Errorf("then %d bytes, %v", more, err)
			}
			_ = server.Close()
			if !bytes.Equal(<-got, want) {
				t.Error("other bytes came")
			}
		})
	}
}

func TestReadFromWhatIsNoFile(t *testing.T) {
	server, peer := socketPair(t)
	go func() {
		_, _ = server.ReadFrom(&io.LimitedReader{R: strings.NewReader("no file"), N: 4})
		_, _ = server.ReadFrom(strings.NewReader(" at all"))
		_ = server.Close()
	}()
	if got, err := io.ReadAll(peer); err != nil || string(got) != "no f at all" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestSendFileEndsAtADeadline(t *testing.T) {
	server, _ := socketPair(t) // nobody reads
	file, _ := randomFile(t, 4<<20)
	if err := server.SetWriteDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if sent, err := server.ReadFrom(&io.LimitedReader{R: file, N: 4 << 20}); !errors.Is(err, os.ErrDeadlineExceeded) || sent >= 4<<20 {
		t.Errorf("%d bytes, %v", sent, err)
	}
}

// TestServerSendsFiles shows that net/http finds its way to ReadFrom.
func TestServerSendsFiles(t *testing.T) {
	file, content := randomFile(t, 1<<20)
	path := filepath.Join(t.TempDir(), "s")
	plain, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(&contentWriter{ResponseWriter: w}, r, "", time.Time{}, file)
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(Listener(plain)) }()
	defer func() { _ = server.Close(); <-done }()
	web := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}}}
	defer web.CloseIdleConnections()
	for _, span := range []string{"", "bytes=100-200000", "bytes=1000000-"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://x/", nil)
		if err != nil {
			t.Fatal(err)
		}
		want := content
		if span != "" {
			request.Header.Set("Range", span)
			want = map[string][]byte{"bytes=100-200000": content[100:200001], "bytes=1000000-": content[1000000:]}[span]
		}
		response, err := web.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%q: %d bytes, %v; want %d", span, len(got), err, len(want))
		}
	}
}
