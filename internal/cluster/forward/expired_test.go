package forward

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"path/filepath"
	"testing"
	"time"
)

// A host whose certificate has expired neither calls others nor is called.
func TestAnExpiredCertificateIsNone(t *testing.T) {
	dir := t.TempDir()
	if err := MakeAuthority(dir); err != nil {
		t.Fatal(err)
	}
	authority, err := tls.LoadX509KeyPair(filepath.Join(dir, AuthorityFile), filepath.Join(dir, authorityKey))
	if err != nil {
		t.Fatal(err)
	}
	expired := func(ends time.Time) Certificates {
		cert, key := filepath.Join(t.TempDir(), "h.crt"), filepath.Join(t.TempDir(), "h.key")
		f := form("h2", hostYears)
		f.DNSNames, f.NotAfter = []string{"h2"}, ends
		f.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
		if err := issue(f, &authority, cert, key); err != nil {
			t.Fatal(err)
		}
		c, err := ReadCertificates(filepath.Join(dir, AuthorityFile), cert, key)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	good, old := expired(time.Now().Add(time.Hour)), expired(time.Now().Add(-time.Minute))
	for _, c := range []struct {
		name           string
		client, server Certificates
		answers        bool
	}{{"both are good", good, good, true}, {"the caller's has expired", old, good, false}, {"the called one's has expired", good, old, false}} {
		listener, err := tls.Listen("tcp", "127.0.0.1:0", c.server.server())
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
		go func() { _ = server.Serve(listener) }()
		transport := &http.Transport{TLSClientConfig: c.client.Client("h2")}
		answer, err := (&http.Client{Transport: transport}).Get("https://" + listener.Addr().String())
		if err == nil {
			_ = answer.Body.Close()
		}
		if (err == nil) != c.answers {
			t.Errorf("%s: %v", c.name, err)
		}
		transport.CloseIdleConnections()
		_ = server.Close()
	}
}
