package guard

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// certificate is good for every name that the tests use.
var certificate = sync.OnceValue(func() tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"allowed.example", "also.example", "denied.example"},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		panic(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
})

func trust() *x509.CertPool {
	pool := x509.NewCertPool()
	leaf, err := x509.ParseCertificate(certificate().Certificate[0])
	if err != nil {
		panic(err)
	}
	pool.AddCert(leaf)
	return pool
}

// tlsOrigin is a TLS server that remembers the names that reached it and runs serve on each
// connection.
type tlsOrigin struct {
	port uint16
	mu   sync.Mutex
	seen []string
}

func newTLSOrigin(t testing.TB, serve func(*tls.Conn), change func(*tls.Config)) *tlsOrigin {
	t.Helper()
	o := &tlsOrigin{}
	cfg := &tls.Config{Certificates: []tls.Certificate{certificate()}}
	cfg.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.seen = append(o.seen, h.ServerName)
		return nil, nil
	}
	if change != nil {
		change(cfg)
	}
	l := listen(t)
	o.port = portOf(l)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				serve(tls.Server(c, cfg))
			}()
		}
	}()
	return o
}

func (o *tlsOrigin) names() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Join(o.seen, " ")
}

func echo(c *tls.Conn) { _, _ = io.Copy(c, c) }

// httpOrigin serves plain HTTP and counts nothing; handlers do.
func httpOrigin(t testing.TB, handler http.HandlerFunc) uint16 {
	t.Helper()
	l := listen(t)
	server := &http.Server{Handler: handler, ReadHeaderTimeout: patience, DisableGeneralOptionsHandler: true}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	return portOf(l)
}

// rawOrigin gives each accepted connection to the test.
func rawOrigin(t testing.TB) (uint16, <-chan *net.TCPConn) {
	t.Helper()
	l := listen(t)
	conns := make(chan *net.TCPConn, 100)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.SetDeadline(time.Now().Add(patience))
			conns <- c.(*net.TCPConn)
		}
	}()
	return portOf(l), conns
}

func take(t testing.TB, conns <-chan *net.TCPConn) *net.TCPConn {
	t.Helper()
	select {
	case c := <-conns:
		t.Cleanup(func() { _ = c.Close() })
		return c
	case <-time.After(patience):
		t.Fatal("no connection reached the origin")
		return nil
	}
}

func httpOriginText(t testing.TB, text string) uint16 {
	return httpOrigin(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) })
}
