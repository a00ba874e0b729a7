package main

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/cluster/forward"
)

// A call that another host sends names all users of its token, beside all headers that the caller may send.
func TestHostsSayForManyUsers(t *testing.T) {
	dir := t.TempDir()
	if err := forward.MakeAuthority(dir); err != nil {
		t.Fatal(err)
	}
	if err := forward.Issue(dir, "h1", "127.0.0.1"); err != nil {
		t.Fatal(err)
	}
	certs, err := forward.ReadCertificates(filepath.Join(dir, forward.AuthorityFile), filepath.Join(dir, "h1.crt"), filepath.Join(dir, "h1.key"))
	if err != nil {
		t.Fatal(err)
	}
	opened, err := listenNodes("127.0.0.1:0", certs, nodes{calls: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		caller, err := forward.Caller(req)
		fmt.Fprint(w, len(caller.Users.IDs()), err)
	})}, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = opened.server.Serve(opened.listener) }()
	defer opened.server.Close()
	transport := &http.Transport{TLSClientConfig: certs.Client("h1")}
	defer transport.CloseIdleConnections()
	var names []string
	for size := 0; size < access.MaxTokensFile-100; size += len(names[len(names)-1]) + 1 {
		names = append(names, fmt.Sprintf(`"user-%07d"`, len(names)))
	}
	req, err := http.NewRequest(http.MethodGet, "https://"+opened.listener.Addr().String()+"/v1/sandboxes", nil)
	if err != nil {
		t.Fatal(err)
	}
	said := `{"from":"h2","caller":"of-many","users":[` + strings.Join(names, ",") + `]}`
	req.Header.Set("X-Daycare-Call", base64.StdEncoding.EncodeToString([]byte(said)))
	req.Header.Set("Cookie", strings.Repeat("c", maxHeader-1000))
	answer, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if want := fmt.Sprint(len(names), nil); err != nil || string(text) != want {
		t.Errorf("it was answered %s, %.100s, not %s: %v", answer.Status, text, want, err)
	}
}
