package dnsfilter_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/daycare-run/sandbox/dnsfilter"
)

// serveTLS makes a DNS server over TLS for localhost, and returns its port and who vouches for it.
func serveTLS(t *testing.T, f *fake) (port string, roots *x509.CertPool) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	certificate, err := x509.ParseCertificate(raw)
	must(t, err)
	roots = x509.NewCertPool()
	roots.AddCert(certificate)
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{raw}, PrivateKey: key}},
	})
	must(t, err)
	f.serve(t, &dns.Server{Listener: listener, Net: "tcp-tls"})
	_, port, _ = net.SplitHostPort(listener.Addr().String())
	return port, roots
}

func TestOverTLS(t *testing.T) {
	upstream := newFake(t, nil)
	port, roots := serveTLS(t, upstream)
	for _, host := range []string{"localhost", "127.0.0.1"} {
		l := newLab(t, func(c *dnsfilter.Config) { c.RootCAs = roots }, "tls://"+host+":"+port)
		l.wantSaid(open, "example.org.", dns.TypeA, "NOERROR 1.2.3.4")
		l.wantSaid(open, "other.test.", dns.TypeA, "NOERROR 5.6.7.8") // over the same connection
	}
	before := len(upstream.asked())
	for _, spec := range []string{"tls://127.0.0.2:", "tls://localhost:"} {
		l := newLab(t, func(c *dnsfilter.Config) {
			impatient(c)
			if spec == "tls://127.0.0.2:" {
				c.RootCAs = roots
			} else {
				c.RootCAs = x509.NewCertPool()
			}
		}, spec+port)
		l.wantSaid(open, "example.org.", dns.TypeA, "SERVFAIL EDE No Reachable Authority")
	}
	if len(upstream.asked()) != before {
		t.Error("asked somebody whose certificate is not good")
	}
}
