package access

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	cerrdefs "github.com/containerd/errdefs"
)

// TestPeers calls over a real socket, whose other end is this process.
func TestPeers(t *testing.T) {
	own := uint32(os.Getuid())
	for _, tt := range []struct {
		name  string
		peers []uint32
		want  string // a part of the refusal; empty for none
	}{
		{"listed", []uint32{own + 1, own}, ""},
		{"not listed", []uint32{own + 1}, "may not call this service"},
		{"nobody is", nil, "may not call this service"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			type answer struct {
				caller Caller
				err    error
			}
			answers := make(chan answer, 1)
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
				caller, err := Unix{Peers: tt.peers}.Caller(req)
				answers <- answer{caller, err}
			}))
			socket := filepath.Join(t.TempDir(), "s")
			listener, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			_ = server.Listener.Close()
			server.Listener, server.Config.ConnContext = listener, ConnContext
			server.Start()
			defer server.Close()
			conn, err := net.Dial("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := conn.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")); err != nil {
				t.Fatal(err)
			}
			got := <-answers
			if tt.want == "" && (got.err != nil || !got.caller.Users.All()) {
				t.Errorf("%+v", got)
			}
			if tt.want != "" && (!cerrdefs.IsPermissionDenied(got.err) || !strings.Contains(got.err.Error(), tt.want) || got.caller.Users.All()) {
				t.Errorf("%+v, want %s", got, tt.want)
			}
		})
	}
}

func TestUnknownPeersAreRefused(t *testing.T) {
	req := httptest.NewRequest(http.MethodGet, "/", nil)
	if _, err := (Unix{Peers: []uint32{0}}).Caller(req); !cerrdefs.IsPermissionDenied(err) {
		t.Errorf("a request that came by no socket: %v", err)
	}
	other, ours := net.Pipe()
	defer other.Close()
	defer ours.Close()
	if _, err := (Unix{Peers: []uint32{0}}).Caller(req.WithContext(ConnContext(t.Context(), ours))); !cerrdefs.IsPermissionDenied(err) {
		t.Errorf("a connection without credentials: %v", err)
	}
}

func TestTCPAuthenticator(t *testing.T) {
	tokens, err := ReadTokens(writeTokens(t, bothTokens))
	if err != nil {
		t.Fatal(err)
	}
	good := []string{"Bearer " + aliceToken}
	for _, tt := range []struct {
		name, listen, host string
		authorization      []string
		origin, kind, body string
		class              func(error) bool // nil for a caller who is let in
	}{
		{"token", "127.0.0.1:7480", "127.0.0.1:7480", good, "", "", "", nil},
		{"scheme in another case", "127.0.0.1:7480", "localhost:7480", []string{"bearer " + aliceToken}, "", "", "", nil},
		{"IPv6", "[::1]:7480", "[::1]:7480", good, "", "", "", nil},
		{"through a port of another number", "127.0.0.1:7480", "localhost:9999", good, "", "", "", nil},
		{"a name that is allowed", "10.0.0.1:7480", "Sandbox.example.org:7480", good, "", "", "", nil},
		{"its address", "10.0.0.1:7480", "10.0.0.1:7480", good, "", "", "", nil},
		{"any address where it listens on all", ":7480", "10.9.9.9:7480", good, "", "", "", nil},
		{"any address where it listens on all of them", "0.0.0.0:7480", "10.9.9.9", good, "", "", "", nil},
		{"page that is allowed", "127.0.0.1:7480", "localhost", good, "https://console.example.org", "", "", nil},
		{"body", "127.0.0.1:7480", "localhost", good, "", "application/json", "{}", nil},

		{"no header", "127.0.0.1:7480", "localhost", nil, "", "", "", cerrdefs.IsUnauthorized},
		{"two headers", "127.0.0.1:7480", "localhost", append(good, good...), "", "", "", cerrdefs.IsUnauthorized},
		{"no scheme", "127.0.0.1:7480", "localhost", []string{aliceToken}, "", "", "", cerrdefs.IsUnauthorized},
		{"another scheme", "127.0.0.1:7480", "localhost", []string{"Basic " + aliceToken}, "", "", "", cerrdefs.IsUnauthorized},
		{"empty", "127.0.0.1:7480", "localhost", []string{""}, "", "", "", cerrdefs.IsUnauthorized},
		{"empty token", "127.0.0.1:7480", "localhost", []string{"Bearer "}, "", "", "", cerrdefs.IsUnauthorized},
		{"wrong token", "127.0.0.1:7480", "localhost", []string{"Bearer x" + aliceToken}, "", "", "", cerrdefs.IsUnauthorized},
		{"name that leads here by itself", "127.0.0.1:7480", "evil.example.net:7480", good, "", "", "", cerrdefs.IsPermissionDenied},
		{"name that only begins well", "127.0.0.1:7480", "localhost.example.net", good, "", "", "", cerrdefs.IsPermissionDenied},
		{"name where it listens on all", ":7480", "evil.example.net:7480", good, "", "", "", cerrdefs.IsPermissionDenied},
		{"another address", "127.0.0.1:7480", "10.9.9.9:7480", good, "", "", "", cerrdefs.IsPermissionDenied},
		{"no host", "127.0.0.1:7480", "", good, "", "", "", cerrdefs.IsPermissionDenied},
		{"no host where it listens on all", ":7480", "", good, "", "", "", cerrdefs.IsPermissionDenied},
		{"page", "127.0.0.1:7480", "localhost", good, "http://localhost", "", "", cerrdefs.IsPermissionDenied},
		{"page without an origin", "127.0.0.1:7480", "localhost", good, "null", "", "", cerrdefs.IsPermissionDenied},
		{"body of no type", "127.0.0.1:7480", "localhost", good, "", "", "{}", cerrdefs.IsInvalidArgument},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(tt.body))
			req.Host = tt.host
			for name, value := range map[string]string{"Origin": tt.origin, "Content-Type": tt.kind} {
				if value != "" {
					req.Header.Set(name, value)
				}
			}
			for _, header := range tt.authorization {
				req.Header.Add("Authorization", header)
			}
			caller, err := TCP{
				Tokens: tokens, Listen: tt.listen, Hosts: []string{"sandbox.example.org"}, Origins: []string{"https://console.example.org"},
			}.Caller(req)
			switch {
			case tt.class == nil && (err != nil || caller.Name != "of-alice"):
				t.Errorf("%+v, %v", caller, err)
			case tt.class != nil && (!tt.class(err) || caller.Name != "" || strings.Contains(err.Error(), aliceToken)):
				t.Errorf("%+v, %v", caller, err)
			}
		})
	}
}

func TestExposed(t *testing.T) {
	for listen, want := range map[string]bool{
		"127.0.0.1:1": false, "127.9.9.9:1": false, "[::1]:1": false, "localhost:1": false,
		":1": true, "0.0.0.0:1": true, "[::]:1": true, "10.0.0.1:1": true,
	} {
		if Exposed(listen) != want {
			t.Errorf("%s: %t", listen, !want)
		}
	}
}

func TestFolders(t *testing.T) {
	dir := t.TempDir()
	for mode, want := range map[os.FileMode]string{0o700: "", 0o755: "may look into", 0o750: "may look into", 0o775: "may write", 0o707: "may write"} {
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		open, err := CheckFolder(dir)
		if err != nil {
			open = err.Error()
		}
		if (want == "") != (open == "") || !strings.Contains(open, want) || (err != nil) != (mode&0o022 != 0) {
			t.Errorf("%04o: %q, %v", mode, open, err)
		}
		if open != "" && !strings.Contains(open, "chmod 700 "+dir) {
			t.Errorf("%04o: no remedy: %s", mode, open)
		}
	}
	if _, err := CheckFolder("/tmp"); err == nil {
		t.Error("everybody may put a socket into /tmp")
	}
}
